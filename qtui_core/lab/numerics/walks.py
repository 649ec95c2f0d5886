"""Stored numbers that are changed a little many times, and how much of the changes is kept.

A term of an optimizer that multiplies, x <- x(1-a), rounded to nearest with p stored mantissa bits,
never has an effect if a < 2^-(p+2): for every x the change is less than half of the distance to the
next number down. It always has an effect if a > 2^-(p+1). Only `a` matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from qtui_core.errors import UsageError
from qtui_core.job import Job
from qtui_core.lab.numerics.rounding import STORAGES, Storage
from qtui_core.lab.results import Cell, Findings, LabChart, LabLine, findings
from qtui_core.quantities import phrase

#: Copies of the single weight, how often each is changed, and the change.
_COPIES, _MOVES, _MOVE = 2000, 1000, 1e-3
#: How the weight is stored.
_WAYS: Final = (
    "bf16", "bf16 stochastic", "bf16 Kahan", "fp16", "e4m3", "e4m3 stochastic", "int8",
    "int8 stochastic",
)  # fmt: skip


def one_weight(job: Job) -> Findings:
    """Adds 0.001 to 2000 copies of a weight of 1.0 a thousand times in several formats: the mean
    after every 20th addition, with a band of one standard deviation. The int8 weight has a scale of
    1/32, so that 2 is well within its range. Kahan summation stores the rounding error beside the
    weight, in the same format."""
    generator = torch.Generator().manual_seed(0)
    lines = [LabLine("true", tuple(1 + _MOVE * 20 * i for i in range(51)), faint=True)]
    for number, way in enumerate(_WAYS):
        job.at(number, len(_WAYS))
        name, _, how = way.partition(" ")
        storage = STORAGES[name]
        drawn = generator if how == "stochastic" else None
        scale = torch.tensor(1 / 32 if name == "int8" else 1.0)
        weight, rest = torch.ones(_COPIES), torch.zeros(())
        course = [(1.0, 0.0)]
        for move in range(1, _MOVES + 1):
            after = storage.rounded(weight + (_MOVE + rest), drawn, scale)
            if how == "Kahan":
                rest = storage.nearest(_MOVE + rest - (after - weight), scale)
            weight = after
            if move % 20 == 0:
                course.append((float(weight.double().mean()), float(weight.double().std())))
        low, high = tuple(m - s for m, s in course), tuple(m + s for m, s in course)
        lines.append(LabLine(way, tuple(mean for mean, _ in course), low=low, high=high))
    chart = LabChart("a weight of 1.0, 1000 times +0.001", "moves / 20", "value", tuple(lines))
    return findings(pictures=[chart])


#: Numbers on which a term is tried, spread over one power of two.
_SPREAD: Final = 4096
#: Steps of the decay and of the longest average.
_DECAYS: Final = 100
_LONGEST: Final = 20_000
#: A term is "biased" if its result is off by more than this share.
_OFF: Final = 0.02


def thresholds(mantissa_bits: int) -> tuple[float, float]:
    """Two bounds of `a` in x(1-a): below the first every x stays the same, above the second every x
    changes."""
    return 2.0 ** -(mantissa_bits + 2), 2.0 ** -(mantissa_bits + 1)


def check_decay(settings: Mapping[str, Any]) -> None:
    """Raises UsageError for a decay that takes away more than there is."""
    if settings["lr"] * settings["decay"] > 1:
        raise UsageError(
            f"--lr {settings['lr']:g} times --decay {settings['decay']:g} is more than 1: a step "
            f"would take away more than the whole weight."
        )


def terms(settings: Mapping[str, Any], job: Job) -> Findings:
    """The four terms of an optimizer, each run in the format and in fp32: how far the numbers came
    of the way that is due, and what to keep in fp32."""
    store = settings["store"]
    storage, exact = STORAGES[store].unscaled, STORAGES["fp32"]
    shares = (
        *(settings["lr"] * settings["decay"], 1 - settings["beta2"]),
        *(1 - settings["ema"], 1 / settings["accumulation"]),
    )
    rows: list[dict[str, Cell]] = []
    dead, biased, kept = [], [], []
    for number, ((term, (run, called, cure)), share) in enumerate(
        zip(_TERMS.items(), shares, strict=True)
    ):
        job.at(number, 4)
        way, judged = _judged(run, storage, share)
        part = f"{called} = {share:.3g}"
        rows.append({"stored": store, "part": part, "kept": way, "judged": judged})
        if judged == "dead":
            dead.append(term)
        elif judged == "biased":
            come = "come" if term == "gradients" else "comes"
            biased.append(f"{term} {come} {way:.0%} of the way")
        if judged in ("dead", "biased") and _judged(run, exact, share)[1] in ("fine", "off"):
            kept.append(cure)
    least, _ = thresholds(storage.mantissa_bits or 0)
    more = len(kept) * (exact.nbytes - storage.nbytes)
    if dead:
        still = "do" if dead[1:] else "does"
        biased = [f"{phrase(dead)} under {least:.2g} a step {still} nothing", *biased]
    keep = f"Keep {phrase(kept)} in fp32 (+{more:g} bytes a parameter): in " if kept else "In "
    note = f"{keep}{store.upper()} {phrase(biased)}."
    return findings((), rows, notes=[note] if biased else ())


def _judged(run: Callable[[Storage, float], _Result], at: Storage, a: float) -> tuple[float, str]:
    """How far a term comes, and "dead", "biased" or "fine"; "off" for one whose share is zero, or
    for the gradient of one micro batch."""
    kept, off, dead = run(at, a)
    if not a or (run is _accumulation and a == 1):
        return kept, "off"
    return kept, "dead" if dead else "biased" if abs(off) > _OFF else "fine"


def _spread() -> torch.Tensor:
    """Numbers in [1, 2) that contain all mantissas of every format."""
    return 1 + torch.arange(_SPREAD) / _SPREAD


def _mean(x: torch.Tensor) -> float:
    return float(x.double().mean())


#: (How far the mean of the numbers came of the way that is due, by which share the result is wrong:
#: of the change for a decay, else of the value; whether no number changed at all).
_Result = tuple[float, float, bool]


def _decay(storage: Storage, a: float) -> _Result:
    """Weights w <- w(1 - lr·decay), as PyTorch's AdamW multiplies the stored weight."""
    start = weight = storage.nearest(_spread())
    for _ in range(_DECAYS):
        weight = storage.nearest(weight * (1 - a))
    # The changes are compared, because the norm itself hardly changes in a hundred steps.
    wanted = 1 - (1 - a) ** _DECAYS
    kept = (1 - _mean(weight) / _mean(start)) / wanted if wanted else 1.0
    return kept, kept - 1, bool((weight == start).all())


def _second_moment(storage: Storage, a: float) -> _Result:
    """v <- beta2·v + (1-beta2)·g², from 1, with gradients of standard deviation 0.1, over three
    times the time constant 1/(1-beta2)."""
    generator = torch.Generator().manual_seed(0)
    start = v = storage.nearest(_spread())
    exact = start.double()
    for _ in range(min(_LONGEST, math.ceil(3 / a)) if a > 0 else _DECAYS):
        square = (0.1 * torch.randn(_SPREAD, generator=generator)) ** 2
        v = storage.nearest(v * (1 - a) + a * square)
        exact = exact * (1 - a) + a * square.double()
    way, due = _mean(start) - _mean(v), _mean(start) - float(exact.mean())
    return way / due if due else 1.0, _mean(v) / float(exact.mean()) - 1, bool((v == start).all())


def _average(storage: Storage, a: float) -> _Result:
    """A moving average of weights that should go from 0 to 1: e <- e + (1-d)(w - e)."""
    at, true = torch.zeros(()), 0.0
    for _ in range(min(_LONGEST, math.ceil(12 / a)) if a > 0 else _DECAYS):
        at = storage.nearest(at + a * (1 - at))
        true += a * (1 - true)
    kept = float(at) / true if true else 1.0
    return kept, kept - 1, False


def _accumulation(storage: Storage, a: float) -> _Result:
    """The sum of 1/a equal gradients, each of which should add `a`."""
    gradient, count = storage.nearest(_spread()), round(1 / a)
    total = torch.zeros(_SPREAD)
    for _ in range(count):
        total = storage.nearest(total + gradient)
    kept = _mean(total / gradient) / count
    return kept, kept - 1, False


#: Term -> (what runs it, what its share is called, what is kept in fp32 instead).
_TERMS: Final = {
    "weight decay": (_decay, "lr × decay", "weights"),
    "second moment": (_second_moment, "1 − beta2", "second moment"),
    "average": (_average, "1 − decay of the average", "average"),
    "gradients": (_accumulation, "1 / micro batches", "gradients"),
}
