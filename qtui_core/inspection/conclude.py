"""The one sentence an inspection ends in, computed from what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui_core.inspection.report import Census, SchemeTotal, TensorReport
from qtui_core.quant import Scheme

#: A tensor this far below what a Gaussian tensor of its shape would reach is worth naming.
NOTICEABLE_DB = 1.0
#: Below about this a scheme leaves under ten times as much signal as noise in amplitude.
COARSE_DB = 20.0
#: Above this a scheme does not count as small: 4 bits with scales do.
SMALL_BITS = 5.0
#: Schemes this close count as equally good, and the smaller one is better.
SAME_DB = 0.1


def conclude(census: Census, tensors: Sequence[TensorReport], totals: Sequence[SchemeTotal]) -> str:
    """What the numbers mean and what to do.

    Broken weights come first, then the choice among the schemes at 5 bits or fewer, then
    the tensor that is worst for the reason most worth knowing.
    """
    broken = [t for t in tensors if t.statistics and t.statistics.nan + t.statistics.inf]
    if broken:
        count = sum(t.statistics.nan + t.statistics.inf for t in broken if t.statistics)
        values = "value that is" if count == 1 else "values that are"
        return (
            f"{census.model} has {count:,} {values} NaN or infinite, first in "
            f"{broken[0].info.name}: find out where they come from before quantizing; every "
            f"figure here is over the finite rest."
        )
    if not any(t.errors for t in tensors):
        return (
            f"Nothing in {census.model} could be quantized: no floating-point matrix was "
            f"among the {len(tensors)} tensors looked at."
        )
    measured = [t for t in totals if t.relative_mse is not None]
    if not measured:
        return f"Every matrix of {census.model} is zero, which any scheme keeps exactly."
    best = _choose(measured)
    shrink = sum(t.info.nbytes for t in tensors) / best.nbytes if best.nbytes else 1.0
    smaller = f", {shrink:.1f} times smaller than stored" if shrink > 1.05 else ""
    at = f"at {best.bits_per_parameter:.2f} bits per parameter{smaller}"
    if best.sqnr_db is None:
        return f"{best.scheme} keeps every value exactly {at}, so it costs nothing but its bytes."
    advice = _advice(tensors, list(totals).index(best), best)
    return f"{best.scheme} keeps {best.sqnr_db:.1f} dB {at}; {advice}."


def _choose(totals: Sequence[SchemeTotal]) -> SchemeTotal:
    """The scheme to talk about: the best small one, and the smallest of equally good ones."""
    small = [t for t in totals if t.bits_per_parameter <= SMALL_BITS] or totals
    highest = max(_quality(t) for t in small)
    close = [t for t in small if _quality(t) >= highest - SAME_DB]
    return min(close, key=lambda t: t.nbytes)


def _quality(total: SchemeTotal) -> float:
    """SQNR in dB; no error at all is infinitely good."""
    return math.inf if total.sqnr_db is None else total.sqnr_db


def _advice(tensors: Sequence[TensorReport], index: int, best: SchemeTotal) -> str:
    gaps = {t.info.name: _below_gaussian(t, index) for t in tensors if t.errors}
    name, gap = max(gaps.items(), key=lambda pair: pair[1])
    scale = Scheme.parse(best.scheme).granularity
    if gap >= NOTICEABLE_DB:
        worst = next(t for t in tensors if t.info.name == name)
        outliers = worst.outliers.count if worst.outliers else 0
        found = f", with {outliers:,} outliers beyond 6 sigma" if outliers else ""
        cure = "more bits" if scale is None else "more bits or smaller groups"
        return (
            f"the tensor to watch is {name}, {gap:.1f} dB worse than a Gaussian of its "
            f"shape{found}: look at it, and give it {cure}"
        )
    if min(gaps.values()) <= -NOTICEABLE_DB:
        return "no tensor is worse than a Gaussian of its shape would be, and some are better"
    normal = f"every tensor is within {NOTICEABLE_DB:.0f} dB of what a Gaussian of its shape gives"
    if (best.sqnr_db or 0.0) < COARSE_DB:
        return f"{normal}, so outliers are not the problem: it takes a finer scheme to do better"
    return f"{normal}, so this is normal and no tensor needs an exception"


def _below_gaussian(tensor: TensorReport, index: int) -> float:
    """Decibels between a tensor and a Gaussian of its shape; above it is negative."""
    error = tensor.errors[index]
    if error.sqnr_db is None or error.gaussian_sqnr_db is None:
        return 0.0
    return error.gaussian_sqnr_db - error.sqnr_db
