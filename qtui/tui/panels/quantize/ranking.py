"""All tensors measured under a scheme, beside looking at one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from qtui.screen.tensors.list import TensorOrder
from qtui_core.errors import QtuiError

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel

RANK: Final = "rank"


class Ranking:
    """Measures the tensors of the list, which shows them, and goes through them from the worst.

    `running` is whether they are being measured.
    """

    def __init__(self, panel: QuantizePanel) -> None:
        self._panel = panel
        self.running = False

    def start(self, direction: int = 0) -> None:
        """Measures all under the active scheme; then goes to a worst one, if that was asked
        for."""
        self._panel.body.side.forget_ranks()
        self._run(True)
        self._panel.do(partial(self._measure, direction), RANK)

    def stop(self) -> None:
        """Measures no more; where that would have led, nobody wants to go now."""
        if self.running:
            self._run(False)
            self._panel.give_up(RANK)
            self._panel.body.side.ranks_stopped()

    def start_if_listed(self) -> None:
        """Measures anew where the worst stand first."""
        if self._panel.body.side.list.order is TensorOrder.WORST:
            self.start()

    def step(self, direction: int) -> None:
        """To the next worst tensor under the active scheme, or to the one before it."""
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
