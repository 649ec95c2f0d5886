"""The command lines of a plan. Only options that differ from their defaults are written."""

from __future__ import annotations

from typing import Final

from qtui.screen.command_line import Command, model_word
from qtui.screen.plan.shown import GpuChoice
from qtui_core.memory.plan.options import RunPlan

#: An amount of memory that is whole in a unit is written in it.
_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("B", 1))


def plan_words(plan: RunPlan) -> tuple[str, ...]:
    """The options of a plan that are not the usual ones."""
    return tuple(RunPlan().change_to(plan).split())


def memory_command(model: str, plan: RunPlan, gpu: GpuChoice | None, *more: str) -> Command:
    """`qtui memory` with the plan and the GPU. Of a GPU of this machine, other programs may use
    some: the command takes what is free now."""
    return ("memory", model_word(model), *plan_words(plan), *_gpu_words(gpu), *more)


def _gpu_words(gpu: GpuChoice | None) -> tuple[str, ...]:
    if gpu is None:
        return ()
    capacity = gpu.params.get("capacity")
    if capacity is None:
        return ("--gpu", gpu.label)
    unit, size = next((unit, size) for unit, size in _UNITS if capacity % size == 0)
    return ("--vram", f"{capacity // size}{unit}")
