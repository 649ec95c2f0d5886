"""One line of cells, written by position and cut into as few segments as possible."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip


class Line:
    """`width` cells of single-width characters, each with a style.

    The style `base` (normally the widget's `rich_style`) is under everything: a segment without a
    style would crash Textual's colour filters.
    """

    def __init__(self, width: int, base: Style) -> None:
        self.width = width
        self._base = base
        self._characters = [" "] * width
        self._styles = [base] * width

    def put(self, column: int, text: str, style: Style | None = None) -> int:
        """Writes `text` from `column` on, cut at the edges; returns the column after it."""
        full = self._base + style if style is not None else self._base
        for offset, character in enumerate(text):
            at = column + offset
            if 0 <= at < self.width:
                self._characters[at] = character
                self._styles[at] = full
        return column + len(text)

    def put_right(self, end: int, text: str, style: Style | None = None) -> None:
        """Writes `text` so that it ends before column `end`."""
        self.put(end - len(text), text, style)

    def paint(self, start: int, end: int, style: Style) -> None:
        """Adds a style (such as a background) to cells that are already written."""
        for at in range(max(0, start), min(end, self.width)):
            self._styles[at] = self._styles[at] + style

    def strip(self) -> Strip:
        segments: list[Segment] = []
        start = 0
        for at in range(1, self.width + 1):
            if at == self.width or self._styles[at] is not self._styles[start]:
                segments.append(Segment("".join(self._characters[start:at]), self._styles[start]))
                start = at
        # Measured, because a name may contain characters of zero or two cells.
        return Strip(segments).adjust_cell_length(self.width, self._base)


def shortened(text: str, width: int, ellipsis: str = "…") -> str:
    """`text` cut to `width` cells, with an ellipsis if it was cut."""
    if len(text) <= width:
        return text
    return text[: max(0, width - len(ellipsis))] + ellipsis[:width]
