"""The answers of the estimator: made in its process, drawn in the process of the screen."""

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

#: Whether an answer is the first one, without the allocator, or the full estimate.
Stage = Literal["first", "full"]


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before any plan.

    Attributes:
        dtype: of the checkpoint.
        packed_as: how a quantized checkpoint stores its weights (`ModelShape.packed_as`).
        unknown: why there is no shape for its family; empty if there is one.
        traceable: whether its config names a class of transformers that can be traced.
    """

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
    bytes are unknown, and the allocated bytes are the unrounded bytes of tensors."""

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
class Assessment:
    """What is said about an estimate.

    Attributes:
        advice: changes of the plan that save memory; estimated only if `weighed`.
        fits: whether it fits each device.
        cures: changes that make a plan fit that does not.
        sentence: what the estimate means.
        notes: how it was made, as sentences.
        report: the object that `qtui memory --json` prints.
    """

    advice: tuple[Advice, ...]
    fits: tuple[Fit, ...]
    cures: tuple[Cure, ...]
    sentence: str
    notes: tuple[str, ...]
    report: Mapping[str, Any] = field(repr=False)
    weighed: bool = True


@dataclass(frozen=True)
class Traced:
    """An estimate from a trace of the classes of transformers, and what is said about it."""

    answer: Answer
    around: Assessment


@dataclass(frozen=True)
class MapCell:
    """A cell of the map of what fits: a batch size and a sequence length. `peak_live_bytes` is None
    if such a plan is refused; `verdict` is None until it is known."""

    batch: int
    sequence: int
    peak_live_bytes: int | None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class CaseFigures:
    """The figures of the worked case with this key."""

    key: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Readings:
    """Readings of every GPU at one moment."""

    gpus: tuple[DeviceReading, ...]


@dataclass(frozen=True)
class Operations:
    """The operations of one step. Every option of `plan` has a value."""

    plan: RunPlan
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class MeasurementLine:
    """A line of a measurement: first the device, then each rate as soon as it is measured; or the
    sentence and the exit code of the error that ended it."""

    device: DeviceFacts | None = None
    rate: MeasuredRate | None = None
    error: str = ""
    code: int = 0


@dataclass(frozen=True)
class RatesMeasured:
    """All rates of a device."""

    device: DeviceFacts | None
    rates: tuple[MeasuredRate, ...]
