"""A view of the estimate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qtui.report.numbers import format_bytes
from qtui.screen.panel.view import View
from qtui.screen.plan.levels import change_text
from qtui.screen.plan.shown import Shown

if TYPE_CHECKING:
    from qtui.tui.panels.memory.panel import MemoryPanel


class MemoryView(View[Shown]):
    """Lines of text in the room of the picture, of which one may be chosen."""

    panel: MemoryPanel

    def ready(self, shown: Shown) -> bool:
        """Whether there is something to draw; until then what was there stays."""
        return shown.current and shown.around is not None

    def opened(self) -> None:
        self.panel.shown.line = 0
        self.fill(self.panel.shown)

    def fill(self, shown: Shown) -> None:
        """Asks for what only this view shows, once the estimate is there."""

    def show(self, shown: Shown) -> None:
        """Puts it on the screen."""
        self.panel.body.show_text(partial(self.draw, shown))

    def meaning(self, shown: Shown) -> str:
        answer = shown.answer
        if answer is None:
            return ""
        if shown.current and shown.around is not None:
            return shown.around.sentence
        change = change_text(shown, self.panel.drawing.glyphs.minus)
        text = (
            f"Tensors peak at {format_bytes(answer.peak_live_bytes)} in the {answer.peak_phase} "
            "phase; what the allocator keeps is being added."
        )
        return f"{change}. {text}" if change else text

    # The cursor

    def count(self, shown: Shown) -> int:
        """How many lines can be chosen from."""
        return 0

    def move(self, shown: Shown, by: int) -> bool:
        """The cursor goes to another line; whether there are any."""
        count = self.count(shown)
        if count:
            shown.line = max(0, min(shown.line_of(count) + by, count - 1))
        return count > 0

    def step(self, shown: Shown, by: int) -> bool:
        """The cursor goes to another column; whether there are any."""
        return False

    def enter(self, shown: Shown) -> None:
        """Takes what the cursor is on."""
