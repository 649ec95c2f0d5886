"""How the Memory panel asks for an estimate, and what it says in the meantime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from textual.app import ComposeResult
from textual.reactive import reactive

from qtui.engine.client import EngineClient, EngineState
from qtui.tui.panels.engine_panel import OPENING, EnginePanel
from qtui.tui.panels.memory.body import MemoryBody
from qtui.tui.panels.memory.data import Answer, CaseLine, MapCell
from qtui.tui.panels.memory.feed import MemoryFeed, case_line
from qtui.tui.panels.memory.fields import form_fields
from qtui.tui.panels.memory.knobs import difference
from qtui.tui.panels.memory.lines import level_lines, number_lines
from qtui.tui.panels.memory.sentences import sentence_of
from qtui.tui.panels.memory.shown import GpuChoice, Shown, ViewName, catalogue
from qtui.tui.panels.memory.views import (
    draw_cases,
    draw_gpus,
    draw_map,
    draw_parts,
    draw_savings,
    headline,
)
from qtui.tui.panels.quantize.shown import Phase
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.presets import CASES
from qtui_core.models.quoting import printable

#: Someone who holds a key down wants the whole estimate of what they stop at.
PAUSE_SECONDS = 0.12
#: Cells of the map come one by one, and an eye sees a few pictures a second.
MAP_SECONDS = 0.15
ESTIMATE, MAP, FIGURES = "estimate", "map", "figures"
DRAWERS = {
    ViewName.PARTS: draw_parts,
    ViewName.SAVINGS: draw_savings,
    ViewName.MAP: draw_map,
    ViewName.GPUS: draw_gpus,
    ViewName.CASES: draw_cases,
}


class EstimatingPanel(EnginePanel):
    """One subject, one plan, one GPU, and the phase that estimating them is in."""

    phase: reactive[Phase] = reactive(Phase.OPENING, init=False)

    @property
    def engine(self) -> EngineClient:
        return self.qtui.estimator

    def compose_body(self) -> ComposeResult:
        self.body = MemoryBody(self.drawing)
        yield self.body

    def on_mount(self) -> None:
        self.feed = MemoryFeed(self.engine)
        self.shown = Shown(self.qtui.model, gpus=catalogue())
        self.refusal = ""
        self.trouble = ""
        self._possible: RunPlan | None = None
        """The last plan that was estimated: one that cannot be gives way to it."""
        self._past: list[tuple[RunPlan, GpuChoice | None]] = []
        self._own_plan = self.shown.plan
        self._drawn = 0.0
        self._asked_live = False

    # Opening

    def open_model(self, model: str) -> None:
        """The app has another model: the plan and the GPU stay."""
        before = self.shown
        self.feed.answers.clear()
        self.shown = Shown(
            model, plan=before.plan, gpu=before.gpu, gpus=before.gpus, live=before.live,
            view=before.view, knob=before.knob, cases=before.cases, cell=before.cell,
        )  # fmt: skip
        self._open_subject()

    def _open_subject(self) -> None:
        for group in (MAP, ESTIMATE):
            self.workers.cancel_group(self, group)
        self.refusal = self.trouble = ""
        self._possible = None
        self.shown.facts = None
        self.shown.forget()
        self._say(Phase.OPENING, f"Opening {printable(self.shown.case or self.shown.model)}")
        self.do(self._open, OPENING)

    async def _open(self) -> None:
        if self.engine.state is EngineState.LOST:
            await self.engine.restart()
        shown = self.shown
        shown.facts = await self.feed.open(shown)
        if not self._asked_live:
            self._asked_live = True
            shown.live = await self.feed.live()
            shown.gpus = (*shown.live, *shown.gpus)
            if shown.live and shown.gpu is None:
                shown.gpu = shown.live[0]
        if shown.facts.unknown:
            self._say(Phase.FAILED, f"{shown.facts.unknown}\nt runs that trace here.")
            return
        longest = shown.facts.max_positions
        if shown.plan == RunPlan() and longest and longest < shown.plan.sequence:
            shown.plan = replace(shown.plan, sequence=longest)
        self._estimate()

    # Estimating

    def _estimate(self) -> None:
        """The plan, the GPU or the subject is another one."""
        self.workers.cancel_group(self, MAP)
        self.do(self._work, ESTIMATE)
        self.phase, self.trouble = Phase.WORKING, ""
        self._draw_form()
        self.body.title_line.activity = "estimating"

    async def _work(self) -> None:
        if self.engine.state is EngineState.LOST:
            await self.engine.restart()
        shown = self.shown
        found = self.feed.known(shown)
        if found is None:
            self._take(await self.feed.first(shown))
            await asyncio.sleep(PAUSE_SECONDS)
            found = await self.feed.full(shown)
        self._take(found)
        shown.around = await self.feed.around(shown)
        self.phase = Phase.READY
        self._draw()
        self._fill_views()

    def _take(self, answer: Answer) -> None:
        """An answer to what is asked for."""
        shown = self.shown
        if answer.stage == "first" or not shown.current:
            shown.around = None
        shown.answer, shown.answered = answer, shown.asked
        self._possible = shown.plan
        if shown.before is not None:
            of_plan = difference(shown.before.plan, answer.plan)
            shown.change = ", ".join(filter(None, (shown.gpu_change, of_plan)))
        self._draw()

    async def _trace(self) -> None:
        self._say(Phase.WORKING, "tracing the classes of transformers, without weights")
        shown = self.shown
        shown.before = shown.answer if shown.current else None
        shown.gpu_change = "traced, not estimated"
        self._take(await self.feed.trace(shown))
        self.phase = Phase.READY
        self._draw()

    # The map and the worked cases

    def _fill_views(self) -> None:
        """What only one view shows is asked for when it is there."""
        shown = self.shown
        ready = self.phase is Phase.READY and shown.answer is not None
        known = shown.facts is not None and not shown.facts.unknown
        if shown.view is ViewName.MAP and ready and known and shown.cells_of != shown.mapped:
            self.do(self._map, MAP)
        if shown.view is ViewName.CASES and not shown.cases:
            shown.cases = tuple(case_line(case.key) for case in CASES)
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

    def _map_cell(self, data: Mapping[str, Any]) -> None:
        cells, place = self.shown.cells, (data["batch"], data["sequence"])
        before = cells.get(place, MapCell(*place, None, None))
        known = {key: data[key] for key in ("peak_live_bytes", "verdict") if key in data}
        cells[place] = replace(before, **known)
        now = time.monotonic()
        if self.shown.view is ViewName.MAP and now - self._drawn > MAP_SECONDS:
            self._draw()

    async def _figures(self) -> None:
        await self.feed.cases(self._case)

    def _case(self, line: CaseLine) -> None:
        shown = self.shown
        shown.cases = tuple(line if line.key == each.key else each for each in shown.cases)
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
        busy = self.phase in (Phase.OPENING, Phase.WORKING)
        body.title_line.activity = "estimating" if busy and not self.trouble else ""
        self._draw_sentence()
        self.refresh_bindings()

    def _draw_sentence(self) -> None:
        told = self.refusal or self.trouble
        self.sentence = told or sentence_of(self.shown, self.drawing.glyphs)

    def _draw_form(self) -> None:
        shown = self.shown
        fields = form_fields(shown)
        shown.knob = max(0, min(shown.knob, len(fields) - 1))
        self.body.form.show(fields, shown.knob)

    def _say(self, phase: Phase, text: str) -> None:
        """What is being done, or why nothing is; that stands where the picture is otherwise."""
        self.phase = phase
        self.trouble = text if phase in (Phase.FAILED, Phase.LOST) else ""
        if phase is Phase.WORKING:
            self.body.title_line.activity = text
        if self.trouble:
            self.shown.forget()
        self._draw()
        if phase is Phase.OPENING:
            self.sentence = text
        if phase is Phase.WORKING:
            self.body.title_line.activity = text

    # What can go wrong

    def refused(self, sentence: str) -> None:
        """The plan cannot be: back to the one before. Without one, only the form helps."""
        self.refusal = sentence
        if self._possible is None:
            self._say(Phase.FAILED, sentence)
            return
        self.shown.plan = self._possible
        self.phase = Phase.READY
        self._draw()

    def failed(self, sentence: str) -> None:
        self._say(Phase.FAILED, sentence)

    def engine_lost(self, sentence: str) -> None:
        words = sentence.replace("The engine", "The estimator")
        self._say(Phase.LOST, f"{words}\nr starts it again.")
