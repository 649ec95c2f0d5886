"""The sentence at the bottom of a panel."""

from __future__ import annotations

from rich.text import Text
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

WIDE = 160
NARROW = 100
#: Where the rest of a sentence is that does not fit.
REST = "(Help has the rest)"


def lines_kept(width: int, height: int) -> int:
    """How many lines a screen of this size keeps for the sentence. It does not depend on the
    sentence: the picture must not change its size, and be requested again, because of another
    sentence."""
    if width >= WIDE:
        return 2
    if width >= NARROW:
        return 3 if height >= 24 else 2
    return 4 if height >= 40 else 3


class Sentence(Widget):
    """Plain text, wrapped to the lines that are kept for it. If it does not fit, it ends in an
    ellipsis and where the rest is: the help and a copy show all of it."""

    text: reactive[str] = reactive("")

    def __init__(self, text: str = "", *, ellipsis: str = "…") -> None:
        super().__init__(classes="sentence")
        self.ellipsis = ellipsis
        self.set_reactive(Sentence.text, text)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return lines_kept(*self.app.size)

    def render(self) -> Content:
        width, height = self.content_size
        return Content("\n".join(self._lines(width, height)))

    def _lines(self, width: int, height: int) -> list[str]:
        if width < 1 or height < 1:
            return []
        wrapped = Text(self.text).wrap(self.app.console, width)
        lines = [line.plain.rstrip() for line in wrapped]
        if len(lines) <= height:
            return lines
        last, ending = Text(lines[height - 1]), f"{self.ellipsis} {REST}"
        if len(ending) > width // 2:
            ending = self.ellipsis
        room = width - len(ending)
        if last.cell_len > room:
            last.truncate(room)
            # Cut back to a whole word, unless little would remain.
            word = last.plain.rfind(" ")
            last = last[: word if word > room // 2 else None]
        return [*lines[: height - 1], last.plain.rstrip() + ending]
