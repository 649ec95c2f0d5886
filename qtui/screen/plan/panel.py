"""A panel with a model, a plan, a GPU and their estimate: the base of the panels with the form."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from textual import on
from textual.widget import Widget
from textual.widgets import Input

from qtui.engine.estimator.answers import Answer, Assessment, MapCell
from qtui.screen.panel.asking import OPENING, AskingPanel, AskingPhase
from qtui.screen.panel.keys import moved
from qtui.screen.plan.body import PlanBody
from qtui.screen.plan.command import plan_words
from qtui.screen.plan.devices import gpu_picking
from qtui.screen.plan.feed import MemoryFeed
from qtui.screen.plan.fields import (
    change_words,
    changed,
    difference,
    enter_word,
    form_fields,
    label_of,
    option_at,
    resolved,
    stepped,
    value_text,
)
from qtui.screen.plan.form import PlanForm
from qtui.screen.plan.history import Choice, History
from qtui.screen.plan.shown import GpuChoice, Shown, as_it_is, catalogue
from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import find_device
from qtui_core.memory.plan.run_plan import RunPlan, resolve_for
from qtui_core.models.quoting import printable
from qtui_core.quantities import parse_memory

#: Seconds until the whole estimate is requested: while a key is held down, only the last plan
#: counts.
PAUSE_SECONDS = 0.12
ESTIMATE = "estimate"


class PlanPanel(AskingPanel):
    """Requests the estimate of the current choice, and shows its progress. The choice belongs to
    the app: another panel with a plan starts with it."""

    ENGINE = "estimator"
    RUNS: ClassVar[bool] = False  # whether it runs the plan, on a CPU where there is no GPU

    body: PlanBody

    def on_mount(self) -> None:
        self.feed = MemoryFeed(self.engine)
        self.shown = Shown(self.qtui.model, gpus=catalogue(), on_cpu=self.RUNS)
        self._possible: RunPlan | None = None
        """The last plan that was estimated; it replaces a plan that proves impossible."""
        self._of_case: History[Choice] = History()
        self._undone = ""  # what the last key undid or did again, until the next change
        self._asked_live = False

    # The plan of the app

    def _choose(self) -> None:
        """The choice made here applies to the other panels, unless it is the plan of a worked
        case."""
        if not self.shown.case:
            self.qtui.chosen = (self.shown.plan, self.shown.gpu)

    def _adopt(self) -> bool:
        """Adopts the choice of another panel; returns whether it differs."""
        shown = self.shown
        chosen = self.qtui.chosen or (RunPlan(), shown.gpu)
        if shown.case or chosen == (shown.plan, shown.gpu):
            return False
        self._undone = ""
        shown.plan, shown.gpu = chosen
        shown.before, shown.change, shown.gpu_change = None, "", ""
        return True

    def activate(self) -> None:
        if self._adopt() and self.known:
            self._estimate()

    def maximise_target(self) -> Widget | None:
        return self.body.main

    # Opening

    def open_model(self, model: str) -> None:
        """Opens another model; the plan and the GPU stay."""
        before = self.shown
        self.feed.answers.clear()
        self.shown = Shown(
            model, plan=before.plan, gpu=before.gpu, gpus=before.gpus, live=before.live,
            knob=before.knob, cases=before.cases, figures=before.figures, cell=before.cell,
            on_cpu=before.on_cpu,
        )  # fmt: skip
        self._adopt()
        self._open_subject()

    def _open_subject(self) -> None:
        self.give_up(ESTIMATE)
        self.refusal = ""
        self._possible = None
        self.shown.facts = None
        self.shown.forget()
        self.say(AskingPhase.OPENING, f"Opening {printable(self.shown.case or self.shown.model)}")
        self.ask(self._open, OPENING)

    async def _open(self) -> None:
        shown = self.shown
        shown.facts = await self.feed.open(shown)
        if not self._asked_live:
            shown.live = await self.feed.live()
            self._asked_live = True
            shown.gpus = (*shown.live, *shown.gpus)
            shown.on_cpu = self.RUNS and not shown.live
            if shown.live and shown.gpu is None and self.qtui.chosen is None:
                shown.gpu = shown.live[0]
            shown.gpu = as_it_is(shown.gpu, shown.live)
            if self.qtui.chosen is not None:
                self._choose()
        self._estimate()

    # Estimating

    def _estimate(self) -> None:
        """Requests an estimate after the plan, the GPU or the subject changed."""
        self.ask(self._work, ESTIMATE)
        self.phase = AskingPhase.WORKING
        self.draw_form()
        self.body.title_line.activity = "estimating"

    async def _work(self) -> None:
        shown = self.shown
        found = self.feed.known(shown)
        if found is None:
            self.take(await self.feed.first(shown))
            await asyncio.sleep(PAUSE_SECONDS)
            found = await self.feed.full(shown)
        self.take(found)
        self.take_around(await self.feed.around(shown))

    def take_around(self, around: Assessment) -> None:
        """Takes what surrounds the answer, which completes it."""
        self.shown.around = around
        self.phase = AskingPhase.READY
        self.draw()
        self.fill_views()

    def take(self, answer: Answer) -> None:
        """Takes an answer to the current question."""
        shown = self.shown
        if answer.stage == "first" or not shown.current:
            shown.around = None
        shown.answer, shown.answered = answer, shown.asked
        self._possible = shown.plan
        if shown.before is not None:
            of_plan = difference(shown.before.plan, answer.plan)
            shown.change = ", ".join(filter(None, (shown.gpu_change, of_plan)))
        self.draw()

    def fill_views(self) -> None:
        """Called when the estimate is known: requests what only some views show."""

    # Showing

    def draw_form(self) -> None:
        shown = self.shown
        fields = form_fields(shown)
        shown.knob = max(0, min(shown.knob, len(fields) - 1))
        self.body.form.show(fields, shown.knob)

    def show_phase(self) -> None:
        """Shows what is being computed, or why nothing is, in place of the picture."""
        if self.trouble:
            self.shown.forget()
        self.draw()
        if self.phase is AskingPhase.OPENING:
            self.sentence = self.status

    def begin_again(self) -> None:
        if self.known:
            self._estimate()
        else:
            self._open_subject()

    @property
    def known(self) -> bool:
        """Whether it is known what is estimated."""
        return self.shown.facts is not None

    def refused(self, sentence: str) -> None:
        """Goes back to the previous plan, as this one is impossible. Without a previous one, the
        user has to change the form."""
        if self._possible is None:
            self.failed(sentence)
            self.refusal = sentence
            self.speak()
            return
        self.refusal = sentence
        self.shown.plan, self.shown.as_long = self._possible, False
        self.history.refused((self.shown.plan, self.shown.gpu))
        self._choose()
        self.phase = AskingPhase.READY
        self.draw()

    # Choosing a field

    def _choose_field(self, by: int) -> None:
        """Moves to another field of the form, `by` lines down."""
        self.refusal = ""
        self.shown.knob = moved(self.shown.knob, by, len(form_fields(self.shown)))
        self.draw_form()
        self.speak()
        self.refresh_bindings()  # the word for Enter

    @on(PlanForm.FieldClicked)
    def _clicked(self, message: PlanForm.FieldClicked) -> None:
        message.choose(self)

    # Changing the plan

    def action_turn(self, by: int) -> None:
        option = option_at(self.shown, self.shown.knob)
        if option is None:
            self.action_gpu(by)
            return
        # Of a packed checkpoint LoRA runs as QLoRA; the next method is that after the chosen one.
        plan = self.shown.plan if option.name == "method" else resolved(self.shown)
        after = stepped(option, value := getattr(plan, option.name), by)
        if after == value:
            end = "last" if by > 0 else "first"
            more = ": Enter types another" if option.typed else ""
            self.tell(f"{value_text(value)} is the {end} value of {label_of(option)} here{more}.")
            return
        self._set(option.name, after)

    def action_usual(self) -> None:
        option = option_at(self.shown, self.shown.knob)
        if option is None:
            self.choose_gpu(None)
        else:
            self._set(option.name, option.default)

    def _set(self, field: str, value: Any) -> bool:
        """Sets a field; returns whether the plan is possible with the value."""
        plan = changed(self.shown.plan, field, value)
        try:
            resolve_for(self.shown.facts.stored if self.shown.facts else None, plan)
        except UsageError as error:
            self.tell(str(error))
            return False
        self.change(plan, self.shown.gpu, as_long=field == "sequence")
        return True

    def change(
        self, plan: RunPlan, gpu: GpuChoice | None, *, remember: bool = True, as_long: bool = False
    ) -> None:
        """Takes another plan or GPU. `remember`: it can be undone; `as_long`: its sequence length
        was chosen, even if it is the usual one."""
        shown = self.shown
        as_long = as_long or (remember and shown.as_long)
        if (plan, gpu, as_long) == (shown.plan, shown.gpu, shown.as_long):
            return
        self._undone = ""
        if remember:
            self.history.record((shown.plan, shown.gpu))
        answer = shown.answer
        if answer and shown.current and (answer.stage == "full" or shown.before is None):
            # Quick changes are reported together: only the answer before them is known at every
            # level.
            shown.before, shown.before_gpu = answer, shown.gpu
        shown.change = shown.gpu_change = ""
        if gpu != shown.before_gpu:
            names = [each.label if each else "any" for each in (shown.before_gpu, gpu)]
            shown.gpu_change = f"GPU {' → '.join(names)}"
        shown.plan, shown.gpu, shown.as_long = plan, gpu, as_long
        self._choose()
        self.qtui.plan_of = shown.model
        self.refusal = ""
        if shown.facts is None:
            self.draw()  # draws the form; there is nothing to estimate
        else:
            self._estimate()

    @property
    def history(self) -> History[Choice]:
        """The changes of the plan that the panels share, or of that of a worked case."""
        return self._of_case if self.shown.case else self.qtui.history

    def action_undo(self) -> None:
        self._go_to(self.history.undo((self.shown.plan, self.shown.gpu)), "Undone", back=True)

    def action_redo(self) -> None:
        self._go_to(self.history.redo((self.shown.plan, self.shown.gpu)), "Done again")

    def _go_to(self, choice: Choice | None, verb: str, *, back: bool = False) -> None:
        """Goes to a choice of the history, and says which change that undid or did again."""
        if choice is None:
            return
        shown = self.shown
        ends = [(resolved(shown), shown.gpu)]
        self.change(*choice, remember=False)
        ends.append((resolved(shown), shown.gpu))
        self._undone = f"{verb}: {change_words(*(reversed(ends) if back else ends))}."
        self.speak()

    def speak(self) -> None:
        super().speak()
        if not self.refusal:
            self.sentence = f"{self._undone or self._of_another} {self.sentence}".strip()

    @property
    def _of_another(self) -> str:
        """That the plan is not the usual one, and was made for another model."""
        shown, made_for = self.shown, self.qtui.plan_of
        words = " ".join(plan_words(shown.plan))
        if shown.case or not words or made_for == shown.model:
            return ""
        return f"The plan was made for {printable(made_for) or 'another model'}: `{words}`."

    def tell(self, sentence: str) -> None:
        """Shows why nothing was changed."""
        self.refusal = sentence
        self.draw()

    async def largest(self, batches: Sequence[int]) -> int:
        """The largest of some batches, in order, with which the plan fits the GPU; 0 if none
        does."""
        fitting = 0

        def on_cell(cell: MapCell) -> None:
            nonlocal fitting
            if cell.verdict == "fits":
                fitting = max(fitting, cell.batch)

        await self.feed.map(self.shown, on_cell, batches, (self.shown.wanted.sequence,))
        return fitting

    # The GPU

    def action_gpu(self, by: int) -> None:
        choices: list[GpuChoice | None] = [None, *self.shown.gpus]
        at = choices.index(self.shown.gpu) if self.shown.gpu in choices else 0
        self.choose_gpu(choices[(at + by) % len(choices)])

    async def action_device(self) -> None:
        choices = (None, *self.shown.gpus)

        def taken(picked: int | str) -> None:
            self.choose_gpu(self._gpu_of(picked) if isinstance(picked, str) else choices[picked])

        await self.pick(gpu_picking(self.shown, self._gpu_of), taken)

    def choose_gpu(self, gpu: GpuChoice | None) -> None:
        self.change(self.shown.plan, gpu)

    def _gpu_of(self, text: str) -> GpuChoice | None:
        """A GPU by name, or one with the given memory. Raises UsageError for neither."""
        if text.strip().lower() in ("", "any", "none"):
            return None
        live = next((each for each in self.shown.live if text.lower() in each.label.lower()), None)
        if live is not None:
            return live
        if re.fullmatch(r"[\d.]+\s*[kmgt]i?b?", text.strip().lower()):
            return GpuChoice.of_memory(parse_memory(text))
        return GpuChoice.of(find_device(text))

    def key_word(self, action: str) -> str:
        return enter_word(self.shown) if action == "enter" else ""

    def _enter_field(self) -> None:
        """Opens the field to type a value, or takes the next value."""
        option = option_at(self.shown, self.shown.knob)
        if option is None:
            self.body.start_typing("GPU: a name, or its memory as in 24GiB", "")
        elif option.typed:
            value = value_text(getattr(resolved(self.shown), option.name))
            self.body.start_typing(label_of(option), value)
        else:
            self.action_turn(1)

    @on(Input.Submitted, "#plan-field")
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        self._take_typed(event.value)

    def _take_typed(self, text: str) -> None:
        """Takes the typed value if it is valid; otherwise leaves it to be corrected."""
        option = option_at(self.shown, self.shown.knob)
        taken = True
        try:
            if option is None:
                self.choose_gpu(self._gpu_of(text))
            elif option.typed and option.read is not None:
                taken = self._set(option.name, option.read(text))
        except UsageError as error:
            self.tell(str(error))
            return
        if taken:
            self.body.stop_typing()
