"""Which terms of an optimizer have no effect at all, whatever the weight?

A multiplicative term x <- x(1-a), rounded to nearest with p stored mantissa bits, never has an
effect if a < 2^-(p+2): for every x the change is less than half of the distance to the next number
down. It always has an effect if a > 2^-(p+1). Only `a` matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.lab.job import Job
from qtui_core.lab.numerics.rounding import STORAGES, Storage, unscaled
from qtui_core.lab.results import Cell, Findings, LabChart, LabColumn, LabLine
from qtui_core.lab.training.twins import See
from qtui_core.quantities import phrase

#: Numbers on which a term is tried, spread over one power of two.
_COPIES: Final = 4096
#: Steps of the decay and of the longest average.
_DECAYS: Final = 100
_LONGEST: Final = 20_000
#: A term is "biased" if its result is off by more than this share.
_OFF: Final = 0.02
#: Points of a picture.
_POINTS: Final = 100


@dataclass(frozen=True)
class LabTerm:
    """The result of applying a term many times.

    Attributes:
        name: decay, second moment, average or accumulation.
        share: `a`, the relative change of a number in one application.
        threshold: the `a` below which the term never has an effect; None if that depends on the
            state.
        moved: the share of the numbers that it changed.
        reached, true: the mean of the numbers at the end, and its true value.
        course: that mean over the steps, and its true value.
        cured: whether the same term, stored in fp32, acts as it should.
    """

    name: str
    share: float
    threshold: float | None
    moved: float
    reached: float
    true: float
    course: tuple[float, ...]
    due: tuple[float, ...]
    cured: bool = True


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """One job: each term takes a second at most. Raises UsageError for a decay that takes away more
    than there is."""
    if settings["lr"] * settings["decay"] > 1:
        raise UsageError(
            f"--lr {settings['lr']:g} times --decay {settings['decay']:g} is more than 1: a step "
            f"would take away more than the whole weight."
        )
    return [Job("terms", terms, dict(settings), tuple[LabTerm, ...], 3)]


def thresholds(mantissa_bits: int) -> tuple[float, float]:
    """Two bounds of `a` in x(1-a): below the first every x stays the same, above the second every x
    changes."""
    return 2.0 ** -(mantissa_bits + 2), 2.0 ** -(mantissa_bits + 1)


def terms(
    see: See, *, store: str, lr: float, decay: float, beta2: float, ema: float, accumulation: int
) -> tuple[LabTerm, ...]:
    """The four terms, each run as in an optimizer, in the format and in fp32."""
    makers: tuple[Callable[[Storage], LabTerm], ...] = (
        lambda storage: _decay(storage, lr * decay),
        lambda storage: _second_moment(storage, beta2),
        lambda storage: _average(storage, ema),
        lambda storage: _accumulation(storage, accumulation),
    )
    found = []
    for number, make in enumerate(makers):
        see(number, len(makers), None)
        cured = judged(make(STORAGES["fp32"])) in ("fine", "off")
        found.append(replace(make(unscaled(STORAGES[store])), cured=cured))
    return tuple(found)


def _spread() -> torch.Tensor:
    """Numbers in [1, 2) that contain all mantissas of every format."""
    return 1 + torch.arange(_COPIES) / _COPIES


def _decay(storage: Storage, a: float) -> LabTerm:
    """Weights w <- w(1 - lr·decay), as PyTorch's AdamW multiplies the stored weight."""
    start = weight = storage.nearest(_spread())
    course, due = [1.0], [1.0]
    for step in range(1, _DECAYS + 1):
        weight = storage.nearest(weight * (1 - a))
        course.append(_mean(weight) / _mean(start))
        due.append((1 - a) ** step)
    moved = float((weight != start).float().mean())
    return _term("decay", a, thresholds(storage.mantissa_bits or 0)[0], moved, course, due)


def _second_moment(storage: Storage, beta2: float) -> LabTerm:
    """v <- beta2·v + (1-beta2)·g², from 1, with gradients of standard deviation 0.1, over three
    times the time constant 1/(1-beta2)."""
    a = 1 - beta2
    generator = torch.Generator().manual_seed(0)
    start = v = storage.nearest(_spread())
    exact = start.double()
    course, due = [_mean(v)], [float(exact.mean())]
    steps = min(_LONGEST, math.ceil(3 / a)) if a > 0 else _DECAYS
    for _ in range(steps):
        square = (0.1 * torch.randn(_COPIES, generator=generator)) ** 2
        v = storage.nearest(v * beta2 + a * square)
        exact = exact * beta2 + a * square.double()
        course.append(_mean(v))
        due.append(float(exact.mean()))
    moved = float((v != start).float().mean())
    return _term("second moment", a, thresholds(storage.mantissa_bits or 0)[0], moved, course, due)


def _average(storage: Storage, decay: float) -> LabTerm:
    """A moving average of weights that should go from 0 to 1: e <- e + (1-d)(w - e)."""
    a = 1 - decay
    at, true = torch.zeros(()), 0.0
    course, due = [0.0], [0.0]
    steps = min(_LONGEST, math.ceil(12 / a)) if a > 0 else _DECAYS
    for _ in range(steps):
        at = storage.nearest(at + a * (1 - at))
        true += a * (1 - true)
        course.append(float(at))
        due.append(true)
    return _term("average", a, None, float(at > 0), course, due)


def _accumulation(storage: Storage, count: int) -> LabTerm:
    """The sum of `count` equal gradients, each of which should add 1/N."""
    gradient = storage.nearest(_spread())
    total = torch.zeros(_COPIES)
    course, due = [0.0], [0.0]
    for done in range(1, count + 1):
        total = storage.nearest(total + gradient)
        course.append(_mean(total / gradient) / count)
        due.append(done / count)
    return _term("accumulation", 1 / count, None, 1.0, course, due)


def _mean(x: torch.Tensor) -> float:
    return float(x.double().mean())


def _term(
    name: str,
    a: float,
    threshold: float | None,
    moved: float,
    course: list[float],
    due: list[float],
) -> LabTerm:
    """A term of a whole course, with every so many-th point of it."""
    every = max(1, math.ceil(len(course) / _POINTS))
    thinned = tuple(course[::every]), tuple(due[::every])
    return LabTerm(name, a, threshold, moved, course[-1], due[-1], *thinned)


def judged(term: LabTerm) -> str:
    """ "dead", "biased" or "fine"; "off" if the share of the term is zero."""
    if not term.share or (term.name == "accumulation" and term.share == 1):
        return "off"
    if term.name in ("decay", "second moment") and not term.moved:
        return "dead"
    if term.name == "decay":
        # The changes are compared, because the norm itself hardly changes in a hundred steps.
        wanted = 1 - term.true
        return "biased" if abs((1 - term.reached) / wanted - 1) > _OFF else "fine"
    return "biased" if abs(term.reached / term.true - 1) > _OFF else "fine"


#: The judgements, worst first.
_ORDER: Final = ("dead", "biased", "fine", "off")
_CALLED: Final = {
    "decay": "lr × decay",
    "second moment": "1 − beta2",
    "average": "1 − decay of the average",
    "accumulation": "1 / micro batches",
}


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each term, the course of each beside what it should be, and which terms are
    dead."""
    found: tuple[LabTerm, ...] = outcomes.get("terms", ())
    columns = (
        LabColumn("term", "term"),
        LabColumn("is", "is"),
        LabColumn("a", "a"),
        LabColumn("threshold", "never acts below"),
        LabColumn("moved", "numbers it moved", "share"),
        LabColumn("reached", "arrives at"),
        LabColumn("true", "should be"),
        LabColumn("judged", "judged"),
        LabColumn("cure", "cure"),
    )
    cured = [term for term in found if judged(term) in ("dead", "biased") and term.cured]
    rows: list[dict[str, Cell]] = [
        {
            "term": term.name,
            "is": _CALLED[term.name],
            "a": term.share,
            "threshold": term.threshold,
            "moved": term.moved,
            "reached": term.reached,
            "true": term.true,
            "judged": judged(term),
            "cure": f"{_KEPT[term.name]} in fp32" if term in cured else None,
        }
        for term in found
    ]
    worst = sorted(found, key=lambda term: _ORDER.index(judged(term)))
    pictures = tuple(
        LabChart(
            f"{term.name} in {settings['store'].upper()}",
            "steps, thinned",
            "mean",
            (LabLine("true", term.due, faint=True), LabLine(settings["store"], term.course)),
        )
        for term in worst
    )
    return Findings(columns, tuple(rows), pictures, _verdict(settings, found, cured))


def _verdict(
    settings: Mapping[str, Any], found: tuple[LabTerm, ...], cured: Sequence[LabTerm]
) -> str:
    """The cure with its bytes, then one clause for all dead terms, then what is biased: as short as
    the least terminal shows it whole."""
    if not found:
        return ""
    name = settings["store"].upper()
    dead = [term for term in found if judged(term) == "dead"]
    biased = [term for term in found if judged(term) == "biased"]
    if not dead and not biased:
        return f"Every term acts as it should in {name}."
    said = []
    if dead:
        terms = [_DEAD[term.name] for term in dead]
        said = [f"{terms[0]} in {name}"]
        if terms[1:]:
            said = [f"{terms[0]} in {name}, nor does the second moment fall"]
        said[0] += f": under {dead[0].threshold:.2g} rounds away"
    for term in biased:
        said.append(_biased(term) + ("" if said else f" in {name}"))
    # Two that stop on their way are one clause too.
    whole = "; ".join(said).replace("; gradients stop at", ", gradients at")
    return f"{_cure(cured, settings['store'])}{whole[0].upper()}{whole[1:]}."


#: What a dead term does.
_DEAD: Final = {
    "decay": "weight decay does nothing",
    "second moment": "the second moment does not fall",
}
#: What is kept in fp32 instead.
_KEPT: Final = {
    "decay": "weights",
    "second moment": "second moment",
    "average": "average",
    "accumulation": "gradients",
}


def _cure(terms: Sequence[LabTerm], store: str) -> str:
    """What to keep in fp32 in the place of what is stored, and the bytes; "" if nothing helps."""
    more = len(terms) * (STORAGES["fp32"].nbytes - STORAGES[store].nbytes)
    kept = phrase([_KEPT[term.name] for term in terms]) if terms else ""
    return f"Keep {kept} in fp32 (+{more:g} bytes a parameter). " * bool(terms)


def _biased(term: LabTerm) -> str:
    if term.name == "decay":
        return f"weight decay is off by {(1 - term.reached) / (1 - term.true) - 1:+.0%}"
    if term.name == "second moment":
        return f"the second moment is off by {term.reached / term.true - 1:+.0%}"
    if term.name == "average":
        return f"the average stops at {term.reached:.0%}"
    return f"gradients stop at {term.reached:.0%}"
