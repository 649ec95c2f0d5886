"""A running trace: the classes of transformers run on tensors without values."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from qtui.screen.panel.asking import AskingPhase
from qtui.screen.plan.panel import ESTIMATE

if TYPE_CHECKING:
    from qtui.tui.panels.memory.panel import MemoryPanel


class Trace:
    """Requests a trace in place of an estimate, and cancels it."""

    def __init__(self, panel: MemoryPanel) -> None:
        self._panel = panel
        self._since: float | None = None
        """When the running trace began (time.monotonic); None if none runs."""
        self._given_up: set[Any] = set()
        """Questions whose trace was stopped, and models of which one failed."""

    @property
    def goes_on(self) -> bool:
        return self._since is not None

    @property
    def activity(self) -> str:
        """The text of the title: how long the trace has run."""
        if self._since is None:
            return ""
        return f"tracing for {time.monotonic() - self._since:.0f} s, Esc stops"

    def forget(self) -> None:
        """Called when another request replaces the trace."""
        self._since = None

    def start(self) -> None:
        self._panel.do(self._work, ESTIMATE)

    def start_by_itself(self) -> None:
        """Traces what the nearest kind of decoder stands in for, unless that was stopped."""
        shown = self._panel.shown
        bounds = shown.answer is not None and shown.answer.origin == "bounds"
        new = self._given_up.isdisjoint((shown.asked, shown.model))
        if bounds and new and shown.facts is not None and shown.facts.traceable:
            self._panel.call_later(self.start)

    def refused(self) -> None:
        """Called when a trace fails: the next plan of this model would fail as well."""
        self._given_up.add(self._panel.shown.model)

    def stop(self) -> None:
        """Cancels the trace, which ends its process."""
        panel = self._panel
        self._given_up.add(panel.shown.asked)
        panel.give_up(ESTIMATE)
        self.forget()
        panel.phase = AskingPhase.READY
        panel.tell("The trace was cancelled; the estimate stays.")

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
