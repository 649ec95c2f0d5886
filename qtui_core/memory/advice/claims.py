"""What documents that people learn from claim of a run, beside the same figure of an estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.memory.estimate import Estimate, estimate
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.replay.timeline import Life
from qtui_core.memory.shape.model_shape import ModelShape

#: Documents count GB of 10^9 bytes.
GB: Final = 10**9

#: The parts of an estimate that documents give figures of. "stored" are weights as they are kept,
#: with the constants of their quantization; "states" are weights, gradients and optimizer states;
#: "adapted" are adapters with gradients and optimizer states; "kept" is what the forward pass
#: leaves for the backward pass; "peak" is everything at the peak.
Quantity = Literal["stored", "gradients", "optimizer", "states", "adapted", "kept", "peak"]

_OF: Final[Mapping[Quantity, frozenset[Component]]] = {
    "stored": frozenset((Component.WEIGHTS, Component.QUANTIZATION, Component.BUFFERS)),
    "gradients": frozenset((Component.GRADIENTS,)),
    "optimizer": frozenset((Component.OPTIMIZER,)),
    "adapted": frozenset((Component.ADAPTERS, Component.GRADIENTS, Component.OPTIMIZER)),
    "states": frozenset((Component.WEIGHTS, Component.GRADIENTS, Component.OPTIMIZER)),
}


@dataclass(frozen=True)
class Claim:
    """A figure of a document.

    Attributes:
        what: the figure is of, in words.
        stated_gb: what the document says.
        quantity: of an estimate that it is compared with.
        why: our figure is another, or the same.
        changes: fields of the case's plan that are others for this figure.
    """

    what: str
    stated_gb: float
    quantity: Quantity
    why: str
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkedCase:
    """A worked case: the model's config.json, the plan of the run, and what a document says."""

    key: str
    title: str
    source: str
    config: Mapping[str, Any]
    plan: RunPlan
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Figure:
    """A figure of a document beside ours. Bytes."""

    what: str
    stated_bytes: int
    bytes: int
    why: str


def figures_of(case: WorkedCase) -> tuple[Figure, ...]:
    """The claims of a case with our figures, in order; each is of an estimate of the case's plan
    with the changes of the claim."""
    shape = ModelShape.from_config(case.config)
    known: dict[RunPlan, Estimate] = {}
    figures = []
    for claim in case.claims:
        plan = replace(case.plan, **claim.changes)
        if plan not in known:
            known[plan] = estimate(shape, plan, allocator=False)
        ours = bytes_of(known[plan], claim.quantity)
        figures.append(Figure(claim.what, int(claim.stated_gb * GB), ours, claim.why))
    return tuple(figures)


def bytes_of(found: Estimate, quantity: Quantity) -> int:
    """Bytes of a quantity: the most of it that is alive at once."""
    if quantity == "peak":
        return found.peak_live_bytes
    timeline = found.timeline
    if quantity == "kept":
        start = max(span.start for span in timeline.spans if span.name == Phase.BACKWARD)
        return sum(
            a.copies * a.bytes
            for a in timeline.alive_at(start)
            if a.born in (Phase.FORWARD, Phase.LOSS) and a.component is not Component.WORKSPACES
        )
    return _most(life for life in timeline.lives if life.component in _OF[quantity])


def _most(lives: Iterable[Life]) -> int:
    """The most bytes of some buffers that are alive at once."""
    changes = sorted(
        change for a in lives for change in ((a.start, a.bytes), (a.stop, -a.bytes))
    )  # what is freed at an event sorts before what is allocated there
    most = alive = 0
    for _, nbytes in changes:
        alive += nbytes
        most = max(most, alive)
    return most
