"""Terms of an optimizer that have no effect at all, whatever the number they act on.

A multiplicative term x <- x(1-a), rounded to nearest with p stored mantissa bits, never has an
effect if a < 2^-(p+2): for every x the change is less than half of the distance to the next number
down. It always has an effect if a > 2^-(p+1). Only `a` matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.lab.job import See
from qtui_core.lab.numerics.rounding import STORAGES, Storage, unscaled
from qtui_core.lab.results import Cell
from qtui_core.quantities import phrase

#: Numbers on which a term is tried, spread over one power of two.
_COPIES: Final = 4096
#: Steps of the decay and of the longest average.
_DECAYS: Final = 100
_LONGEST: Final = 20_000
#: A term is "biased" if its result is off by more than this share.
_OFF: Final = 0.02


@dataclass(frozen=True)
class LabTerm:
    """The result of applying a term many times.

    Attributes:
        name: weight decay, second moment, average or gradients: what is kept in fp32 instead.
        share: `a`, the relative change of a number in one application.
        kept: how far the mean of the numbers came of the way that is due.
        off: by which share its result is wrong: of the change for a decay, else of the value.
        dead: whether it changed no number at all.
        cured: whether the same term, stored in fp32, acts as it should.
    """

    name: str
    share: float
    kept: float
    off: float
    dead: bool
    cured: bool = True

    @property
    def judged(self) -> str:
        """ "dead", "biased" or "fine"; "off" if the share of the term is zero."""
        if not self.share or (self.name == "gradients" and self.share == 1):
            return "off"
        if self.dead:
            return "dead"
        return "biased" if abs(self.off) > _OFF else "fine"


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


def terms(settings: Mapping[str, Any], see: See) -> tuple[LabTerm, ...]:
    """The four terms of an optimizer, each run in the format and in fp32."""
    storages = unscaled(STORAGES[settings["store"]]), STORAGES["fp32"]
    found = []
    for number, (make, share) in enumerate(
        (
            (_decay, settings["lr"] * settings["decay"]),
            (_second_moment, 1 - settings["beta2"]),
            (_average, 1 - settings["ema"]),
            (_accumulation, 1 / settings["accumulation"]),
        )
    ):
        see(number, 4, None)
        here, exact = (make(storage, share) for storage in storages)
        found.append(replace(here, cured=exact.judged in ("fine", "off")))
    return tuple(found)


def _spread() -> torch.Tensor:
    """Numbers in [1, 2) that contain all mantissas of every format."""
    return 1 + torch.arange(_COPIES) / _COPIES


def _decay(storage: Storage, a: float) -> LabTerm:
    """Weights w <- w(1 - lr·decay), as PyTorch's AdamW multiplies the stored weight."""
    start = weight = storage.nearest(_spread())
    for _ in range(_DECAYS):
        weight = storage.nearest(weight * (1 - a))
    # The changes are compared, because the norm itself hardly changes in a hundred steps.
    wanted = 1 - (1 - a) ** _DECAYS
    kept = (1 - _mean(weight) / _mean(start)) / wanted if wanted else 1.0
    return LabTerm("weight decay", a, kept, kept - 1, bool((weight == start).all()))


def _second_moment(storage: Storage, a: float) -> LabTerm:
    """v <- beta2·v + (1-beta2)·g², from 1, with gradients of standard deviation 0.1, over three
    times the time constant 1/(1-beta2)."""
    generator = torch.Generator().manual_seed(0)
    start = v = storage.nearest(_spread())
    exact = start.double()
    for _ in range(min(_LONGEST, math.ceil(3 / a)) if a > 0 else _DECAYS):
        square = (0.1 * torch.randn(_COPIES, generator=generator)) ** 2
        v = storage.nearest(v * (1 - a) + a * square)
        exact = exact * (1 - a) + a * square.double()
    way, due = _mean(start) - _mean(v), _mean(start) - float(exact.mean())
    off = _mean(v) / float(exact.mean()) - 1
    return LabTerm("second moment", a, way / due if due else 1.0, off, bool((v == start).all()))


def _average(storage: Storage, a: float) -> LabTerm:
    """A moving average of weights that should go from 0 to 1: e <- e + (1-d)(w - e)."""
    at, true = torch.zeros(()), 0.0
    for _ in range(min(_LONGEST, math.ceil(12 / a)) if a > 0 else _DECAYS):
        at = storage.nearest(at + a * (1 - at))
        true += a * (1 - true)
    kept = float(at) / true if true else 1.0
    return LabTerm("average", a, kept, kept - 1, False)


def _accumulation(storage: Storage, a: float) -> LabTerm:
    """The sum of 1/a equal gradients, each of which should add `a`."""
    gradient, count = storage.nearest(_spread()), round(1 / a)
    total = torch.zeros(_COPIES)
    for _ in range(count):
        total = storage.nearest(total + gradient)
    kept = _mean(total / gradient) / count
    return LabTerm("gradients", a, kept, kept - 1, False)


def _mean(x: torch.Tensor) -> float:
    return float(x.double().mean())


def term_rows(found: Sequence[LabTerm], store: str) -> list[dict[str, Cell]]:
    """A row for each term: its share, how far it came, and what is judged."""
    return [
        {"stored": store, "part": f"{_CALLED[term.name]} = {term.share:.3g}", "kept": term.kept,
         "judged": term.judged}
        for term in found
    ]  # fmt: skip


def terms_sentence(found: Sequence[LabTerm], store: str) -> str:
    """What to keep in fp32, with its bytes, and what is dead or stops on its way; "" if every term
    acts as it should."""
    ill = [term for term in found if term.judged in ("dead", "biased")]
    if not ill:
        return ""
    kept = [_KEPT.get(term.name, term.name) for term in ill if term.cured]
    more = len(kept) * (STORAGES["fp32"].nbytes - STORAGES[store].nbytes)
    least, _ = thresholds(STORAGES[store].mantissa_bits or 0)
    dead = [term.name for term in ill if term.dead]
    said = [f"{phrase(dead)} under {least:.2g} a step {'do' if dead[1:] else 'does'} nothing"]
    said = said * bool(dead) + [
        f"{term.name} {'come' if term.name == 'gradients' else 'comes'} {term.kept:.0%} of the way"
        for term in ill
        if not term.dead
    ]
    cure = f"Keep {phrase(kept)} in fp32 (+{more:g} bytes a parameter): in " if kept else "In "
    return f"{cure}{store.upper()} {phrase(said)}."


_CALLED: Final = {
    "weight decay": "lr × decay",
    "second moment": "1 − beta2",
    "average": "1 − decay of the average",
    "gradients": "1 / micro batches",
}
#: What is kept in fp32 where it is not what the term is called.
_KEPT: Final = {"weight decay": "weights"}
