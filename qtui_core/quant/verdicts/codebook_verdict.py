"""Which of several schemes of few bits suits a tensor, why, and what to do: one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qtui_core.answers.tensors import ErrorReport, TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.quant.bit_budget import bit_budget
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.measure import decibels
from qtui_core.quant.scan.occupancy import Occupancy
from qtui_core.quant.segments.process import make_coder
from qtui_core.quant.verdicts.alternatives import DB_PER_BIT
from qtui_core.quant.verdicts.case import EXACT_DB, db_text, number
from qtui_core.quant.verdicts.equal_bits import TOLERANCE
from qtui_core.schemes.scheme import Family

#: Less than this is as good as nothing.
SAME_DB = 0.1
#: A mean of so many standard deviations puts most values on one side of zero.
ONE_SIDED = 0.5
#: More (or fewer) of the values than of a Gaussian's in the outer half of their group.
CROWDED = 0.03
#: Kurtosis beyond which the constants of double quantization follow single blocks, and the scales
#: beside these cost more than on a Gaussian.
EXTREME_TAILS = 1000.0
REMEDY = "= makes bits equal"
_LEAST_ERROR = "Its error is the least"


@dataclass(frozen=True)
class Contender:
    """A scheme as it did on one tensor. The others are of the same tensor."""

    report: ErrorReport
    occupancy: Occupancy

    @property
    def name(self) -> str:
        return str(self.report.scheme)

    @property
    def db(self) -> float:
        """Signal to noise; infinite where nothing was lost."""
        return float("inf") if self.report.sqnr_db is None else self.report.sqnr_db

    @property
    def gaussian_db(self) -> float | None:
        return self.report.gaussian_sqnr_db

    @property
    def bits(self) -> float:
        return self.report.bits_per_parameter


def verdict(
    contenders: Sequence[Contender],
    stats: TensorStatistics | None = None,
    *,
    resized: bool = False,
    stored_bits: float = math.inf,
) -> str:
    """Who wins and by how much, whether a Gaussian tensor would say the same, why, and what to
    do. Only schemes at the bits of the first one are compared; the others are named.

    `stats` is of the tensor, and tells why. `resized` says that groups have been made as large
    as equal bits ask for, so that this is no longer something to do. `stored_bits` are those of
    a parameter as it is: what takes as many is not advised.
    """
    if not contenders:
        return "No scheme is chosen: type some, for example nf4 int4 fp4."
    first = contenders[0].report
    if first.count == 0:
        return "This tensor has no elements, so there are no codes to count."
    if first.nonfinite:
        return (
            f"{number(first.nonfinite, 'element is', 'elements are')} NaN or infinite: find out "
            f"where they come from first; every figure is over the finite rest."
        )
    lost = [c for c in contenders if c.report.overflowed]
    if lost:
        many = number(lost[0].report.overflowed, "element", "elements")
        return (
            f"{lost[0].name} turns {many} into infinity or NaN, and its decibels are of the others "
            f"only: leave out nosat to compare it."
        )
    if first.relative_mse is None:
        return "Every element is zero, which every scheme keeps exactly."
    saving = [c for c in contenders if c.bits < stored_bits]
    if not saving:
        return (
            f"None of them takes less than the {stored_bits:.4g} bits that are stored (the least "
            f"is {min(c.bits for c in contenders):.3f}), so leave this tensor as it is."
        )
    if len(saving) < len(contenders):
        count = len(contenders) - len(saving)
        what = "1 scheme takes" if count == 1 else f"{count} schemes take"
        rest = verdict(saving, stats, resized=resized)
        return f"{what} as many bits as are stored ({stored_bits:.4g}) or more. Of the rest: {rest}"
    if max(c.db for c in contenders) < SAME_DB:
        return _nothing_left(contenders[0])
    if len(contenders) == 1:
        return _alone(contenders[0])
    equal = [c for c in contenders if abs(c.bits - contenders[0].bits) <= TOLERANCE]
    others = [c for c in contenders if c not in equal]
    if len(equal) == 1:
        return _unequal(contenders, resized)
    return _equal(equal, stats) + _left_out(others, equal, resized)


def _nothing_left(first: Contender) -> str:
    if _is_too_small(first):
        return (
            "Nothing of this tensor is left under any of them: its values are too small for a "
            "scale. Multiply it by a power of two first."
        )
    return "Nothing of this tensor is left under any of them: take more bits or smaller groups."


def _is_too_small(contender: Contender) -> bool:
    """Whether most groups have the smallest scale there is, whatever is in them."""
    report = contender.report
    if not report.relative_mse:
        return False
    rms = math.sqrt(report.mse / report.relative_mse)
    return rms < make_coder(report.scheme).smallest_extent


def _alone(only: Contender) -> str:
    if only.db > EXACT_DB:
        return f"{only.name} keeps every element of this tensor exactly."
    used, bits = only.occupancy.entropy_bits, only.report.scheme.bits
    assert used is not None
    return (
        f"{only.name} gives {db_text(only.db)} dB at {only.bits:.3f} bits and its codes carry "
        f"{used:.2f} of {bits} bits; add another scheme to compare it with."
    )


def _unequal(contenders: Sequence[Contender], resized: bool) -> str:
    """No winner where one of them had more bits to spend, unless its lead is more than these
    are worth."""
    best, second = _best_two(contenders)
    if best.db > EXACT_DB:
        return f"{best.name} keeps every element of this tensor exactly."
    low, high = min(c.bits for c in contenders), max(c.bits for c in contenders)
    text = (
        f"These are not equal bits ({low:.3f} to {high:.3f}): {best.name} gives the most, "
        f"{db_text(best.db)} dB{_worth(best, second)}"
    )
    return f"{text}; {REMEDY}." if not resized else f"{text}; no group sizes make them equal."


def _worth(better: Contender, other: Contender) -> str:
    """Whether more decibels are more than more bits are worth."""
    lead, more = better.db - other.db, better.bits - other.bits
    if more < -TOLERANCE:
        return f", and {other.name} is behind with {-more:.3f} bits more"
    worth = DB_PER_BIT * more
    judged = "less" if lead < worth else "more"
    return (
        f", {lead:.1f} dB more than {other.name} for {more:.3f} bits more, which is {judged} than "
        f"the {worth:.1f} dB they are worth"
    )


def _left_out(others: Sequence[Contender], equal: Sequence[Contender], resized: bool) -> str:
    """The schemes that had more or fewer bits, and the best of them where it has more
    decibels too."""
    if not others:
        return ""
    best, winner = max(others, key=lambda c: c.db), max(equal, key=lambda c: c.db)
    if len(others) == 1:
        text = f" {best.name} takes {best.bits:.3f} bits and is not compared"
    else:
        text = f" {len(others)} others take other bits and are not compared"
    if best.db > winner.db:
        text += f" ({db_text(best.db)} dB)" if len(others) == 1 else ""
    return f"{text}." if resized else f"{text}: {REMEDY}."


def _equal(equal: Sequence[Contender], stats: TensorStatistics | None) -> str:
    best, second = _best_two(equal)
    if best.db > EXACT_DB:
        exact = [c.name for c in equal if c.db > EXACT_DB]
        return f"{', '.join(exact)} {_keep(exact)} every element of this tensor exactly."
    lead = best.db - second.db
    at = f"equal bits ({best.bits:.3f})"
    integer, normal = _of_format(equal, "int4"), _of_format(equal, "nf4")
    ahead = 0.0 if integer is None or normal is None else integer.db - normal.db
    if integer is not None and normal is not None and integer is best and ahead >= SAME_DB:
        why = _why_integers(integer, normal, stats)
        return (
            f"INT4 beats NF4 here: at {at} {integer.name} has {db_text(integer.db)} dB, "
            f"{ahead:.1f} dB more than {normal.name}{_beside_gaussian(equal, best)}. "
            f"{_use(best, lead, stats)}: {why}."
        )
    if lead < SAME_DB:
        won = f"At {at} {best.name} and {second.name} are level, {db_text(best.db)} dB"
        won += _level_on_gaussian(equal, best, second)
    else:
        won = f"At {at} {best.name} wins by {lead:.1f} dB with {db_text(best.db)}"
        won += _beside_gaussian(equal, best)
    sentence = f"{won}. {_use(best, lead, stats)}."
    if integer is None or normal is None:
        return sentence
    if ahead >= SAME_DB:
        why = _why_integers(integer, normal, stats)
        return f"{sentence} {integer.name} beats {normal.name} by {ahead:.1f} dB: {why}."
    if ahead <= -SAME_DB:
        why = _why_normal(normal, integer)
        return f"{sentence} {normal.name} beats {integer.name} by {-ahead:.1f} dB: {why}."
    return sentence


def _keep(names: Sequence[str]) -> str:
    return "keeps" if len(names) == 1 else "keep"


def _best_two(contenders: Sequence[Contender]) -> tuple[Contender, Contender]:
    best, second, *_ = sorted(contenders, key=lambda c: -c.db)
    return best, second


def _of_format(contenders: Sequence[Contender], name: str) -> Contender | None:
    return max(
        (c for c in contenders if c.report.scheme.format == name), key=lambda c: c.db, default=None
    )


def _beside_gaussian(equal: Sequence[Contender], best: Contender) -> str:
    known = [c for c in equal if c.gaussian_db is not None]
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


def _level_on_gaussian(equal: Sequence[Contender], best: Contender, second: Contender) -> str:
    """Two that are level here need not be so on a Gaussian."""
    lead = _gaussian_lead(best, second)
    if lead is None or lead < SAME_DB:
        return _beside_gaussian(equal, best)
    return f" (on a Gaussian {best.name} is {lead:.1f} dB ahead)"


def _why_integers(integer: Contender, normal: Contender, stats: TensorStatistics | None) -> str:
    """What about the tensor, or about the schemes, is for evenly spaced levels."""
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
    expected = _gaussian_lead(integer, normal)
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


def _why_normal(normal: Contender, integer: Contender) -> str:
    if _is_too_small(integer):
        return f"its values are too small for the scales of {integer.name}"
    outer, usual = _outer_half(normal.occupancy)
    if usual is not None and outer < usual - CROWDED:
        return (
            f"only {outer:.0%} of its values lie in the outer half of their block (of a "
            f"Gaussian's {usual:.0%}), and near zero the levels of NF4 are closest"
        )
    if usual is not None and outer < usual + CROWDED:
        return (
            f"in their blocks its values are spread as normal ones ({outer:.0%} in the outer "
            f"half), which its levels are made for"
        )
    return "its levels lie where the values of its blocks are"


def _gaussian_lead(one: Contender, other: Contender) -> float | None:
    if one.gaussian_db is None or other.gaussian_db is None:
        return None
    return one.gaussian_db - other.gaussian_db


def _outer_half(occupancy: Occupancy) -> tuple[float, float | None]:
    """The share of values beyond half the extent of their group, and that of a Gaussian's."""
    bins = len(occupancy.density)
    outer = np.ones(bins, bool)
    outer[bins // 4 : bins - bins // 4] = False
    share = float(occupancy.density[outer].sum() / max(1, occupancy.total))
    expected = occupancy.expected_density
    return share, None if expected is None else float(expected[outer].sum())


def _use(best: Contender, lead: float, stats: TensorStatistics | None) -> str:
    """What to do, and what double quantization would spare where it is not on."""
    if lead < SAME_DB:
        return "Their error does not tell which to take"
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
    return f"Its error is the least, and dq would spare {float(spared):.3f} bits {for_}"
