"""A widget of text lines in tones, laid out for the size it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip

from qtui.screen.widgets.drawn import DrawnLines
from qtui.screen.widgets.line import Line

Tone = Literal["heading", "label", "value", "strong", "bar", "loss", "tick", "warning"]
Text = tuple[str, Tone]
TextLine = Sequence[Text]
Layout = Callable[[int, int], Sequence[TextLine]]
"""Lines for a width and a height."""


class TonedLines(DrawnLines):
    """Shows what `layout` says; what does not fit is cut off."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "lines--heading", "lines--label", "lines--value", "lines--strong", "lines--bar",
        "lines--loss", "lines--tick", "lines--warning",
    }  # fmt: skip
    DEFAULT_CSS = """
    TonedLines {
        & > .lines--heading { color: $foreground; text-style: bold; }
        & > .lines--label { color: $quiet; }
        & > .lines--value { color: $foreground; }
        & > .lines--strong { color: $primary; text-style: bold; }
        & > .lines--bar { color: $secondary; }
        & > .lines--loss { color: $warning; }
        & > .lines--tick { color: $quiet; }
        & > .lines--warning { color: $warning; text-style: bold; }
        &:focus > .lines--heading { color: $primary; text-style: bold; }
    }
    """

    def __init__(self, layout: Layout, **options: str) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._layout_lines = layout
        self._lines: Sequence[TextLine] = ()
        self._drawn_for: Size | None = None

    def update(self) -> None:
        """What is shown changed."""
        self._drawn_for = None
        self.refresh(layout=self.styles.is_auto_height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._layout_lines(width, container.height))

    def text_lines(self, width: int, height: int) -> list[str]:
        """The lines as plain text, to be pasted somewhere."""
        lines = self._layout_lines(width, height)
        return ["".join(text for text, _ in line).rstrip() for line in lines]

    def render_line(self, y: int) -> Strip:
        if self._drawn_for != self.size:
            self._lines = self._layout_lines(*self.size)
            self._drawn_for = self.size
        line = Line(self.size.width, self.base_style)
        if y < len(self._lines):
            column = 0
            for text, tone in self._lines[y]:
                column = line.put(column, text, self._style(tone))
        return line.strip()

    def _style(self, tone: Tone) -> Style:
        return self.get_component_rich_style(f"lines--{tone}", partial=True)
