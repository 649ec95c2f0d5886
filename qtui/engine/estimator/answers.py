"""What the estimator answers: made in its process, drawn in that of the screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from qtui_core.dataclass import dataclass
from qtui_core.memory.advice.capacity import Fit, Verdict
from qtui_core.memory.advice.changes import Advice, Cure
from qtui_core.memory.advice.claims import Figure
from qtui_core.memory.compute.operation import Operation
from qtui_core.memory.devices.rates import DeviceFacts, MeasuredRate
from qtui_core.memory.estimate import PhaseBytes
from qtui_core.memory.formulas.terms import Term
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.groups import StackedCurve
from qtui_core.telemetry.readings import DeviceReading

#: How much is known: a first answer without the allocator, or all of it.
Stage = Literal["first", "full"]


@dataclass(frozen=True)
class ModelFacts:
    """A model. `dtype` is that of the checkpoint, `packed_as` the way it stores weights where it
    is quantized (`ModelShape.packed_as`); `unknown` says why its family has no shape, and
    is empty where it has one; `traceable` is whether it names a class that may be traced."""

    id: str
    location: str
    architecture: str
    parameters: int | None
    layers: int | None
    dtype: str | None
    packed_as: str | None
    max_positions: int | None
    quantized: bool
    notes: tuple[str, ...]
    unknown: str
    traceable: bool


@dataclass(frozen=True)
class Answer:
    """An estimate for drawing. Every option of `plan` has a value. In a first answer the reserved
    bytes are unknown and allocated bytes are those of tensors."""

    stage: Stage
    origin: str
    plan: RunPlan
    resident_bytes: int
    peak_live_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    process_bytes: int
    uncertainty_bytes: int
    peak_phase: str
    peak_operation: str
    components: tuple[Term, ...]
    beyond: tuple[Term, ...]
    phases: tuple[PhaseBytes, ...]
    fit: Fit | None
    curve: StackedCurve = field(repr=False)


@dataclass(frozen=True)
class Around:
    """What surrounds an estimate: what saves memory, what it fits, what it means, and what is to
    be known of how it was made. `weighed` is whether changes of the plan were estimated; `report`
    is the object that `qtui memory --json` prints."""

    advice: tuple[Advice, ...]
    fits: tuple[Fit, ...]
    cures: tuple[Cure, ...]
    sentence: str
    notes: tuple[str, ...]
    report: Mapping[str, Any] = field(repr=False)
    weighed: bool = True


@dataclass(frozen=True)
class Traced:
    """An estimate from the classes of transformers, and what surrounds it."""

    answer: Answer
    around: Around


@dataclass(frozen=True)
class MapCell:
    """A batch and a sequence: the peak of live bytes, and the verdict once it is known. `peak`
    is None where the plan cannot be."""

    batch: int
    sequence: int
    peak_live_bytes: int | None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class CaseFigures:
    """The figures of a worked case, which `key` names."""

    key: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Readings:
    """Every GPU at this moment."""

    gpus: tuple[DeviceReading, ...]


@dataclass(frozen=True)
class Operations:
    """The operations of a step of a plan that leaves nothing open."""

    plan: RunPlan
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class MeasurementLine:
    """A line of a measurement: first the device, then each rate when it is measured; or why there
    is none, with the exit code of that error."""

    device: DeviceFacts | None = None
    rate: MeasuredRate | None = None
    error: str = ""
    code: int = 0


@dataclass(frozen=True)
class RatesMeasured:
    """All rates of a device."""

    device: DeviceFacts | None
    rates: tuple[MeasuredRate, ...]
