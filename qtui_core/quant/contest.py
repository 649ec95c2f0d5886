"""Which of several schemes of few bits suits a tensor, why, and what to do: one sentence.

The rows of `SENTENCES` are tried in order; the first that has something to say is taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from qtui_core.answers import ErrorReport, TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.quant.case import EXACT_DB, Case
from qtui_core.quant.coders import make_coder
from qtui_core.quant.explain import NOTHING, Rows, first_row, said_of
from qtui_core.quant.granularities import TOLERANCE, at_equal_bits
from qtui_core.quant.occupancy import Occupancy
from qtui_core.quantities import db_text, phrase

#: Decibels: a smaller difference counts as none.
SAME_DB = 0.1
#: If the mean is this many standard deviations from zero, most values are on one side of it.
ONE_SIDED = 0.5
#: A difference to the Gaussian in the share of values in the outer half of their group that counts.
CROWDED = 0.03
REMEDY = "= makes bits equal"
UNEQUAL = "no group sizes make them equal"


@dataclass(frozen=True)
class Contender:
    """A scheme and its measurements. All contenders were measured on the same tensor."""

    report: ErrorReport
    occupancy: Occupancy

    @property
    def name(self) -> str:
        return str(self.report.scheme)

    @property
    def db(self) -> float:
        """The SQNR in decibels; infinite if there is no error."""
        return float("inf") if self.report.sqnr_db is None else self.report.sqnr_db

    @property
    def bits(self) -> float:
        return self.report.bits_per_parameter

    @property
    def outer_half(self) -> tuple[float, float | None]:
        """The share of values beyond half the extent of their group, and that of a Gaussian, None
        if it is not known."""
        bins = len(self.occupancy.density)
        outer = np.ones(bins, bool)
        outer[bins // 4 : bins - bins // 4] = False
        share = float(self.occupancy.density[outer].sum() / max(1, self.occupancy.total))
        expected = self.occupancy.expected_density
        return share, None if expected is None else float(expected[outer].sum())

    @property
    def too_small(self) -> bool:
        """Whether values are so small that most groups have the smallest possible scale."""
        if not self.report.relative_mse:
            return False
        rms = math.sqrt(self.report.mse / self.report.relative_mse)
        return rms < make_coder(self.report.scheme).smallest_extent


@dataclass(frozen=True)
class Contest:
    """Schemes that were measured on one tensor, at least one.

    Attributes:
        contenders: the schemes. Only those with the bits of the first are compared.
        stats: of the tensor, if known.
        resized: whether group sizes have been changed for equal bits already.
        stored_bits: bits per parameter of the tensor as it is stored.
    """

    contenders: tuple[Contender, ...]
    stats: TensorStatistics | None
    resized: bool
    stored_bits: float

    @property
    def first(self) -> Contender:
        return self.contenders[0]

    @cached_property
    def saving(self) -> tuple[Contender, ...]:
        """The contenders that take fewer bits than the stored values."""
        return tuple(c for c in self.contenders if c.bits < self.stored_bits)

    @cached_property
    def equal(self) -> tuple[Contender, ...]:
        """The contenders with the bits of the first."""
        return tuple(c for c in self.contenders if abs(c.bits - self.first.bits) <= TOLERANCE)

    @property
    def best(self) -> Contender:
        """The best with equal bits."""
        return max(self.equal, key=lambda c: c.db)

    def best_of(self, name: str) -> Contender | None:
        """The best with equal bits in a format."""
        known = [c for c in self.equal if c.report.scheme.format == name]
        return max(known, key=lambda c: c.db, default=None)


def verdict(
    contenders: Sequence[Contender],
    stats: TensorStatistics | None = None,
    *,
    resized: bool = False,
    stored_bits: float = math.inf,
) -> str:
    """A sentence: which scheme wins and by how much, why, and what to do. Only
    schemes with the bits of the first are compared; the others are named.

    Args:
        contenders: the schemes with their measurements, none or more.
        stats: of the tensor; without them the sentence gives fewer reasons.
        resized: whether group sizes have been changed for equal bits already; then the sentence
            does not advise it.
        stored_bits: bits per parameter of the stored values. Schemes that take as many are not
            recommended.
    """
    if not contenders:
        return "No scheme is chosen: type some, for example nf4 int4 fp4."
    return first_row(SENTENCES, Contest(tuple(contenders), stats, resized, stored_bits))[1]


# --- why


def _why_integers(integer: Contender, normal: Contender, stats: TensorStatistics | None) -> str:
    """What in the tensor, or in the schemes, favours evenly spaced levels."""
    outer, usual = normal.outer_half
    if not integer.report.scheme.symmetric and stats is not None and stats.std:
        offset = abs(stats.mean or 0.0) / stats.std
        if offset > ONE_SIDED:
            return (
                f"its mean is {offset:.1f} standard deviations from zero, and only a zero point "
                f"moves the levels there"
            )
    if usual is not None and outer > usual + CROWDED:
        return (
            f"{outer:.0%} of its values lie in the outer half of their block (of a Gaussian's "
            f"{usual:.0%}), where the levels of NF4 are far apart and even ones are not"
        )
    return "its values lie closer to evenly spaced levels than Gaussian ones"


def _why_normal(normal: Contender, integer: Contender) -> str:
    if integer.too_small:
        return f"its values are too small for the scales of {integer.name}"
    outer, usual = normal.outer_half
    if usual is None or outer >= usual + CROWDED:
        return "its levels lie where the values of its blocks are"
    if outer < usual - CROWDED:
        return (
            f"only {outer:.0%} of its values (a Gaussian: {usual:.0%}) lie in the outer half of a "
            f"block, where NF4 is coarse"
        )
    return (
        f"in their blocks its values are spread as normal ones ({outer:.0%} in the outer half), "
        f"which its levels are made for"
    )


def _integers_and_normal(contest: Contest) -> str:
    """Which of int4 and nf4 is ahead, and why, if both are there and one is."""
    integer, normal = contest.best_of("int4"), contest.best_of("nf4")
    if integer is None or normal is None or abs(integer.db - normal.db) < SAME_DB:
        return ""
    if integer.db > normal.db:
        ahead, behind, why = integer, normal, _why_integers(integer, normal, contest.stats)
    else:
        ahead, behind, why = normal, integer, _why_normal(normal, integer)
    return f" {ahead.name} beats {behind.name} by {ahead.db - behind.db:.1f} dB: {why}."


# --- what to do


def _remedy(contest: Contest) -> str:
    """What `=` does about unequal bits; "" if it can do nothing."""
    if contest.resized:
        return ""
    others = [c.report.scheme for c in contest.contenders if c not in contest.equal]
    nearest = at_equal_bits(others, contest.first.report.shape, contest.first.bits)
    equal = sum(row.equal for row in nearest)
    return "" if not equal else REMEDY if equal == len(others) else f"{REMEDY} for {equal} of them"


def _left_out(contest: Contest) -> str:
    """The schemes with other bits, which are not compared."""
    others = [c for c in contest.contenders if c not in contest.equal]
    if not others:
        return ""
    text = f" {len(others)} others take other bits"
    if len(others) == 1:
        better = f" ({db_text(others[0].db)} dB)" * (others[0].db > contest.best.db)
        text = f" {others[0].name} takes {others[0].bits:.3f} bits{better}"
    remedy = _remedy(contest)
    return f"{text}: {remedy}." if remedy else f"{text}."


# --- the sentence


def _saving_nothing(contest: Contest) -> str | None:
    count = len(contest.contenders) - len(contest.saving)
    if not count:
        return None
    if not contest.saving:
        least = min(c.bits for c in contest.contenders)
        return (
            f"None of them takes less than the {contest.stored_bits:.4g} bits that are stored (the "
            f"least is {least:.3f}), so leave this tensor as it is."
        )
    what = "1 scheme takes" if count == 1 else f"{count} schemes take"
    rest = Contest(contest.saving, contest.stats, contest.resized, math.inf)
    return (
        f"{what} as many bits as are stored ({contest.stored_bits:.4g}) or more. Of the rest: "
        f"{first_row(SENTENCES, rest)[1]}"
    )


def _nothing_left(contest: Contest) -> str | None:
    if max(c.db for c in contest.contenders) >= SAME_DB:
        return None
    if contest.first.too_small:
        return (
            "Nothing of this tensor is left under any of them: its values are too small for a "
            "scale. Multiply it by a power of two first."
        )
    return "Nothing of this tensor is left under any of them: take more bits or smaller groups."


def _alone(contest: Contest) -> str | None:
    only = contest.first
    if len(contest.contenders) > 1 or only.db > EXACT_DB:
        return None
    used, bits = only.occupancy.entropy_bits, only.report.scheme.bits
    if used is None:
        return (
            f"{only.name} keeps every column in 16 bits, so there are no codes to count: take a "
            f"higher threshold."
        )
    return (
        f"{only.name} gives {db_text(only.db)} dB at {only.bits:.3f} bits and its codes carry "
        f"{used:.2f} of {bits} bits; add another scheme to compare it with."
    )


def _exact(contest: Contest) -> str | None:
    """About schemes of which nothing but the rounding of float32 is left."""
    rivals = contest.equal if len(contest.equal) > 1 else contest.contenders
    alike = [c for c in rivals if c.db > EXACT_DB]
    if not alike:
        return None
    rest = _left_out(contest) if len(contest.equal) > 1 else ""
    keep = f"{phrase([c.name for c in alike])} keep{'s' * (len(alike) == 1)}"
    how = "exactly" if all(c.db == math.inf for c in alike) else "to the rounding of float32"
    return f"{keep} every element of this tensor {how}.{rest}"


def _ahead(rivals: Sequence[Contender], verb: str) -> str:
    """Who is ahead, or which two are level."""
    best, second, *_ = sorted(rivals, key=lambda c: -c.db)
    if best.db - second.db < SAME_DB:
        return f"{best.name} and {second.name} are level, {db_text(best.db)} dB"
    return f"{best.name} {verb} {best.db - second.db:.1f} dB with {db_text(best.db)}"


def _unequal(contest: Contest) -> str | None:
    """If bits differ: which scheme gives the most decibels."""
    if len(contest.equal) > 1:
        return None
    bits = [c.bits for c in contest.contenders]
    return (
        f"These are not equal bits ({min(bits):.3f} to {max(bits):.3f}): "
        f"{_ahead(contest.contenders, 'leads by')}; {_remedy(contest) or UNEQUAL}."
    )


def _equal(contest: Contest) -> str:
    return (
        f"At equal bits ({contest.best.bits:.3f}) {_ahead(contest.equal, 'wins by')}"
        f".{_integers_and_normal(contest)}{_left_out(contest)}"
    )


SENTENCES: Rows[Contest] = (
    ("nothing to compare", lambda contest: said_of(NOTHING, Case(contest.first.report))),
    ("nothing saved", _saving_nothing),
    ("nothing left", _nothing_left),
    ("one scheme", _alone),
    ("exact", _exact),
    ("unequal bits", _unequal),
    ("equal bits", _equal),
)
