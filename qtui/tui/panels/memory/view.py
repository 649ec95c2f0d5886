"""The base of the views of the Memory panel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from qtui.screen.command_line import Command
from qtui.screen.panel.view import View
from qtui.screen.plan.command import memory_command
from qtui.screen.plan.levels import change_text
from qtui.screen.plan.shown import Shown
from qtui_core.quantities import format_bytes

if TYPE_CHECKING:
    from qtui.tui.panels.memory.panel import MemoryPanel


class MemoryView(View[Shown]):
    """Lines of text in place of the picture; in some views one of them is chosen."""

    COLUMNS: ClassVar[bool] = False
    """Whether the cursor moves to other columns, too (`step`)."""

    ENTERS: ClassVar[str] = ""
    """What the footer calls `enter`."""

    panel: MemoryPanel

    def ready(self, shown: Shown) -> bool:
        """Whether there is something to draw; until then the previous picture stays."""
        return shown.current and shown.around is not None

    def opened(self) -> None:
        self.panel.shown.line = 0
        self.fill(self.panel.shown)

    def fill(self, shown: Shown) -> None:
        """Called when the estimate is known: requests what only this view shows."""

    def show(self, shown: Shown) -> None:
        """Draws the view."""
        self.panel.body.show_text(partial(self.draw, shown))
        if self.panel.body.has_both:
            self.panel.draw_curve()

    def meaning(self, shown: Shown) -> str:
        answer = shown.answer
        if answer is None:
            return ""
        if not shown.current:
            return "The plan is being estimated."
        if shown.around is not None:
            return shown.around.sentence
        change = change_text(shown, self.panel.drawing.glyphs.minus)
        peak = f"at {format_bytes(answer.peak_live_bytes)} in the {answer.peak_phase} phase"
        text = f"Tensors peak {peak}; the allocator's memory is being estimated."
        return f"{change[:1].upper()}{change[1:]}. {text}" if change else text

    def command_line_of(self, shown: Shown, *more: str) -> Command:
        """The command that gives the view, and `more` words of it."""
        return memory_command(shown.model, shown.plan, shown.gpu, *more)

    # The cursor

    def count(self, shown: Shown) -> int:
        """The number of lines to choose from."""
        return 0

    def move(self, shown: Shown, by: int) -> bool:
        """Moves the cursor to another line. Returns whether the view has lines to choose from."""
        count = self.count(shown)
        if count:
            shown.line = max(0, min(shown.line_of(count) + by, count - 1))
        return count > 0

    def step(self, shown: Shown, by: int) -> bool:
        """Moves the cursor to another column. Returns whether the view has columns."""
        return False

    def enter(self, shown: Shown) -> None:
        """Acts on the line or cell under the cursor."""
