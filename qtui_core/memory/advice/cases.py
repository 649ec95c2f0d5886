"""Worked cases: runs that documents calculate by hand, their figures, and ours beside them.

A row of cases.json is a model's config.json, a plan, and claims. Every `why` states something that
our figures show; a test checks it against them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final, Literal

from qtui_core.codec import from_plain
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.estimate import Estimate, estimate
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.shape.from_config import shape_from_config

#: Documents use GB of 10^9 bytes.
GB: Final = 10**9

#: The parts of an estimate for which documents give figures. "stored": weights with their
#: quantization constants; "states": weights, gradients and optimizer states; "adapted": adapters
#: with gradients and optimizer states; "kept": what the forward pass keeps for the backward pass;
#: "peak": everything at the peak.
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
    """A figure in a document.

    Attributes:
        what: what it is of, in words.
        stated_gb: the figure in the document.
        quantity: the quantity of an estimate to compare it with.
        why: why our figure differs or agrees.
        changes: fields of the case's plan that differ for this figure.
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
    """A figure in a document and ours, in bytes."""

    what: str
    stated_bytes: int
    bytes: int
    why: str


#: The rows of cases.json.
CASES: Final = from_plain(
    tuple[WorkedCase, ...],
    json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8")),
)


def case_of(key: str) -> WorkedCase:
    """The case with a key. Raises UsageError for an unknown key, with the known ones."""
    known = {case.key: case for case in CASES}
    if key not in known:
        raise UsageError(f"There is no worked case {key!r}; there are {', '.join(known)}.")
    return known[key]


def figures_of(case: WorkedCase) -> tuple[Figure, ...]:
    """The claims of a case with our figures, in order. Each figure is from an estimate of the
    case's plan with the changes of the claim."""
    shape = shape_from_config(case.config)
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
    """Bytes of a quantity: the most of it that is alive at the same time."""
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
    return max(timeline.bytes_of(_OF[quantity]), default=0)
