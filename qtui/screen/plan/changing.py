"""What the keys of the form change: the plan and the GPU."""

from __future__ import annotations

import re
from typing import Any

from textual import on

from qtui.screen.plan.body import PlanBody
from qtui.screen.plan.fields import (
    changed,
    form_fields,
    label_of,
    option_at,
    resolved,
    stepped,
    value_text,
)
from qtui.screen.plan.form import PlanForm
from qtui.screen.plan.planning import PlanningPanel
from qtui.screen.plan.shown import GpuChoice
from qtui_core.errors import UsageError
from qtui_core.memory.devices.finding import find_device, parse_memory
from qtui_core.memory.plan.run_plan import RunPlan, resolve

#: Changes that can be taken back.
REMEMBERED = 100


class ChangingPanel(PlanningPanel):
    """The keys of the form; subclasses bind them."""

    # Choosing a field

    def _choose_field(self, by: int) -> None:
        """The next field, or the one before."""
        self.refusal = ""
        self.shown.knob = (self.shown.knob + by) % len(form_fields(self.shown))
        self._draw_form()
        self._draw_sentence()

    @on(PlanForm.Clicked)
    def _clicked(self, message: PlanForm.Clicked) -> None:
        message.stop()
        self.shown.knob = message.index
        self.body.focus_form()
        if message.again:
            self.action_turn(1)
        self._draw()

    # Changing the plan

    def action_turn(self, by: int) -> None:
        option = option_at(self.shown, self.shown.knob)
        if option is None:
            self.action_gpu(by)
            return
        value = getattr(resolved(self.shown), option.name)
        after = stepped(option, value, by)
        if after == value:
            end = "last" if by > 0 else "first"
            more = ": Enter types another" if option.typed else ""
            name = label_of(option)
            self._tell(f"{value_text(value)} is the {end} value of {name} here{more}.")
            return
        self._set(option.name, after)

    def action_usual(self) -> None:
        option = option_at(self.shown, self.shown.knob)
        if option is None:
            self._choose_gpu(None)
        else:
            self._set(option.name, option.default)

    def _set(self, field: str, value: Any) -> bool:
        """Another value of a field; whether the plan can be with it."""
        plan = changed(self.shown.plan, field, value)
        facts = self.shown.facts
        try:
            resolve(plan, facts.dtype if facts else None, facts.packed_as if facts else None)
        except UsageError as error:
            self._tell(str(error))
            return False
        self._change(plan, self.shown.gpu)
        return True

    def _change(self, plan: RunPlan, gpu: GpuChoice | None, *, remember: bool = True) -> None:
        shown = self.shown
        if (plan, gpu) == (shown.plan, shown.gpu):
            return
        if remember:
            self._past = [*self._past[-REMEMBERED:], (shown.plan, shown.gpu)]
        answer = shown.answer
        if answer and shown.current and (answer.stage == "full" or shown.before is None):
            # Of changes that follow one another quickly, all are told: what was before them is
            # known at every level.
            shown.before, shown.before_gpu = answer, shown.gpu
        shown.change = shown.gpu_change = ""
        if gpu != shown.before_gpu:
            names = [each.label if each else "any" for each in (shown.before_gpu, gpu)]
            shown.gpu_change = f"GPU {' → '.join(names)}"
        shown.plan, shown.gpu = plan, gpu
        self._choose()
        self.refusal = ""
        if shown.facts is None:
            self._draw()  # the form; there is nothing to estimate
        elif shown.facts.unknown:
            self._not_built_in(shown.facts)
        else:
            self._estimate()

    def action_undo(self) -> None:
        if self._past:
            plan, gpu = self._past.pop()
            self._change(plan, gpu, remember=False)

    def _tell(self, sentence: str) -> None:
        """Why nothing was changed, until something else is done."""
        self.refusal = sentence
        self._draw()

    # The GPU

    def action_gpu(self, by: int) -> None:
        choices: list[GpuChoice | None] = [None, *self.shown.gpus]
        at = choices.index(self.shown.gpu) if self.shown.gpu in choices else 0
        self._choose_gpu(choices[(at + by) % len(choices)])

    def _choose_gpu(self, gpu: GpuChoice | None) -> None:
        self._change(self.shown.plan, gpu)

    def _gpu_of(self, text: str) -> GpuChoice | None:
        """A GPU by name, or one with as much memory. Raises UsageError for neither."""
        if text.strip().lower() in ("", "any", "none"):
            return None
        live = next((each for each in self.shown.live if text.lower() in each.label.lower()), None)
        if live is not None:
            return live
        if re.fullmatch(r"[\d.]+\s*[kmgt]i?b?", text.strip().lower()):
            return GpuChoice.of_memory(parse_memory(text))
        return GpuChoice.of(find_device(text))

    # Typing

    def _enter_field(self) -> None:
        """Type a value of the chosen field, or take its next."""
        option = option_at(self.shown, self.shown.knob)
        if option is None:
            self.body.start_typing("GPU: a name, or its memory as in 24GiB", "")
        elif option.typed:
            value = value_text(getattr(resolved(self.shown), option.name))
            self.body.start_typing(label_of(option), value)
        else:
            self.action_turn(1)

    @on(PlanBody.Typed)
    def _typed(self, message: PlanBody.Typed) -> None:
        message.stop()
        self._take_typed(message.text)

    def _take_typed(self, text: str) -> None:
        """A value of the chosen field, if it is one; otherwise it stays to be corrected."""
        option = option_at(self.shown, self.shown.knob)
        taken = True
        try:
            if option is None:
                self._choose_gpu(self._gpu_of(text))
            elif option.typed and option.read is not None:
                taken = self._set(option.name, option.read(text))
        except UsageError as error:
            self._tell(str(error))
            return
        if taken:
            self.body.stop_typing()
