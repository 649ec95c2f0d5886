"""Measures all tensors of the model under a scheme, while the panel shows one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from qtui.screen.tensors.list import TensorOrder
from qtui_core.errors import QtuiError

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel

RANK: Final = "rank"


class Ranking:
    """Measures the tensors for the list, and steps through them from the worst. `running` says
    whether it measures now."""

    def __init__(self, panel: QuantizePanel) -> None:
        self._panel = panel
        self.running = False

    def start(self, direction: int = 0) -> None:
        """Measures all tensors under the active scheme; then, with a `direction`, goes to the next
        (1) or previous (-1) worst one."""
        self._panel.body.side.forget_ranks()
        self._run(True)
        self._panel.do(partial(self._measure, direction), RANK)

    def stop(self) -> None:
        """Stops measuring; no tensor is chosen."""
        if self.running:
            self._run(False)
            self._panel.give_up(RANK)
            self._panel.body.side.ranks_stopped()

    def start_if_listed(self) -> None:
        """Measures again if the list is sorted by SQNR."""
        if self._panel.body.side.list.order is TensorOrder.WORST:
            self.start()

    def step(self, direction: int) -> None:
        """Goes to the next (1) or previous (-1) worst tensor under the active scheme."""
        side, shown = self._panel.body.side, self._panel.shown
        if not shown.schemes:
            return
        if side.ranked_by == str(shown.scheme):
            side.step_worst(direction)
        else:
            self.start(direction)

    async def _measure(self, direction: int) -> None:
        panel, side = self._panel, self._panel.body.side
        scheme = str(panel.shown.scheme)
        try:
            sampled = await panel.feed.rank(panel.shown.model, scheme, side.add_rank)
        except QtuiError:
            self._run(False)
            raise
        self._run(False)
        side.ranks_done(scheme, sampled=sampled)
        if direction:
            side.step_worst(direction)

    def _run(self, running: bool) -> None:
        self.running = running
        self._panel.refresh_bindings()
