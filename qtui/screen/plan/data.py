"""What the estimator answers, typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from qtui.engine.protocol import Array
from qtui.screen.curve.parts import PARTS, PLACES
from qtui.screen.tensors.data import build
from qtui_core.dataclass import dataclass
from qtui_core.memory.advice.fit import Verdict
from qtui_core.memory.plan.run_plan import RunPlan

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

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> ModelFacts:
        return build(cls, {**data, "notes": tuple(data["notes"])})


@dataclass(frozen=True)
class LiveDevice:
    """A GPU of this machine. Bytes; None where the driver does not say."""

    index: int
    name: str | None
    memory_used: int | None
    memory_total: int | None


@dataclass(frozen=True)
class Band:
    """A phase of the curve: its events are start <= number < stop."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class StackedCurve:
    """Bytes of each part (in the order of PARTS) at `positions`, which are event numbers."""

    positions: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    bands: tuple[Band, ...]

    @property
    def totals(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(*self.rows, strict=True)))


@dataclass(frozen=True)
class TermLine:
    """A component, or what leads from the peak to the process."""

    name: str
    bytes: int
    formula: str
    basis: str


@dataclass(frozen=True)
class PhaseLine:
    """The most alive and allocated in a phase."""

    name: str
    live_bytes: int
    allocated_bytes: int
    operation: str


@dataclass(frozen=True)
class FitLine:
    """A verdict on one GPU."""

    gpu: str
    capacity_bytes: int
    verdict: Verdict
    headroom_bytes: int


@dataclass(frozen=True)
class Answer:
    """An estimate as it is drawn. `plan` leaves nothing open; of a first answer the reserved
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
    components: tuple[TermLine, ...]
    beyond: tuple[TermLine, ...]
    phases: tuple[PhaseLine, ...]
    fit: FitLine | None
    curve: StackedCurve = field(repr=False)

    @classmethod
    def parse(cls, data: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        return build(
            cls,
            {
                **data,
                "plan": plan_of(data["plan"]),
                "components": _all(TermLine, data["components"]),
                "beyond": _all(TermLine, data["beyond"]),
                "phases": _all(PhaseLine, data["phases"]),
                "fit": None if data["fit"] is None else build(FitLine, data["fit"]),
                "curve": _curve(data["curve"], arrays["curve"].tolist()),
            },
        )


@dataclass(frozen=True)
class AdviceLine:
    """A change of the plan, and what it saves of the peak."""

    change: str
    plan: RunPlan
    saves_bytes: int
    cost: str
    peak_phase: str


@dataclass(frozen=True)
class CureLine:
    """A kind of running out of memory; `change` is empty where nothing in the plan helps."""

    kind: str
    symptom: str
    needs_bytes: int
    change: str
    saves_bytes: int


@dataclass(frozen=True)
class Around:
    """What surrounds an estimate: what saves memory, what it fits, what it means, and what is to
    be known of how it was made. `weighed` is whether changes of the plan were estimated."""

    advice: tuple[AdviceLine, ...]
    fits: tuple[FitLine, ...]
    cures: tuple[CureLine, ...]
    sentence: str
    notes: tuple[str, ...]
    report: Mapping[str, Any] = field(repr=False)
    weighed: bool = True

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Around:
        advice = tuple(
            build(AdviceLine, {**line, "plan": plan_of(line["plan"])}) for line in data["advice"]
        )
        return cls(
            advice,
            _all(FitLine, data["fits"]),
            _all(CureLine, data["cures"]),
            data["sentence"],
            tuple(data["notes"]),
            data["report"],
            data["weighed"],
        )


@dataclass(frozen=True)
class MapCell:
    """A batch and a sequence: the peak of live bytes, and the verdict once it is known. `peak`
    is None where the plan cannot be."""

    batch: int
    sequence: int
    peak_live_bytes: int | None
    verdict: Verdict | None


@dataclass(frozen=True)
class FigureLine:
    """A figure of a document beside ours."""

    what: str
    stated_bytes: int
    bytes: int
    why: str


@dataclass(frozen=True)
class CaseLine:
    """A worked case: where it stands, and its figures once they are computed."""

    key: str
    title: str
    source: str
    plan: RunPlan
    figures: tuple[FigureLine, ...] = ()

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> CaseLine:
        return build(
            cls,
            {
                **data,
                "plan": plan_of(data["plan"]),
                "figures": _all(FigureLine, data["figures"]),
            },
        )


def plan_of(data: Mapping[str, Any]) -> RunPlan:
    """A plan as it came over the wire."""
    return RunPlan(**{**data, "lora_targets": tuple(data["lora_targets"])})


def _all(record: type[Any], lines: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    return tuple(build(record, line) for line in lines)


def _curve(data: Mapping[str, Any], flat: Sequence[int]) -> StackedCurve:
    """Rows of components are summed up to those of parts."""
    positions = tuple(data["positions"])
    count = len(positions)
    rows = [[0] * count for _ in PARTS]
    for at, component in enumerate(data["components"]):
        row = rows[PLACES[component]]
        for i, nbytes in enumerate(flat[at * count : (at + 1) * count]):
            row[i] += nbytes
    bands = tuple(Band(*band) for band in data["bands"])
    return StackedCurve(positions, tuple(map(tuple, rows)), bands)
