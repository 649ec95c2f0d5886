"""The plan as the lines of the form."""

from __future__ import annotations

from dataclasses import fields

from qtui.screen.plan.form import FormField
from qtui.screen.plan.knobs import Knob, shown_knobs
from qtui.screen.plan.shown import Shown
from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan, resolve

GPU = "gpu"
_USUAL = {field.name: field.default for field in fields(RunPlan)}


def resolved(shown: Shown) -> RunPlan:
    """The plan with nothing left open, as far as it can be."""
    try:
        facts = shown.facts
        return resolve(
            shown.plan, facts.dtype if facts else None, facts.packed_as if facts else None
        )
    except UsageError:
        return shown.plan


def form_fields(shown: Shown) -> list[FormField]:
    """The lines of the form: the knobs that mean anything now, and the GPU."""
    plan = resolved(shown)
    found: list[FormField] = []
    for knob in shown_knobs(plan):
        if knob.group == "machine" and not any(each.key == GPU for each in found):
            found.append(_gpu_field(shown))
        chosen = getattr(shown.plan, knob.field) != _USUAL[knob.field]
        value = knob.text(getattr(plan, knob.field))
        found.append(FormField(knob.field, knob.label, knob.group, value, chosen))
    return found


def _gpu_field(shown: Shown) -> FormField:
    gpu = shown.gpu
    return FormField(GPU, "GPU", "machine", gpu.label if gpu else "any", gpu is not None)


def knob_at(shown: Shown, index: int) -> Knob | None:
    """The knob of a line; None for the GPU."""
    lines = form_fields(shown)
    key = lines[max(0, min(index, len(lines) - 1))].key
    return next((knob for knob in shown_knobs(resolved(shown)) if knob.field == key), None)
