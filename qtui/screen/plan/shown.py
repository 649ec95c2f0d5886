"""What a panel with a plan shows at the moment: the model, the plan, the estimate, the view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Any

from qtui.engine.estimator.answers import Answer, Around, MapCell, ModelFacts
from qtui.report.numbers import format_bytes
from qtui_core.dataclass import dataclass
from qtui_core.memory.advice.claims import Figure, WorkedCase
from qtui_core.memory.devices.finding import DEVICES, Device, device_of_memory
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.telemetry.device import GpuReading as LiveDevice

#: Batches and sequences of the map.
MAP_BATCHES = (1, 2, 4, 8, 16, 32, 64)
MAP_SEQUENCES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class ViewName(StrEnum):
    """The pictures, in the order of the key."""

    STEP = "Step"
    PARTS = "Parts"
    SAVINGS = "Savings"
    MAP = "Map"
    GPUS = "GPUs"
    CASES = "Cases"


@dataclass(frozen=True)
class GpuChoice:
    """A GPU that can be chosen: as it is shown, and as the estimator is asked for it."""

    label: str
    params: Mapping[str, Any]
    note: str = ""

    @classmethod
    def of(cls, device: Device) -> GpuChoice:
        return cls(device.name, {"name": device.name})

    @classmethod
    def of_memory(cls, nbytes: int) -> GpuChoice:
        return cls(device_of_memory(nbytes).name, {"capacity": nbytes})

    @classmethod
    def live(cls, device: LiveDevice) -> GpuChoice | None:
        """A GPU of this machine with what is free on it now; None where it does not say."""
        if device.memory_total is None:
            return None
        used = device.memory_used or 0
        name = (device.name or "GPU").removeprefix("NVIDIA ")
        label = f"{name} (here)" if device.index == 0 else f"{name} (here, {device.index})"
        params = {"name": device.name, "capacity": device.memory_total - used, "label": label}
        note = f"{format_bytes(used)} of {format_bytes(device.memory_total)} in use"
        return cls(label, params, note)


def catalogue() -> tuple[GpuChoice, ...]:
    """The GPUs that are known, the smallest first."""
    return tuple(
        GpuChoice.of(device) for device in sorted(DEVICES, key=lambda each: each.capacity_bytes)
    )


@dataclass
class Shown:
    """Filled piece by piece; None or empty is what is not known yet.

    `plan` is what was asked for, in which None is as usual; `answer` is of `answered`, which is
    not yet `plan` while that is being estimated, and `before` of the plan and the GPU that were
    last estimated as a whole before they were changed, which `change` tells (`gpu_change` what of
    that is no plan). `around` goes with a full answer. `figures` are those of `cases` that are
    computed, by key.
    """

    model: str
    facts: ModelFacts | None = None
    case: str = ""
    plan: RunPlan = field(default_factory=RunPlan)
    gpu: GpuChoice | None = None
    gpus: tuple[GpuChoice, ...] = ()
    live: tuple[GpuChoice, ...] = ()
    answer: Answer | None = None
    answered: tuple[Any, ...] = ()
    before: Answer | None = None
    before_gpu: GpuChoice | None = None
    change: str = ""
    gpu_change: str = ""
    around: Around | None = None
    cells: dict[tuple[int, int], MapCell] = field(default_factory=dict)
    cells_of: tuple[Any, ...] = ()
    cases: tuple[WorkedCase, ...] = ()
    figures: Mapping[str, tuple[Figure, ...]] = field(default_factory=dict)
    view: ViewName = ViewName.STEP
    knob: int = 1
    line: int = 0
    cell: tuple[int, int] = (0, 3)

    @property
    def asked(self) -> tuple[Any, ...]:
        """What the answer is to be of."""
        return (self.subject, self.plan, self.gpu and self.gpu.label)

    @property
    def subject(self) -> tuple[str, str]:
        return (self.model, self.case)

    @property
    def current(self) -> bool:
        """Whether what is known is of what was asked for."""
        return self.answer is not None and self.answered == self.asked

    @property
    def mapped(self) -> tuple[Any, ...]:
        """What the map is of: batch and sequence are its own."""
        return (self.subject, replace(self.plan, batch=1, sequence=1), self.gpu and self.gpu.label)

    def line_of(self, count: int) -> int:
        """The chosen line of a list of so many, which may have become shorter since."""
        return max(0, min(self.line, count - 1))

    def forget(self) -> None:
        """What is known is of no use any more."""
        self.answer = self.before = self.around = None
        self.answered, self.change, self.gpu_change = (), "", ""
        self.cells, self.cells_of = {}, ()
