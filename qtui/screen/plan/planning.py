"""One model, one plan and one GPU, and their estimate: what panels with the form have in common."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from textual.reactive import reactive

from qtui.engine.client import EngineClient, EngineState
from qtui.engine.estimator.answers import Answer, ModelFacts
from qtui.screen.panel.asking import OPENING, EnginePanel, Phase
from qtui.screen.plan.body import PlanBody
from qtui.screen.plan.feed import MemoryFeed
from qtui.screen.plan.fields import difference, form_fields
from qtui.screen.plan.shown import GpuChoice, Shown, catalogue
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.models.quoting import printable

#: Someone who holds a key down wants the whole estimate of what they stop at.
PAUSE_SECONDS = 0.12
ESTIMATE = "estimate"


class PlanningPanel(EnginePanel):
    """Asks for the estimate of what is chosen, and says what it does in the meantime. What is
    chosen is the app's: another panel with a plan starts with it."""

    ENGINE = "estimator"

    phase: reactive[Phase] = reactive(Phase.OPENING, init=False)
    body: PlanBody

    @property
    def engine(self) -> EngineClient:
        return self.qtui.estimator

    def on_mount(self) -> None:
        self.feed = MemoryFeed(self.engine)
        self.shown = Shown(self.qtui.model, gpus=catalogue())
        self.refusal = ""
        self.trouble = ""
        self._possible: RunPlan | None = None
        """The last plan that was estimated: one that cannot be gives way to it."""
        self._past: list[tuple[RunPlan, GpuChoice | None]] = []
        self._asked_live = False

    # The plan of the app

    def _choose(self) -> None:
        """What is chosen here holds for the other panels; the plan of a worked case does not."""
        if not self.shown.case:
            self.qtui.chosen = (self.shown.plan, self.shown.gpu)

    def _adopt(self) -> bool:
        """Takes what another panel chose; whether that is something else."""
        shown, chosen = self.shown, self.qtui.chosen
        if shown.case or chosen is None or chosen == (shown.plan, shown.gpu):
            return False
        self._past.clear()
        shown.plan, shown.gpu = chosen
        shown.before, shown.change, shown.gpu_change = None, "", ""
        return True

    def activate(self) -> None:
        if self._adopt() and self.shown.facts is not None and not self.shown.facts.unknown:
            self._estimate()

    # Opening

    def open_model(self, model: str) -> None:
        """The app has another model: the plan and the GPU stay."""
        before = self.shown
        self.feed.answers.clear()
        self.shown = Shown(
            model, plan=before.plan, gpu=before.gpu, gpus=before.gpus, live=before.live,
            view=before.view, knob=before.knob, cases=before.cases, figures=before.figures,
            cell=before.cell,
        )  # fmt: skip
        self._adopt()
        self._open_subject()

    def _open_subject(self) -> None:
        self.workers.cancel_group(self, ESTIMATE)
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
            if shown.live and shown.gpu is None and self.qtui.chosen is None:
                shown.gpu = shown.live[0]
        if shown.facts.unknown:
            self._not_built_in(shown.facts)
            return
        longest = shown.facts.max_positions
        if shown.plan == RunPlan() and longest and longest < shown.plan.sequence:
            shown.plan = replace(shown.plan, sequence=longest)
        self._choose()
        self._estimate()

    def _not_built_in(self, facts: ModelFacts) -> None:
        """The family of the model has no shape: only a trace may tell. What is known of the plan
        before stays, to be compared with."""
        self.workers.cancel_group(self, ESTIMATE)
        before, gpu_change = self.shown.before, self.shown.gpu_change
        text = facts.unknown
        if facts.traceable:
            text += "\nt runs that trace here."
            if before is not None:
                text = "The plan is another one than was traced.\nt traces this one."
        self._say(Phase.FAILED, text)
        self.shown.before, self.shown.gpu_change = before, gpu_change

    # Estimating

    def _estimate(self) -> None:
        """The plan, the GPU or the subject is another one."""
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

    def _fill_views(self) -> None:
        """The estimate is there: what only some of the views show may be asked for."""

    # Showing

    def _draw(self) -> None:
        """Everything that is shown, anew."""
        raise NotImplementedError

    def _draw_sentence(self) -> None:
        """The sentence, for what is chosen now."""
        raise NotImplementedError

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
        self._choose()
        self.phase = Phase.READY
        self._draw()

    def failed(self, sentence: str) -> None:
        self._say(Phase.FAILED, sentence)

    def engine_lost(self, sentence: str) -> None:
        self._say(Phase.LOST, f"{self.named(sentence)}\nr starts it again.")
