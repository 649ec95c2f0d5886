"""The map of batches and sequences, filled cell by cell."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from qtui.engine.estimator.answers import MapCell
from qtui.screen.plan.shown import ViewName

if TYPE_CHECKING:
    from qtui.tui.panels.memory.panel import MemoryPanel

MAP: Final = "map"
#: Cells come one by one, and an eye sees a few pictures a second.
DRAWN_SECONDS: Final = 0.15


class MapFiller:
    """Asks for the map of the plan that is shown, where it is not that already."""

    def __init__(self, panel: MemoryPanel) -> None:
        self._panel = panel
        self._drawn = 0.0

    def start(self) -> None:
        shown = self._panel.shown
        if self._panel.known and shown.cells_of != shown.mapped:
            self._panel.do(self._work, MAP)

    def stop(self) -> None:
        self._panel.give_up(MAP)

    async def _work(self) -> None:
        shown = self._panel.shown
        asked = shown.mapped
        shown.cells, shown.cells_of = {}, asked
        whole = False
        try:
            await self._panel.feed.map(shown, self._take)
            whole = True
        finally:
            if not whole and shown.cells_of == asked:
                shown.cells_of = ()  # asked for again when the map is next seen
        self._panel.draw()

    def _take(self, cell: MapCell) -> None:
        self._panel.shown.cells[cell.batch, cell.sequence] = cell
        now = time.monotonic()
        if self._panel.shown.view is ViewName.MAP and now - self._drawn > DRAWN_SECONDS:
            self._drawn = now
            self._panel.draw()
