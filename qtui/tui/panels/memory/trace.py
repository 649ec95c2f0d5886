"""A trace that goes on: the classes of transformers run over tensors without values."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from qtui.screen.panel.asking import AskingPhase
from qtui.screen.plan.panel import ESTIMATE

if TYPE_CHECKING:
    from qtui.tui.panels.memory.panel import MemoryPanel

TRACING: Final = (
    "The classes of transformers run over tensors without values, which takes no weights and no "
    "GPU, but seconds, or minutes where they walk a sequence step by step. Esc stops it."
)


class Trace:
    """Asks for a trace in the place of an estimate, and gives it up."""

    def __init__(self, panel: MemoryPanel) -> None:
        self._panel = panel
        self._since: float | None = None
        """When the trace began that goes on."""

    @property
    def goes_on(self) -> bool:
        return self._since is not None

    @property
    def activity(self) -> str:
        """How long it has gone on, for the title."""
        if self._since is None:
            return ""
        return f"tracing for {time.monotonic() - self._since:.0f} s, Esc stops"

    def forget(self) -> None:
        """Something else is asked for, which takes its place."""
        self._since = None

    def start(self) -> None:
        self._panel.do(self._work, ESTIMATE)

    def stop(self) -> None:
        """Gives it up; its process ends."""
        panel, facts = self._panel, self._panel.shown.facts
        panel.give_up(ESTIMATE)
        self.forget()
        if facts is not None and not panel.shown.current:
            panel.not_built_in(facts)
            return
        panel.phase = AskingPhase.READY
        panel.tell("The trace was given up; what is shown is as before.")

    async def _work(self) -> None:
        panel, shown = self._panel, self._panel.shown
        estimated = shown.answer if shown.current else None
        since = self._since = time.monotonic()
        panel.refusal = ""
        panel.phase = AskingPhase.WORKING
        panel.draw()
        ticking = panel.set_interval(1.0, panel.draw_activity)
        try:
            answer, around = await panel.feed.trace(shown)
        finally:
            ticking.stop()
            if self._since == since:
                self.forget()
        if estimated is not None and estimated.origin != answer.origin:
            shown.before, shown.gpu_change = estimated, "traced, not estimated"
        panel.take(answer)
        panel.take_around(around)
