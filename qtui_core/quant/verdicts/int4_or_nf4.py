"""Why integers do better on a tensor than NF4 with equal bits, or worse."""

from __future__ import annotations

import math

import numpy as np

from qtui_core.answers.tensors import TensorStatistics
from qtui_core.quant.scan.occupancy import Occupancy
from qtui_core.quant.segments.tensor_plan import make_coder
from qtui_core.quant.verdicts.contest import Contender

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
