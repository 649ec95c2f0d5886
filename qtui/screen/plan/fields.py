"""The plan as lines of the form: which options are shown, and how keys change them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from qtui.screen.plan.form import FormField
from qtui.screen.plan.history import Choice
from qtui.screen.plan.shown import Shown
from qtui_core.errors import UsageError
from qtui_core.memory.plan.options import PlanOption, RunPlan, grouped_options, options_of
from qtui_core.memory.plan.run_plan import resolve_for

GPU = "gpu"


def form_options(plan: RunPlan) -> Iterator[PlanOption]:
    """The options that have a line, in order, whether or not they matter now."""
    for options in grouped_options(type(plan)).values():
        yield from (option for option in options if option.steps)


def shown_options(plan: RunPlan) -> tuple[PlanOption, ...]:
    """The options that matter in a plan in which every option has a value."""
    return tuple(option for option in form_options(plan) if option.counts(plan))


def label_of(option: PlanOption) -> str:
    """The name of an option on the form."""
    return option.label or option.name.replace("_", " ")


def value_text(value: Any) -> str:
    """A value as the form shows it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def stepped(option: PlanOption, value: Any, by: int) -> Any:
    """The next or previous value. After the last name comes the first; the ends of a row of numbers
    stay."""
    steps = option.steps
    if option.kind not in ("whole", "share"):
        at = steps.index(value) if value in steps else -1 if by > 0 else 0
        return steps[(at + by) % len(steps)]
    if by > 0:
        return next((each for each in steps if each > value), value)
    return next((each for each in reversed(steps) if each < value), value)


def changed(plan: RunPlan, name: str, value: Any) -> RunPlan:
    """The plan with another value of an option, and of those that depend on it: a method has its
    own usual numbers, and without other GPUs nothing is sharded."""
    changes: dict[str, Any] = {name: value}
    if name == "method":
        usual = (option.name for option in options_of(type(plan)) if option.default is None)
        changes |= dict.fromkeys(usual)
        if value != "inference":
            changes |= {"generate": 0, "kv_dtype": "auto"}
        if value == "inference" and plan.zero in (1, 2):
            changes["zero"] = 0
    if name == "gpus" and value == 1:
        changes |= {"zero": 0, "tensor_parallel": 1, "pipeline_parallel": 1}
    return replace(plan, **changes)


def difference(before: RunPlan, after: RunPlan) -> str:
    """What was changed, in words: "batch 2 → 4". Every option of both plans has a value."""
    parts = []
    for option in form_options(after):
        old, new = getattr(before, option.name), getattr(after, option.name)
        if old != new:
            parts.append(f"{label_of(option)} {value_text(old)} → {value_text(new)}")
    return ", ".join(parts)


def change_words(before: Choice, after: Choice) -> str:
    """What was changed, the GPU too. Every option of both plans has a value."""
    names = [gpu.label if gpu else "any" for _, gpu in (before, after)]
    of_gpu = f"GPU {' → '.join(names)}" if before[1] != after[1] else ""
    return ", ".join(filter(None, (of_gpu, difference(before[0], after[0]))))


def resolved(shown: Shown) -> RunPlan:
    """The plan with a value for every option, as far as possible."""
    try:
        return resolve_for(shown.facts.stored if shown.facts else None, shown.wanted)
    except UsageError:
        return shown.wanted


def form_fields(shown: Shown) -> list[FormField]:
    """The lines of the form: the options that matter now, and the GPU."""
    plan = resolved(shown)
    found: list[FormField] = []
    for option in shown_options(plan):
        if option.group == "machine" and not any(each.key == GPU for each in found):
            found.append(_gpu_field(shown))
        chosen = getattr(shown.plan, option.name) != option.default
        value = value_text(getattr(plan, option.name))
        found.append(FormField(option.name, label_of(option), option.group, value, chosen))
    return found


def _gpu_field(shown: Shown) -> FormField:
    gpu = shown.gpu
    return FormField(GPU, "GPU", "machine", gpu.label if gpu else "any", gpu is not None)


def option_at(shown: Shown, index: int) -> PlanOption | None:
    """The option of a line; None for the GPU."""
    lines = form_fields(shown)
    key = lines[max(0, min(index, len(lines) - 1))].key
    return next((each for each in shown_options(resolved(shown)) if each.name == key), None)


def enter_word(shown: Shown) -> str:
    """What Enter does on the chosen line of the form: it types a value, or takes the next."""
    option = option_at(shown, shown.knob)
    return "Type" if option is None or option.typed else "Next"
