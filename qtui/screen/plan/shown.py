"""The current state of a panel with a plan: the model, the plan, the estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from qtui.engine.estimator.answers import Answer, Assessment, MapCell, ModelFacts
from qtui_core.dataclass import dataclass
from qtui_core.memory.advice.cases import Figure, WorkedCase
from qtui_core.memory.devices.device import DEVICES, Device, device_of_memory
from qtui_core.memory.plan.run_plan import RunPlan, within_positions
from qtui_core.quantities import format_bytes
from qtui_core.telemetry.readings import DeviceReading
from qtui_core.training.run.request import DEMO_NOTE, DEMO_TOKENS, on_cpu

#: The tokens of a sequence where nobody chose a length.
USUAL_TOKENS = RunPlan().sequence
#: Batches and sequences of the map.
MAP_BATCHES = (1, 2, 4, 8, 16, 32, 64)
MAP_SEQUENCES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True)
class GpuChoice:
    """A GPU that can be chosen: its text on the screen, and its parameter in requests."""

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
    def live(cls, device: DeviceReading) -> GpuChoice | None:
        """A GPU of this machine with its free memory; None if the memory is unknown."""
        if device.memory_total is None:
            return None
        used = device.memory_used or 0
        name = (device.name or "GPU").removeprefix("NVIDIA ")
        label = f"{name} (here)" if device.label == "0" else f"{name} (here, {device.label})"
        params = {"name": device.name, "capacity": device.memory_total - used, "label": label}
        note = f"{format_bytes(used)} of {format_bytes(device.memory_total)} in use"
        return cls(label, params, note)


def as_it_is(gpu: GpuChoice | None, live: Sequence[GpuChoice]) -> GpuChoice | None:
    """The GPU of the last session today: the memory of one of this machine has changed, and None
    stands for one of another machine."""
    if gpu is None or "label" not in gpu.params:
        return gpu
    return next((each for each in live if each.label == gpu.label), None)


def catalogue() -> tuple[GpuChoice, ...]:
    """The known GPUs, the smallest first."""
    return tuple(
        GpuChoice.of(device) for device in sorted(DEVICES, key=lambda each: each.capacity_bytes)
    )


@dataclass
class Shown:
    """The state is filled piece by piece; None or empty means not known yet.

    `plan` is what was asked for, where None means the usual value; `as_long` says that even the
    usual sequence length was asked for, and `on_cpu` that a CPU would run it. `answer` belongs to
    `answered`, which differs from `asked` while that is being estimated. `before` is the last whole
    estimate before the changes in `change` (`gpu_change`: the part of the change that is not in the
    plan). `around` goes with a full answer. `figures` are those of the `cases` that have been
    computed, by key.
    """

    model: str
    facts: ModelFacts | None = None
    case: str = ""
    plan: RunPlan = field(default_factory=RunPlan)
    as_long: bool = False
    on_cpu: bool = False
    gpu: GpuChoice | None = None
    gpus: tuple[GpuChoice, ...] = ()
    live: tuple[GpuChoice, ...] = ()
    answer: Answer | None = None
    answered: tuple[Any, ...] = ()
    before: Answer | None = None
    before_gpu: GpuChoice | None = None
    change: str = ""
    gpu_change: str = ""
    around: Assessment | None = None
    cells: dict[tuple[int, int], MapCell] = field(default_factory=dict)
    cells_of: tuple[Any, ...] = ()
    cases: tuple[WorkedCase, ...] = ()
    figures: Mapping[str, tuple[Figure, ...]] = field(default_factory=dict)
    knob: int = 1
    line: int = 0
    cell: tuple[int, int] = (0, 3)

    @property
    def asked(self) -> tuple[Any, ...]:
        """What the answer should be about."""
        return (self.subject, self.wanted, self.gpu and self.gpu.label)

    @property
    def wanted(self) -> RunPlan:
        """The plan that is estimated and run here. A sequence length that nobody chose is no longer
        than the model's learned positions, and short for a run of the demo on a CPU; the plan that
        the panels share stays as it is."""
        if self.facts is None or self.case or self.as_long or self.plan.sequence != USUAL_TOKENS:
            return self.plan
        plan = within_positions(self.facts.learned_positions, self.plan)
        return on_cpu(self.model, plan) if self.on_cpu else plan

    @property
    def subject(self) -> tuple[str, str]:
        return (self.model, self.case)

    @property
    def current(self) -> bool:
        """Whether the answer is about the current question."""
        return self.answer is not None and self.answered == self.asked

    @property
    def remark(self) -> str:
        """That a run of the demo takes few tokens on a CPU, while it does."""
        return DEMO_NOTE if self.wanted.sequence == DEMO_TOKENS < self.plan.sequence else ""

    @property
    def mapped(self) -> tuple[Any, ...]:
        """What the map is about; batch and sequence are its axes."""
        subject, plan, gpu = self.asked
        return (subject, replace(plan, batch=1, sequence=1), gpu)

    def line_of(self, count: int) -> int:
        """The current line of a list with `count` lines, which may have become shorter."""
        return max(0, min(self.line, count - 1))

    def forget(self) -> None:
        """Drops everything that is known."""
        self.answer = self.before = self.around = None
        self.answered, self.change, self.gpu_change = (), "", ""
        self.cells, self.cells_of = {}, ()
