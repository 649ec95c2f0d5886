"""What the Memory panel asks for besides the estimate, and how it draws what it knows."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from textual.app import ComposeResult

from qtui.engine.estimator.answers import CaseFigures, MapCell, ModelFacts
from qtui.screen.panel.asking import Phase
from qtui.screen.plan.changing import ChangingPanel
from qtui.screen.plan.levels import headline, level_lines
from qtui.screen.plan.planning import ESTIMATE
from qtui.screen.plan.shown import ViewName
from qtui.tui.panels.memory.body import MemoryBody
from qtui.tui.panels.memory.cases_view import draw_cases
from qtui.tui.panels.memory.lines import number_lines
from qtui.tui.panels.memory.parts_view import draw_parts
from qtui.tui.panels.memory.sentences import sentence_of
from qtui.tui.panels.memory.views import draw_gpus, draw_map, draw_savings
from qtui_core.memory.advice.cases import CASES
from qtui_core.memory.plan.run_plan import RunPlan

#: Cells of the map come one by one, and an eye sees a few pictures a second.
MAP_SECONDS = 0.15
MAP, FIGURES = "map", "figures"
TRACING = (
    "The classes of transformers run over tensors without values, which takes no weights and no "
    "GPU, but seconds, or minutes where they walk a sequence step by step. Esc stops it."
)
DRAWERS = {
    ViewName.PARTS: draw_parts,
    ViewName.SAVINGS: draw_savings,
    ViewName.MAP: draw_map,
    ViewName.GPUS: draw_gpus,
    ViewName.CASES: draw_cases,
}


class EstimatingPanel(ChangingPanel):
    """A trace, the map and the worked cases besides, and how they are drawn."""

    body: MemoryBody

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._own_plan = RunPlan()
        self._drawn = 0.0
        self._traced_since: float | None = None
        """When the trace began that goes on."""

    def compose_body(self) -> ComposeResult:
        self.body = MemoryBody(self.drawing)
        yield self.body

    # Estimating

    def _open_subject(self) -> None:
        self.workers.cancel_group(self, MAP)
        super()._open_subject()

    def _estimate(self) -> None:
        self.workers.cancel_group(self, MAP)
        self._traced_since = None
        super()._estimate()

    def _not_built_in(self, facts: ModelFacts) -> None:
        self._traced_since = None
        super()._not_built_in(facts)

    # Tracing

    async def _trace(self) -> None:
        shown = self.shown
        estimated = shown.answer if shown.current else None
        since = self._traced_since = time.monotonic()
        self.phase, self.trouble, self.refusal = Phase.WORKING, "", ""
        self._draw()
        ticking = self.set_interval(1.0, self._draw_activity)
        try:
            answer, around = await self.feed.trace(shown)
        finally:
            ticking.stop()
            if self._traced_since == since:
                self._traced_since = None
        if estimated is not None and estimated.origin != answer.origin:
            shown.before, shown.gpu_change = estimated, "traced, not estimated"
        self._take(answer)
        shown.around = around
        self.phase = Phase.READY
        self._draw()
        self._fill_views()

    def _stop_tracing(self) -> None:
        """Gives the trace up; its process ends."""
        self.workers.cancel_group(self, ESTIMATE)
        self._traced_since = None
        facts = self.shown.facts
        if facts is not None and not self.shown.current:
            self._not_built_in(facts)
            return
        self.phase = Phase.READY
        self._tell("The trace was given up; what is shown is as before.")

    def failed(self, sentence: str) -> None:
        if self.shown.current:  # a trace failed, and the estimate is as true as it was
            self.phase = Phase.READY
            self._tell(sentence)
        else:
            super().failed(sentence)

    def refused(self, sentence: str) -> None:
        facts = self.shown.facts
        if facts is not None and facts.unknown:
            super().failed(sentence)
        else:
            super().refused(sentence)

    # The map and the worked cases

    def _fill_views(self) -> None:
        """What only one view shows is asked for when it is there."""
        shown = self.shown
        ready = self.phase is Phase.READY and shown.answer is not None
        known = shown.facts is not None and not shown.facts.unknown
        if shown.view is ViewName.MAP and ready and known and shown.cells_of != shown.mapped:
            self.do(self._map, MAP)
        if shown.view is ViewName.CASES and not shown.cases:
            shown.cases = CASES
            self.do(self._figures, FIGURES)

    async def _map(self) -> None:
        shown = self.shown
        asked = shown.mapped
        shown.cells, shown.cells_of = {}, asked
        whole = False
        try:
            await self.feed.map(shown, self._map_cell)
            whole = True
        finally:
            if not whole and shown.cells_of == asked:
                shown.cells_of = ()  # asked for again when the map is next seen
        self._draw()

    def _map_cell(self, cell: MapCell) -> None:
        self.shown.cells[cell.batch, cell.sequence] = cell
        now = time.monotonic()
        if self.shown.view is ViewName.MAP and now - self._drawn > MAP_SECONDS:
            self._draw()

    async def _figures(self) -> None:
        await self.feed.cases(self._case)

    def _case(self, found: CaseFigures) -> None:
        shown = self.shown
        shown.figures = {**shown.figures, found.key: found.figures}
        if shown.view is ViewName.CASES:
            self._draw()

    # Showing

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        shown, body = self.shown, self.body
        self._draw_form()
        body.tabs.active = list(ViewName).index(shown.view)
        body.title_line.subject, body.title_line.details = headline(shown)
        body.levels.show(partial(level_lines, shown))
        body.numbers.show(partial(number_lines, shown))
        if shown.view is ViewName.CASES:
            body.show_text(partial(draw_cases, shown))
        elif self.trouble:
            body.show_message(self.trouble)
        elif self._traced_since is not None and shown.answer is None:
            body.show_message(TRACING)
        elif shown.view is ViewName.STEP:
            body.show_curve()
            if shown.answer is None:
                body.curve.clear()
            else:
                before = shown.before.curve if shown.before else None
                fit, gpu = shown.answer.fit, shown.gpu
                capacity = fit.capacity_bytes if fit else None
                body.curve.show(shown.answer.curve, before, capacity, gpu.label if gpu else "")
        elif shown.current and (shown.around is not None or shown.view is ViewName.MAP):
            body.show_text(partial(DRAWERS[shown.view], shown))
        self._draw_activity()
        self._draw_sentence()
        self.refresh_bindings()

    def _draw_activity(self) -> None:
        text = ""
        if self._traced_since is not None:
            text = f"tracing for {time.monotonic() - self._traced_since:.0f} s, Esc stops"
        elif self.phase in (Phase.OPENING, Phase.WORKING) and not self.trouble:
            text = "estimating"
        self.body.title_line.activity = text

    def _draw_sentence(self) -> None:
        shown = self.shown
        trouble = "" if shown.view is ViewName.CASES and shown.cases else self.trouble
        told = self.refusal or trouble
        if not told and self._traced_since is not None and shown.answer is None:
            told = TRACING
        self.sentence = told or sentence_of(shown, self.drawing.glyphs)
