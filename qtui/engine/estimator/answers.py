"""The answers of the estimator: made in its process, drawn in the process of the screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from qtui_core.dataclass import dataclass
from qtui_core.memory.advice.cases import Figure
from qtui_core.memory.advice.fit import Advice, Cure, Fit, Verdict
from qtui_core.memory.estimate import PhaseBytes
from qtui_core.memory.formulas.terms import Term
from qtui_core.memory.plan.run_plan import RunPlan, Stored
from qtui_core.memory.replay.timeline import StackedCurve
from qtui_core.roofline.operation import Operation
from qtui_core.roofline.rates import DeviceFacts, MeasuredRate
from qtui_core.telemetry.readings import DeviceReading

#: Whether an answer is the first one, without the allocator, or the full estimate.
Stage = Literal["first", "full"]


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before any plan.

    Attributes:
        stored: how its checkpoint is stored, and what of it can be trained.
        traceable: whether its config names a class of transformers that can be traced.
        missing_weights: why there are no weights to read; empty if there are.
        random_weights: whether a run gives it random ones, as it is a configuration alone.
    """

    id: str
    location: str
    architecture: str
    parameters: int
    layers: int
    stored: Stored
    learned_positions: int | None
    quantized: bool
    notes: tuple[str, ...]
    traceable: bool
    missing_weights: str = ""
    random_weights: bool = False

    @property
    def cannot_run(self) -> str:
        """Why a step cannot run; empty if it can."""
        return "" if self.random_weights else self.missing_weights


@dataclass(frozen=True)
class Answer:
    """An estimate for drawing. Every option of `plan` has a value. In a first answer what has a
    default is unknown, and the allocated bytes are the unrounded bytes of tensors."""

    stage: Stage
    origin: str
    plan: RunPlan
    resident_bytes: int
    peak_live_bytes: int
    peak_allocated_bytes: int
    process_bytes: int
    peak_phase: str
    phases: tuple[PhaseBytes, ...]
    curve: StackedCurve = field(repr=False)
    peak_reserved_bytes: int | None = None
    uncertainty_bytes: int = 0
    peak_operation: str = ""
    components: tuple[Term, ...] = ()
    beyond: tuple[Term, ...] = ()
    fit: Fit | None = None


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
    """The operations of one step, of a stand-in if `assumed`. `plan` leaves no option open."""

    plan: RunPlan
    operations: tuple[Operation, ...]
    assumed: bool


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
