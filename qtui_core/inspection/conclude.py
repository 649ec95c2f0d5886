"""The one sentence an inspection ends in, computed from what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from qtui_core.inspection.report import Census, SchemeTotal, TensorReport

#: A tensor this far below what a Gaussian tensor of its shape would reach is worth naming.
NOTICEABLE_DB = 1.0
#: Below about this a scheme leaves under ten times as much signal as noise in amplitude.
COARSE_DB = 20.0
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
    ranked = [t for t in totals if t.sqnr_db is not None]
    if not ranked:
        return (
            f"Nothing in {census.model} could be quantized: no floating-point matrix was "
            f"among the {len(tensors)} tensors looked at."
        )
    small = [t for t in ranked if t.bits_per_parameter <= 5.0] or ranked
    highest = max(t.sqnr_db or 0.0 for t in small)
    close = [t for t in small if highest - (t.sqnr_db or 0.0) <= SAME_DB]
    best = min(close, key=lambda t: t.nbytes)
    index = list(totals).index(best)
    shrink = sum(t.info.nbytes for t in tensors) / best.nbytes if best.nbytes else 1.0
    sentence = (
        f"{best.scheme} keeps {best.sqnr_db:.1f} dB at {best.bits_per_parameter:.2f} bits per "
        f"parameter"
    )
    if shrink > 1.05:
        sentence += f", {shrink:.1f} times smaller than stored"
    return f"{sentence}; {_advice(tensors, index, best)}."


def _advice(tensors: Sequence[TensorReport], index: int, best: SchemeTotal) -> str:
    measured = [t for t in tensors if t.errors and t.errors[index].sqnr_db is not None]
    gaps = [(_below_gaussian(t, index), t) for t in measured]
    gap, worst = max(gaps, key=lambda pair: pair[0])
    error = worst.errors[index]
    if gap >= NOTICEABLE_DB:
        outliers = worst.outliers.count if worst.outliers else 0
        cause = f" ({outliers:,} outliers beyond 6 sigma)" if outliers else ""
        return (
            f"the tensor to watch is {worst.info.name}, {gap:.1f} dB worse than a Gaussian of "
            f"its shape{cause}: give it more bits or smaller groups"
        )
    if (best.sqnr_db or 0.0) < COARSE_DB and error.sqnr_db is not None:
        return (
            f"no tensor is more than {max(gap, 0.0):.1f} dB worse than a Gaussian would be, so "
            f"outliers are not the problem: only more bits or smaller groups help"
        )
    return (
        f"every tensor is within {NOTICEABLE_DB:.0f} dB of what a Gaussian of its shape gives, "
        f"so this is normal and no tensor needs an exception"
    )


def _below_gaussian(tensor: TensorReport, index: int) -> float:
    error = tensor.errors[index]
    if error.sqnr_db is None or error.gaussian_sqnr_db is None:
        return 0.0
    return error.gaussian_sqnr_db - error.sqnr_db
