"""Measures all tensors of the model under a scheme, while the panel shows one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from qtui.screen.tensors.list import TensorOrder
from qtui.screen.tensors.side import COUNT_SECONDS
from qtui_core.errors import QtuiError

if TYPE_CHECKING:
    from qtui.engine.answers.tensors import ModelIndex
    from qtui.tui.panels.quantize.panel import QuantizePanel

RANK: Final = "rank"


class Ranking:
    """Measures the tensors for the list, and steps through them from the worst. `running` says
    whether it measures now."""

    def __init__(self, panel: QuantizePanel) -> None:
        self._panel = panel
        self.running = False
        self.sampled = False
        self._read: dict[str, float | None] = {}
        self._index: ModelIndex | None = None
        self._scheme = ""
        self._told = 0.0

    @property
    def read_now(self) -> Mapping[str, float | None]:
        """The SQNR of the tensors that were read under the active scheme, by name."""
        shown = self._panel.shown
        if not shown.schemes or self._index is not shown.index:
            return {}
        return self._read if self._scheme == str(shown.scheme) else {}

    def start(self, direction: int = 0) -> None:
        """Measures all tensors under the active scheme; then, with a `direction`, goes to the next
        (1) or previous (-1) worst one."""
        shown = self._panel.shown
        self._panel.body.side.forget_ranks()
        self._index, self._scheme = shown.index, str(shown.scheme)
        self._read, self.sampled = {}, False
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
            sampled = await panel.feed.rank(panel.shown.model, scheme, self._heard)
        except QtuiError:
            self._run(False)
            raise
        self.sampled = sampled
        self._run(False)
        side.ranks_done(scheme, sampled=sampled)
        if direction:
            side.step_worst(direction)

    def _heard(self, name: str, sqnr_db: float | None) -> None:
        self._panel.body.side.add_rank(name, sqnr_db)
        self._read[name] = sqnr_db
        now = time.monotonic()
        if now - self._told > COUNT_SECONDS:
            self._told = now
            self._panel.view.ranked()

    def _run(self, running: bool) -> None:
        self.running = running
        self._panel.refresh_bindings()
        self._panel.view.ranked()
