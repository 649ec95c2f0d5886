"""The one sentence an inspection ends in, computed from what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui_core.inspection.report import Census, SchemeTotal, TensorReport
from qtui_core.models.quoting import quoted
from qtui_core.quant import explain
from qtui_core.quant.case import make_case

#: A tensor this far below what a Gaussian tensor of its shape would reach is worth naming.
NOTICEABLE_DB = 1.0
#: Below about this a scheme leaves under ten times as much signal as noise in amplitude.
COARSE_DB = 20.0
#: Outliers with this share of a tensor's sum of squares decide what its SQNR says.
CARRIED_SHARE = 0.2
#: Above this a scheme does not count as small: 4 bits with scales do.
SMALL_BITS = 5.0
#: Schemes this close count as equally good, and the smaller one is better.
SAME_DB = 0.1


def conclude(census: Census, tensors: Sequence[TensorReport], totals: Sequence[SchemeTotal]) -> str:
    """What the numbers mean and what to do.

    Broken weights come first, then the choice among the schemes at 5 bits or fewer, then
    the tensor that is worst for the reason most worth knowing.
    """
    where = _where(tensors)
    broken = [t for t in tensors if t.statistics and t.statistics.nan + t.statistics.inf]
    if broken:
        count = sum(t.statistics.nan + t.statistics.inf for t in broken if t.statistics)
        values = "value that is" if count == 1 else "values that are"
        beyond = "NaN or infinite"
        if any(t.info.dtype == "F64" for t in broken):
            beyond = "NaN, infinite or beyond the range of float32"
        return (
            f"{where}{census.model} has {count:,} {values} {beyond}, first in "
            f"{quoted(broken[0].info.name)}: find out where they come from before quantizing; "
            f"every figure here is over the finite rest."
        )
    matrices = sum(1 for t in tensors if t.errors)
    if not matrices:
        return _nothing_to_quantize(census, len(tensors))
    measured = [t for t in totals if t.relative_mse is not None]
    if not measured:
        return (
            f"{where}Every matrix of {census.model} is zero in float32, which any scheme keeps "
            f"exactly."
        )
    best = choose_total(measured)
    shrink = sum(t.info.nbytes for t in tensors) / best.nbytes if best.nbytes else 1.0
    size = ""
    if shrink > 1.05:
        size = f", {shrink:.1f} times smaller than stored"
    elif shrink < 0.95:
        size = f", which is {1 / shrink:.1f} times larger than stored"
    at = f"at {best.bits_per_parameter:.2f} bits per parameter{size}"
    already = ""
    if census.quantization:
        left = "the one matrix" if matrices == 1 else f"the {matrices} matrices"
        already = f"{census.model} is already quantized; of {left} left in floating point, "
    if best.sqnr_db is None:
        return f"{where}{already}{best.scheme} keeps every value exactly {at}."
    advice = _advice(tensors, list(totals).index(best), best)
    return f"{where}{already}{best.scheme} keeps {best.sqnr_db:z.1f} dB {at}; {advice}."


def _where(tensors: Sequence[TensorReport]) -> str:
    """Says first when the sentence is about a sample."""
    read = sum(t.sampled_parameters for t in tensors)
    there = sum(t.info.elements for t in tensors if t.sampled_parameters)
    return "" if read == there else f"In a sample of {read / there:.2g} of the elements: "


def _nothing_to_quantize(census: Census, tensors: int) -> str:
    if census.quantization:
        return (
            f"{census.model} is already quantized and no matrix is left in floating point: "
            f"compare it with the weights it was made from (qtui inspect ORIGINAL --against "
            f"{census.model})."
        )
    looked = "its one tensor is not" if tensors == 1 else f"none of its {tensors} tensors is"
    return (
        f"Nothing in {census.model} could be quantized: {looked} a floating-point matrix that "
        f"can be read."
    )


def choose_total(totals: Sequence[SchemeTotal]) -> SchemeTotal:
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
    if gap >= NOTICEABLE_DB:
        worst = next(t for t in tensors if t.info.name == name)
        others = [e for i, e in enumerate(worst.errors) if i != index]
        why = explain([worst.errors[index], *others], worst.statistics, worst.outliers)
        return f"the tensor to watch is {quoted(name)}: {why.removesuffix('.')}"
    carried = _carried_by_outliers(tensors)
    if carried:
        return carried
    if min(gaps.values()) <= -NOTICEABLE_DB:
        return "no tensor is worse than a Gaussian of its shape would be, and some are better"
    normal = f"every tensor is within {NOTICEABLE_DB:.0f} dB of what a Gaussian of its shape gives"
    if (best.sqnr_db or 0.0) < COARSE_DB:
        return f"{normal}, so outliers are not the problem: it takes a finer scheme to do better"
    return f"{normal}, so this is normal and no tensor needs an exception"


def _carried_by_outliers(tensors: Sequence[TensorReport]) -> str:
    """A warning where a few values hold much of a tensor's energy: they are what the decibels
    are measured against, and the rest may fare far worse than they say."""
    found = [(t.outliers, t.info.name) for t in tensors if t.outliers and t.errors]
    if not found:
        return ""
    outliers, name = max(found, key=lambda pair: pair[0].energy_share)
    if outliers.energy_share < CARRIED_SHARE:
        return ""
    held = f"{outliers.count:,} outlier{'s' if outliers.count > 1 else ''}"
    if outliers.columns and outliers.count > 1:
        first = outliers.columns[0]
        share = "all" if first.count == outliers.count else f"{first.count:,} of them"
        held += f" ({share} in column {first.column:,})"
    hold = "hold" if outliers.count > 1 else "holds"
    return (
        f"but {held} of {quoted(name)} {hold} {outliers.energy_share:.0%} of its energy, which "
        f"flatters the decibels: keep them in 16 bits and look at what the others lose"
    )


def _below_gaussian(tensor: TensorReport, index: int) -> float:
    """Decibels between a tensor and Gaussian values that the scheme fits: with a scale of
    their own where the model shares one, near 1 for a cast. Above them it is negative."""
    error = tensor.errors[index]
    if not error.relative_mse:
        return 0.0
    worse = make_case(error, tensor.statistics, tensor.outliers).worse
    return worse if math.isfinite(worse) else 0.0
