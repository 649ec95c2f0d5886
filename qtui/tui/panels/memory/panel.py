"""Panel 4: where the memory of a training step goes, before it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from qtui.engine.client import EngineState
from qtui.tui.panels.base import PaletteEntry
from qtui.tui.panels.memory.body import MemoryBody
from qtui.tui.panels.memory.estimating import ESTIMATE, EstimatingPanel
from qtui.tui.panels.memory.export import curve_table, panel_data
from qtui.tui.panels.memory.fields import form_fields, knob_at, resolved
from qtui.tui.panels.memory.form import PlanForm
from qtui.tui.panels.memory.keys import HELP, MEMORY_BINDINGS
from qtui.tui.panels.memory.knobs import changed
from qtui.tui.panels.memory.shown import (
    MAP_BATCHES,
    MAP_SEQUENCES,
    GpuChoice,
    ViewName,
)
from qtui.tui.panels.quantize.shown import Phase
from qtui.tui.panels.quantize.views import ViewTabs
from qtui_core.errors import UsageError
from qtui_core.memory.devices import find_device, parse_memory
from qtui_core.memory.plan import RunPlan, resolve

#: Views with lines, or cells, to choose from.
LISTS = (ViewName.SAVINGS, ViewName.MAP, ViewName.GPUS, ViewName.CASES)
#: Changes that can be taken back.
REMEMBERED = 100


class MemoryPanel(EstimatingPanel):
    """The keys, and what they change."""

    PANEL_ID = "memory"
    TITLE = "Memory"
    NUMBER = 4
    HELP = HELP
    BINDINGS: ClassVar[list[BindingType]] = MEMORY_BINDINGS

    # What the shell asks for

    def activate(self) -> None:
        self._focus_view()

    def maximise_target(self) -> Widget | None:
        return self.body.main

    def drawing_changed(self) -> None:
        self.body.redraw()

    def copy_text(self) -> str | None:
        if self.shown.answer is None:
            return None
        title, _ = self.body.title_line.subject, self.body.title_line.details
        picture = self.body.curve if self.body.main is self.body.curve else self.body.picture
        return f"{title}\n{self.body.levels.text}\n\n{picture.text}\n\n{self.sentence}"

    def export_data(self) -> dict[str, Any] | None:
        return panel_data(self.shown, self.sentence)

    def export_table(self) -> Iterable[Sequence[object]] | None:
        shown = self.shown
        return curve_table(shown.answer) if shown.answer is not None and shown.current else None

    def palette(self) -> Iterable[PaletteEntry]:
        if self.engine.state is EngineState.RUNNING:
            yield PaletteEntry("estimator: Stop", "End its process at once", self.engine.kill)

    # Views

    def action_view(self, by: int) -> None:
        views = list(ViewName)
        self._show_view(views[(views.index(self.shown.view) + by) % len(views)])

    @on(ViewTabs.Clicked)
    def _tab_clicked(self, message: ViewTabs.Clicked) -> None:
        message.stop()
        self._show_view(list(ViewName)[message.index])

    def _show_view(self, view: ViewName) -> None:
        self.shown.view, self.shown.line = view, 0
        if view is ViewName.MAP:
            plan = self.shown.plan
            self.shown.cell = (
                _nearest(MAP_BATCHES, plan.batch), _nearest(MAP_SEQUENCES, plan.sequence)
            )  # fmt: skip
        self.refusal = ""
        self._fill_views()
        self._draw()
        self._focus_view()

    def _focus_view(self) -> None:
        if self.shown.view in LISTS:
            self.body.focus_picture()
        else:
            self.body.focus_form()

    @property
    def _in_list(self) -> bool:
        return self.shown.view in LISTS and self.body.picture.has_focus

    # Moving about

    def action_move(self, by: int) -> None:
        shown = self.shown
        self.refusal = ""
        if not self._in_list:
            if not self.body.has_form:
                return
            shown.knob = (shown.knob + by) % len(form_fields(shown))
            self._draw_form()
            self._draw_sentence()
            return
        if shown.view is ViewName.MAP:
            row, column = shown.cell
            shown.cell = (max(0, min(row + by, len(MAP_BATCHES) - 1)), column)
        else:
            shown.line = max(0, min(shown.line + by, self._lines - 1))
        self._draw()

    @property
    def _lines(self) -> int:
        shown, around = self.shown, self.shown.around
        if shown.view is ViewName.CASES:
            return len(shown.cases)
        if around is None:
            return 1
        return max(1, len(around.advice if shown.view is ViewName.SAVINGS else around.fits))

    @on(PlanForm.Clicked)
    def _clicked(self, message: PlanForm.Clicked) -> None:
        message.stop()
        self.shown.knob = message.index
        self.body.focus_form()
        if message.again:
            self.action_turn(1)
        self._draw()

    # Changing the plan

    def action_step(self, by: int) -> None:
        if self._in_list and self.shown.view is ViewName.MAP:
            row, column = self.shown.cell
            self.shown.cell = (row, max(0, min(column + by, len(MAP_SEQUENCES) - 1)))
            self._draw()
        else:
            self.action_turn(by)

    def action_turn(self, by: int) -> None:
        knob = knob_at(self.shown, self.shown.knob)
        if knob is None:
            self.action_gpu(by)
            return
        value = getattr(resolved(self.shown), knob.field)
        stepped = knob.stepped(value, by)
        if stepped == value:
            end = "last" if by > 0 else "first"
            more = ": Enter types another" if knob.parse is not None else ""
            self._tell(f"{knob.text(value)} is the {end} value of {knob.label} here{more}.")
            return
        self._set(knob.field, stepped)

    def action_usual(self) -> None:
        knob = knob_at(self.shown, self.shown.knob)
        if knob is None:
            self._choose_gpu(None)
        else:
            usual = next(f.default for f in fields(RunPlan) if f.name == knob.field)
            self._set(knob.field, usual)

    def _set(self, field: str, value: Any) -> None:
        """Another value of a field, if the plan can be with it."""
        plan = changed(self.shown.plan, field, value)
        facts = self.shown.facts
        try:
            resolve(plan, facts.dtype if facts else None)
        except UsageError as error:
            self._tell(str(error))
            return
        self._change(plan, self.shown.gpu)

    def _change(self, plan: RunPlan, gpu: GpuChoice | None, *, remember: bool = True) -> None:
        shown = self.shown
        if (plan, gpu) == (shown.plan, shown.gpu):
            return
        if remember:
            self._past = [*self._past[-REMEMBERED:], (shown.plan, shown.gpu)]
        if shown.current:
            shown.before, shown.change, shown.gpu_change = shown.answer, "", ""
        if gpu != shown.gpu:
            names = [each.label if each else "any" for each in (shown.gpu, gpu)]
            shown.gpu_change = f"GPU {' → '.join(names)}"
        shown.plan, shown.gpu = plan, gpu
        self.refusal = ""
        if shown.facts is None or shown.facts.unknown:
            self._draw()  # the form; there is nothing to estimate
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

    # Typing, and what else Enter does

    def action_enter(self) -> None:
        if self._in_list:
            self._enter_line()
            return
        knob = knob_at(self.shown, self.shown.knob)
        if knob is None:
            self.body.start_typing("GPU: a name, or its memory as in 24GiB", "")
        elif knob.parse is None:
            self.action_turn(1)
        else:
            value = knob.text(getattr(resolved(self.shown), knob.field))
            self.body.start_typing(knob.label, value)

    @on(MemoryBody.Typed)
    def _typed(self, message: MemoryBody.Typed) -> None:
        message.stop()
        knob = knob_at(self.shown, self.shown.knob)
        try:
            if knob is None:
                gpu = self._gpu_of(message.text)
            elif knob.parse is not None:
                value = knob.parse(message.text)
        except UsageError as error:
            self._tell(str(error))
            return
        self.body.stop_typing()
        if knob is None:
            self._choose_gpu(gpu)
        else:
            self._set(knob.field, value)

    def _enter_line(self) -> None:
        """Take what the cursor is on."""
        shown, around = self.shown, self.shown.around
        if shown.view is ViewName.CASES:
            self._open_case(shown.cases[shown.line].key if shown.cases else "")
        elif shown.view is ViewName.MAP:
            row, column = shown.cell
            batch, length = MAP_BATCHES[row], MAP_SEQUENCES[column]
            self._change(replace(shown.plan, batch=batch, sequence=length), shown.gpu)
        elif around is None or shown.answer is None:
            return
        elif shown.view is ViewName.GPUS and around.fits:
            name = around.fits[shown.line].gpu
            choice = next((each for each in shown.gpus if each.label == name), shown.gpu)
            self._choose_gpu(choice)
        elif around.advice:
            advised, now = around.advice[shown.line].plan, shown.answer.plan
            changes = {
                field.name: getattr(advised, field.name)
                for field in fields(RunPlan)
                if getattr(advised, field.name) != getattr(now, field.name)
            }
            self._change(replace(shown.plan, **changes), shown.gpu)

    # Worked cases, traces, and starting again

    def _open_case(self, key: str) -> None:
        case = next((each for each in self.shown.cases if each.key == key), None)
        if case is None:
            return
        if not self.shown.case:
            self._own_plan = self.shown.plan
        self.shown.case, self.shown.plan = key, case.plan
        self._past.clear()
        self.shown.view = ViewName.STEP
        self._open_subject()
        self._focus_view()

    def action_own(self) -> None:
        self.shown.case, self.shown.plan = "", self._own_plan
        self._past.clear()
        self._open_subject()

    def action_trace(self) -> None:
        self.do(self._trace, ESTIMATE)

    def action_restart(self) -> None:
        if self.shown.facts is None or self.shown.facts.unknown:
            self._open_subject()
        else:
            self._estimate()

    def action_back(self) -> None:
        if self.body.typing:
            self.body.stop_typing()
        else:
            self.body.focus_form()
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can be done now is offered."""
        if not self.is_mounted:
            return True
        if action == "back":
            return self.body.typing or self._in_list
        if self.body.typing:
            return False
        if action == "restart":
            return self.phase in (Phase.LOST, Phase.FAILED)
        if action == "own":
            return bool(self.shown.case)
        if action == "undo":
            return bool(self._past)
        if action == "trace":
            facts = self.shown.facts
            return facts is not None and self.phase in (Phase.READY, Phase.FAILED)
        return True

    def watch_phase(self) -> None:
        self.refresh_bindings()


def _nearest(values: Sequence[int], value: int) -> int:
    """The place of the largest that is not above it."""
    return max((at for at, each in enumerate(values) if each <= value), default=0)
