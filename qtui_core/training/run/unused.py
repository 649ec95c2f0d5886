"""What of a plan changes nothing in a run, so that nobody takes it for measured."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from qtui_core.memory.plan.choices import ALL_LINEAR
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.plan.text import OPTIONS

_OF_ADAPTERS = ("--lora-rank", "--lora-targets", "--lora-dropout", "--adapter-dtype")
_OF_TRAINING = (
    "--optimizer",
    "--checkpointing",
    "--reentrant",
    "--accumulation",
    "--loop",
    "--loss",
)


def without_effect(asked: RunPlan, runs: RunPlan, device_type: str) -> str:
    """A sentence on the options that were given, other than by default, and change nothing; ""
    where there are none.

    Args:
        asked: the plan as it was given, with what was left open.
        runs: the same with nothing left open, for the torch that is installed.
        device_type: "cpu" or "cuda".
    """
    told = [
        f"{', '.join(given)} ({why})"
        for options, why in _reasons(asked, runs, device_type)
        if (given := [option for option in options if _given(option, asked)])
    ]
    return f"Without effect in this run: {'; '.join(told)}." if told else ""


def targets_without_modules(plan: RunPlan, modules: Collection[str]) -> str:
    """A sentence on the names among the targets of adapters that no module has, by the full names
    of all; "" where there are none."""
    lacking = [
        target
        for target in plan.lora_targets
        if target != ALL_LINEAR and not any(f".{name}".endswith(f".{target}") for name in modules)
    ]
    return f"No module is named {', '.join(lacking)}; no adapter is there." if lacking else ""


def _given(option: str, asked: RunPlan) -> bool:
    field = OPTIONS[option]
    return bool(getattr(asked, field) != getattr(RunPlan(), field))


def _reasons(
    asked: RunPlan, runs: RunPlan, device_type: str
) -> Iterator[tuple[tuple[str, ...], str]]:
    """(options, why they are without effect)."""
    if not runs.adapts:
        yield _OF_ADAPTERS, "there are no adapters"
    if not runs.four_bits:
        yield ("--quant-storage",), "no weights are packed into 4 bits"
    if runs.trains:
        yield ("--generate",), "a step of training generates nothing"
        if not runs.checkpointing:
            yield ("--reentrant",), "there are no checkpoints"
    else:
        yield _OF_TRAINING, "nothing is trained"
    if not runs.autocast:
        yield ("--autocast-dtype",), "there is no autocast"
    if device_type == "cpu":
        yield ("--segments",), "a CPU has no allocator with segments"
    if asked.torch != runs.torch:
        yield ("--torch",), f"torch {runs.torch} is installed and runs"
