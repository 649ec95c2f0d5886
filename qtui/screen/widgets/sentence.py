"""The sentence at the bottom of a panel."""

from __future__ import annotations

import re

from rich.text import Text
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

#: The characters that a screen of 80x24 and more has room for.
LONGEST = 310
#: Lines that even a low screen keeps, and the share of a taller one.
LEAST_LINES, SHARE = 3, 6
#: Where the rest of a sentence is that does not fit.
REST = "(Help has the rest)"
#: Where a sentence ends, and the least share of the room that whole sentences have to fill.
_ENDS = re.compile(r"[.!?](?= )")
LEAST_SHARE = 0.4


def lines_kept(width: int, height: int) -> int:
    """How many lines a screen of this size keeps for the sentence. It does not depend on the
    sentence: the picture must not change its size, and be requested again, because of another
    sentence."""
    needed = -(-LONGEST // max(1, width - 2))
    return max(1, min(needed, max(LEAST_LINES, height // SHARE)))


class Sentence(Widget):
    """Plain text, wrapped to the lines that are kept for it. If it does not fit, its last sentences
    are left out, or it ends in an ellipsis, and it says where the rest is: the help and a copy show
    all of it."""

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
        lines = self._wrapped(self.text, width)
        if len(lines) <= height:
            return lines
        for end in reversed([match.start() + 1 for match in _ENDS.finditer(self.text)]):
            whole = self._wrapped(f"{self.text[:end]} {REST}", width)
            if len(whole) <= height and len(self.text[:end]) > LEAST_SHARE * width * height:
                return whole
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

    def _wrapped(self, text: str, width: int) -> list[str]:
        return [line.plain.rstrip() for line in Text(text).wrap(self.app.console, width)]
