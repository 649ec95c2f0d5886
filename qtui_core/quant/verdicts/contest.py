"""Which of several schemes of few bits suits a tensor, why, and what to do: one sentence.

The rules of `RULES` are tried in order; the first that applies gives the sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from qtui_core.answers.tensors import ErrorReport, TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.measure import decibels
from qtui_core.quant.scan.occupancy import Occupancy
from qtui_core.quant.segments.process import make_coder
from qtui_core.quant.storage import bit_budget
from qtui_core.quant.verdicts.causes import EXACT_DB, Rules, first_rule, nonfinite_sentence
from qtui_core.quant.verdicts.explain import DB_PER_BIT
from qtui_core.quant.verdicts.granularities import TOLERANCE, at_equal_bits
from qtui_core.quantities import db_text, phrase, plural
from qtui_core.schemes.scheme import Family


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
    def gaussian_db(self) -> float | None:
        return self.report.gaussian_sqnr_db

    @property
    def bits(self) -> float:
        return self.report.bits_per_parameter


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

    @property
    def saving(self) -> tuple[Contender, ...]:
        """The contenders that take fewer bits than the stored values."""
        return tuple(c for c in self.contenders if c.bits < self.stored_bits)

    @cached_property
    def equal(self) -> tuple[Contender, ...]:
        """The contenders with the bits of the first."""
        return tuple(c for c in self.contenders if abs(c.bits - self.first.bits) <= TOLERANCE)

    @cached_property
    def by_quality(self) -> list[Contender]:
        """The contenders with equal bits, the best first."""
        return sorted(self.equal, key=lambda c: -c.db)

    @property
    def best(self) -> Contender:
        return self.by_quality[0]

    @property
    def lead(self) -> float:
        """Decibels between the best and the second with equal bits."""
        return self.best.db - self.by_quality[1].db

    @property
    def integer(self) -> Contender | None:
        return self._best_of("int4")

    @property
    def normal(self) -> Contender | None:
        return self._best_of("nf4")

    def _best_of(self, name: str) -> Contender | None:
        return next((c for c in self.by_quality if c.report.scheme.format == name), None)


#: Decibels: a smaller difference counts as none.
SAME_DB = 0.1
#: If the mean is this many standard deviations from zero, most values are on one side of it.
ONE_SIDED = 0.5
#: A difference to the Gaussian in the share of values in the outer half of their group that counts.
CROWDED = 0.03


def is_too_small(contender: Contender) -> bool:
    """Whether values are so small that most groups have the smallest possible scale."""
    report = contender.report
    if not report.relative_mse:
        return False
    rms = math.sqrt(report.mse / report.relative_mse)
    return rms < make_coder(report.scheme).smallest_extent


def why_integers(integer: Contender, normal: Contender, stats: TensorStatistics | None) -> str:
    """What in the tensor, or in the schemes, favours evenly spaced levels."""
    asymmetric = not integer.report.scheme.symmetric
    if stats is not None and stats.mean is not None and stats.std:
        offset = abs(stats.mean) / stats.std
        if asymmetric and offset > ONE_SIDED:
            return (
                f"its mean is {offset:.1f} standard deviations from zero, and only a zero point "
                f"moves the levels there"
            )
    outer, usual = _outer_half(normal.occupancy)
    if usual is not None and outer > usual + CROWDED:
        return (
            f"{outer:.0%} of its values lie in the outer half of their block (of a Gaussian's "
            f"{usual:.0%}), where the levels of NF4 are far apart and even ones are not"
        )
    expected = gaussian_lead(integer, normal)
    if expected is not None and expected >= SAME_DB:
        reason = (
            "a range from the smallest to the largest value wastes no levels beyond either, "
            "where NF4 spans the absmax on both sides"
            if asymmetric
            else "its groups are so small that their extremes weigh most, which it has exactly"
        )
        return f"so it is on Gaussian values too (by {expected:.1f} dB), for {reason}"
    if asymmetric:
        return (
            "its groups reach further on one side of zero than on the other, and a zero point "
            "moves the levels there"
        )
    return "its values lie closer to evenly spaced levels than Gaussian ones"


def why_normal(normal: Contender, integer: Contender) -> str:
    if is_too_small(integer):
        return f"its values are too small for the scales of {integer.name}"
    outer, usual = _outer_half(normal.occupancy)
    if usual is not None and outer < usual - CROWDED:
        return (
            f"only {outer:.0%} of its values (a Gaussian: {usual:.0%}) lie in the outer half of a "
            f"block, where NF4 is coarse"
        )
    if usual is not None and outer < usual + CROWDED:
        return (
            f"in their blocks its values are spread as normal ones ({outer:.0%} in the outer "
            f"half), which its levels are made for"
        )
    return "its levels lie where the values of its blocks are"


def gaussian_lead(one: Contender, other: Contender) -> float | None:
    if one.gaussian_db is None or other.gaussian_db is None:
        return None
    return one.gaussian_db - other.gaussian_db


def _outer_half(occupancy: Occupancy) -> tuple[float, float | None]:
    """(share of values beyond half the extent of their group, that of a Gaussian or None)."""
    bins = len(occupancy.density)
    outer = np.ones(bins, bool)
    outer[bins // 4 : bins - bins // 4] = False
    share = float(occupancy.density[outer].sum() / max(1, occupancy.total))
    expected = occupancy.expected_density
    return share, None if expected is None else float(expected[outer].sum())


#: Kurtosis beyond which single blocks set the constants of double quantization, so that the other
#: scales are rounded more coarsely than on a Gaussian.
EXTREME_TAILS = 1000.0
REMEDY = "= makes bits equal"
UNEQUAL = "no group sizes make them equal"
_LEAST_ERROR = "Its error is the least"


def verdict(
    contenders: Sequence[Contender],
    stats: TensorStatistics | None = None,
    *,
    resized: bool = False,
    stored_bits: float = math.inf,
) -> str:
    """A sentence: which scheme wins and by how much, whether it would win on a Gaussian tensor,
    why, and what to do. Only schemes with the bits of the first are compared; the others are named.

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
    return first_rule(RULES, Contest(tuple(contenders), stats, resized, stored_bits))


def _overflowed(contest: Contest) -> str:
    lost = next(c for c in contest.contenders if c.report.overflowed)
    many = plural(lost.report.overflowed, "element")
    return (
        f"{lost.name} turns {many} into infinity or NaN, and its decibels are of the others "
        f"only: leave out nosat to compare it."
    )


def _none_saves(contest: Contest) -> str:
    return (
        f"None of them takes less than the {contest.stored_bits:.4g} bits that are stored (the "
        f"least is {min(c.bits for c in contest.contenders):.3f}), so leave this tensor as it is."
    )


def _some_save_nothing(contest: Contest) -> str:
    count = len(contest.contenders) - len(contest.saving)
    what = "1 scheme takes" if count == 1 else f"{count} schemes take"
    rest = Contest(contest.saving, contest.stats, contest.resized, math.inf)
    return (
        f"{what} as many bits as are stored ({contest.stored_bits:.4g}) or more. Of the rest: "
        f"{first_rule(RULES, rest)}"
    )


def _nothing_left(contest: Contest) -> str:
    if is_too_small(contest.first):
        return (
            "Nothing of this tensor is left under any of them: its values are too small for a "
            "scale. Multiply it by a power of two first."
        )
    return "Nothing of this tensor is left under any of them: take more bits or smaller groups."


def _alone(contest: Contest) -> str:
    only = contest.first
    if only.db > EXACT_DB:
        return _exactly([only])
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


def _unequal(contest: Contest) -> str:
    """If bits differ: which scheme gives the most decibels, and whether they are worth its bits."""
    best, second, *_ = sorted(contest.contenders, key=lambda c: -c.db)
    if best.db > EXACT_DB:
        return _exactly([best])
    low = min(c.bits for c in contest.contenders)
    high = max(c.bits for c in contest.contenders)
    return (
        f"These are not equal bits ({low:.3f} to {high:.3f}): {_first_of(best, second)}; "
        f"{_remedy(contest) or UNEQUAL}."
    )


def _first_of(best: Contender, second: Contender) -> str:
    """The two with the most decibels, whose bits may differ."""
    if best.db - second.db >= SAME_DB:
        return f"{best.name} gives the most, {db_text(best.db)} dB{_worth(best, second)}"
    small, large = sorted((best, second), key=lambda c: c.bits)
    fewer = large.bits - small.bits
    bits = f", and {small.name} takes {fewer:.3f} bits fewer" if fewer > TOLERANCE else ""
    return f"{best.name} and {second.name} are level, {db_text(best.db)} dB{bits}"


def _remedy(contest: Contest) -> str:
    """What `=` does about unequal bits; "" if it can do nothing."""
    if contest.resized:
        return ""
    others = [c.report.scheme for c in contest.contenders if c not in contest.equal]
    found = at_equal_bits(others, contest.first.report.shape, contest.first.bits)
    equal = sum(row.equal for row in found)
    if not equal:
        return ""
    return REMEDY if equal == len(others) else f"{REMEDY} for {equal} of them"


def _worth(better: Contender, other: Contender) -> str:
    """Whether the additional decibels are worth the additional bits."""
    lead, more = better.db - other.db, better.bits - other.bits
    if abs(more) <= TOLERANCE:
        return f", {lead:.1f} dB more than {other.name} in as many bits"
    if more < 0:
        return f", and {other.name} is behind with {-more:.3f} bits more"
    worth = DB_PER_BIT * more
    judged = "less" if lead < worth else "more"
    return (
        f", {lead:.1f} dB more than {other.name} for {more:.3f} bits more, which is {judged} than "
        f"the {worth:.1f} dB they are worth"
    )


def _exact(contest: Contest) -> str:
    alike = [c for c in contest.equal if c.db > EXACT_DB]
    return f"{_exactly([c for c in alike if c.db == math.inf] or alike)}{_left_out(contest)}"


def _exactly(contenders: Sequence[Contender]) -> str:
    """About schemes of which nothing but the rounding of float32 is left."""
    many = len(contenders) > 1
    keep = f"{phrase([c.name for c in contenders])} keep{'' if many else 's'}"
    if all(c.db == math.inf for c in contenders):
        return f"{keep} every element of this tensor exactly."
    least = db_text(min(c.db for c in contenders))
    return (
        f"{keep} {'at least ' if many else ''}{least} dB of this tensor, about what float32 does."
    )


def _do_integers_win(contest: Contest) -> bool:
    integer, normal = contest.integer, contest.normal
    if integer is not contest.best or normal is None:
        return False
    return integer.db - normal.db >= SAME_DB


def _integers_win(contest: Contest) -> str:
    best, integer, normal = contest.best, contest.integer, contest.normal
    assert integer is not None
    assert normal is not None
    return (
        f"INT4 beats NF4 here: at equal bits ({best.bits:.3f}) {integer.name} has "
        f"{db_text(integer.db)} dB, {integer.db - normal.db:.1f} dB more than {normal.name}"
        f"{_beside_gaussian(contest)}. {_use(contest)}: "
        f"{why_integers(integer, normal, contest.stats)}.{_left_out(contest)}"
    )


def _level(contest: Contest) -> str:
    best, second, *_ = contest.by_quality
    return (
        f"At equal bits ({best.bits:.3f}) {best.name} and {second.name} are level, "
        f"{db_text(best.db)} dB{_level_on_gaussian(contest)}. {_use(contest)}."
        f"{_integers_and_normal(contest)}{_left_out(contest)}"
    )


def _wins(contest: Contest) -> str:
    best = contest.best
    return (
        f"At equal bits ({best.bits:.3f}) {best.name} wins by {contest.lead:.1f} dB with "
        f"{db_text(best.db)}{_beside_gaussian(contest)}{_use(contest).removeprefix(_LEAST_ERROR)}."
        f"{_integers_and_normal(contest)}{_left_out(contest)}"
    )


RULES: Rules[Contest] = (
    (
        lambda contest: contest.first.report.count == 0,
        lambda contest: "This tensor has no elements, so there are no codes to count.",
    ),
    (
        lambda contest: contest.first.report.nonfinite > 0,
        lambda contest: nonfinite_sentence(contest.first.report),
    ),
    (lambda contest: any(c.report.overflowed for c in contest.contenders), _overflowed),
    (
        lambda contest: contest.first.report.relative_mse is None,
        lambda contest: "Every element is zero, which every scheme keeps exactly.",
    ),
    (lambda contest: not contest.saving, _none_saves),
    (lambda contest: len(contest.saving) < len(contest.contenders), _some_save_nothing),
    (lambda contest: max(c.db for c in contest.contenders) < SAME_DB, _nothing_left),
    (lambda contest: len(contest.contenders) == 1, _alone),
    (lambda contest: len(contest.equal) == 1, _unequal),
    (lambda contest: contest.best.db > EXACT_DB, _exact),
    (_do_integers_win, _integers_win),
    (lambda contest: contest.lead < SAME_DB, _level),
    (lambda contest: True, _wins),
)


def _left_out(contest: Contest) -> str:
    """The schemes with other bits, which are not compared; the SQNR of a single one that is
    better."""
    others = [c for c in contest.contenders if c not in contest.equal]
    if not others:
        return ""
    text = f" {len(others)} others take other bits"
    if len(others) == 1:
        text = f" {others[0].name} takes {others[0].bits:.3f} bits"
        if others[0].db > contest.best.db:
            text += f" ({db_text(others[0].db)} dB)"
    remedy = _remedy(contest)
    return f"{text}: {remedy}." if remedy else f"{text}."


def _integers_and_normal(contest: Contest) -> str:
    """Which of int4 and nf4 is ahead, and why, if both are present and one is."""
    integer, normal = contest.integer, contest.normal
    if integer is None or normal is None:
        return ""
    ahead = integer.db - normal.db
    if ahead >= SAME_DB:
        why = why_integers(integer, normal, contest.stats)
        return f" {integer.name} beats {normal.name} by {ahead:.1f} dB: {why}."
    if ahead <= -SAME_DB:
        why = why_normal(normal, integer)
        return f" {normal.name} beats {integer.name} by {-ahead:.1f} dB: {why}."
    return ""


def _beside_gaussian(contest: Contest) -> str:
    best = contest.best
    known = [c for c in contest.equal if c.gaussian_db is not None]
    if best.gaussian_db is None or len(known) < 2:
        return ""
    expected = max(known, key=lambda c: c.gaussian_db or 0.0)
    assert expected.gaussian_db is not None
    if expected is best:
        return ", as on a Gaussian"
    lead = expected.gaussian_db - best.gaussian_db
    if lead < SAME_DB:
        return f" (on a Gaussian {expected.name} is as good)"
    return f" (on a Gaussian {expected.name} wins by {lead:.1f})"


def _level_on_gaussian(contest: Contest) -> str:
    """Whether two schemes that are level here differ on a Gaussian."""
    best, second, *_ = contest.by_quality
    lead = gaussian_lead(best, second)
    if lead is None or lead < SAME_DB:
        return _beside_gaussian(contest)
    return f" (on a Gaussian {best.name} is {lead:.1f} dB ahead)"


def _use(contest: Contest) -> str:
    """What to do, and what double quantization would save if it is off."""
    if contest.lead < SAME_DB:
        return "By their error either will do"
    best, stats = contest.best, contest.stats
    scheme = best.report.scheme
    if scheme.family is not Family.CODEBOOK or scheme.double_quantization:
        return _LEAST_ERROR
    if stats is not None and (stats.kurtosis or 0.0) > EXTREME_TAILS:
        return _LEAST_ERROR
    nested, shape = replace(scheme, double_quantization=True), best.report.shape
    spared = bit_budget(scheme, shape).bits_per_parameter
    spared -= bit_budget(nested, shape).bits_per_parameter
    before = decibels(gaussian_relative_mse(scheme, shape))
    after = decibels(gaussian_relative_mse(nested, shape))
    if spared <= TOLERANCE or before is None or after is None:
        return _LEAST_ERROR
    cost = before - after
    for_ = "for next to nothing" if cost < 0.01 else f"for {cost:.2f} dB"
    return f"{_LEAST_ERROR}, and dq would spare {float(spared):.3f} bits {for_} on a Gaussian"
