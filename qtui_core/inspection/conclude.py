"""The sentence at the end of an inspection, computed from what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui_core.inspection.report import Census, SchemeTotal, TensorReport
from qtui_core.models.quoting import quoted
from qtui_core.quant import explain
from qtui_core.quant.explain import Case
from qtui_core.quantities import percent, plural

#: A tensor is mentioned if its SQNR is this far below that of a Gaussian tensor of its shape.
NOTICEABLE_DB = 1.0
#: A tensor is not mentioned if its shares of the parameters and of the squared error are both below
#: this.
LEAST_SHARE = 0.01
#: At this SQNR the amplitude of the signal is ten times that of the noise.
COARSE_DB = 20.0
#: From this share of the sum of squares on, outliers determine the SQNR of a tensor.
CARRIED_SHARE = 0.2
#: Schemes above this do not count as small: 4 bits with scales do.
SMALL_BITS = 5.0
#: Schemes this close count as equally good; the smaller one is then better.
SAME_DB = 0.1
#: What the error of weights does not tell.
_NOT_MEASURED = "which of them matters most to the loss of the model is not measured"


def conclude(census: Census, tensors: Sequence[TensorReport], totals: Sequence[SchemeTotal]) -> str:
    """What the numbers mean and what to do.

    Broken weights come first, then the choice among the schemes of 5 bits or fewer, then the tensor
    that most needs attention.
    """
    where = _where(tensors)
    broken = [t for t in tensors if t.statistics and t.statistics.nan + t.statistics.inf]
    if broken:
        count = sum(t.statistics.nan + t.statistics.inf for t in broken if t.statistics)
        values, they = (
            ("value that is", "it comes") if count == 1 else ("values that are", "they come")
        )
        rest = "every figure here is over the finite rest"
        if not any(t.statistics.finite for t in tensors if t.statistics):
            rest = "no value is finite, so nothing could be measured"
        beyond = "NaN or infinite"
        if any(t.info.dtype == "F64" for t in broken):
            beyond = "NaN, infinite or beyond the range of float32"
        return (
            f"{where}{census.model} has {count:,} {values} {beyond}, first in "
            f"{quoted(broken[0].info.name)}: find out where {they} from before quantizing; "
            f"{rest}."
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
    stored = sum(t.info.nbytes for t in tensors)
    best = totals[recommended_scheme(totals, tensors) or 0]
    shrink = stored / best.nbytes if best.nbytes else 1.0
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
    keeps = "every value exactly" if best.sqnr_db is None else f"{best.sqnr_db:z.1f} dB"
    said = f"{where}{already}{best.scheme} keeps {keeps} {at}"
    if best.nbytes >= stored:
        none = "it saves nothing" if len(measured) == 1 else "none of these schemes saves anything"
        return f"{said}; {none}, so leave the model as it is stored."
    if best.sqnr_db is None:
        return f"{said}."
    return f"{said}; {_advice(tensors, list(totals).index(best), best)}."


def recommended_scheme(
    totals: Sequence[SchemeTotal], tensors: Sequence[TensorReport]
) -> int | None:
    """The index of the scheme that the sentence recommends; None if nothing was measured."""
    measured = [t for t in totals if t.relative_mse is not None]
    if not measured:
        return None
    return list(totals).index(choose_total(measured, sum(t.info.nbytes for t in tensors)))


def _where(tensors: Sequence[TensorReport]) -> str:
    """The beginning of a sentence that is about a sample; "" for whole tensors."""
    read = sum(t.sampled_parameters for t in tensors)
    there = sum(t.info.elements for t in tensors if t.sampled_parameters)
    return "" if read == there else f"In a sample of {percent(read / there)} of the elements: "


def _nothing_to_quantize(census: Census, tensors: int) -> str:
    if census.quantization:
        return (
            f"{census.model} is already quantized and no matrix is left in floating point: "
            f"compare it with the weights it was made from (qtui inspect ORIGINAL --against "
            f"{census.model})."
        )
    if not tensors:
        return f"{census.model} has no tensors, so there is nothing to quantize."
    count = "one" if tensors == 1 else f"{tensors:,}"
    every = tensors == sum(each.tensors for each in census.dtypes)
    which = f"its {count}" if every else f"the {count} chosen"
    looked = f"{which} tensor is not" if tensors == 1 else f"none of {which} tensors is"
    return (
        f"Nothing in {census.model} could be quantized: {looked} a floating-point matrix with "
        f"values that can be read."
    )


def choose_total(totals: Sequence[SchemeTotal], stored: int) -> SchemeTotal:
    """The scheme to recommend: the best small one, of equally good ones the smallest; one that
    takes less than the `stored` bytes if there is one."""
    saving = [t for t in totals if t.nbytes < stored] or totals
    small = [t for t in saving if t.bits_per_parameter <= SMALL_BITS] or saving
    highest = max(_quality(t) for t in small)
    close = [t for t in small if _quality(t) >= highest - SAME_DB]
    return min(close, key=lambda t: t.nbytes)


def _quality(total: SchemeTotal) -> float:
    """SQNR in decibels; infinite if there is no error."""
    return math.inf if total.sqnr_db is None else total.sqnr_db


def _advice(tensors: Sequence[TensorReport], index: int, best: SchemeTotal) -> str:
    quantized = [t for t in tensors if t.errors]
    gaps = {t.info.name: _below_gaussian(t, index) for t in quantized}
    worse = [t for t in quantized if gaps[t.info.name] >= NOTICEABLE_DB]
    parameters = sum(t.info.parameters for t in tensors)
    if best.saturated:
        clipped = max(quantized, key=lambda t: t.errors[index].saturated)
        return _to_watch(clipped, "", index)
    if worse:
        # Errors beyond those of a Gaussian tensor, relative to each tensor and weighted by its
        # size.
        beyond = {t.info.name: _beyond_gaussian(t, index) * t.info.parameters for t in worse}
        most = max(worse, key=lambda t: beyond[t.info.name])
        name = quoted(most.info.name)
        size = most.info.parameters / parameters
        total = sum(_squared_error(t, index) for t in quantized) or 1.0
        if max(size, _squared_error(most, index) / total) >= LEAST_SHARE:
            part = beyond[most.info.name] / (sum(beyond.values()) or 1.0)
            held = (
                f", with {percent(size)} of the parameters and {percent(part)} of what all lose "
                f"beyond a Gaussian's error"
            )
            return _to_watch(most, held, index)
    carried = _carried_by_outliers(tensors)
    if carried:
        return carried
    if worse:
        share = percent(sum(t.info.parameters for t in worse) / parameters)
        count = plural(len(worse), "tensor is", "tensors are")
        return (
            f"{count} over {NOTICEABLE_DB:.0f} dB worse than a Gaussian would be, with {share} of "
            f"the parameters in all ({name} loses most); {_NOT_MEASURED}"
        )
    if min(gaps.values()) <= -NOTICEABLE_DB:
        return (
            f"no tensor is more than {NOTICEABLE_DB:.0f} dB worse than a Gaussian of its shape "
            f"would be, and some are better; {_NOT_MEASURED}"
        )
    kept = any(not t.errors[index].relative_mse for t in quantized)
    usual = (
        f"every tensor{' that it does not keep exactly' if kept else ''} is within "
        f"{NOTICEABLE_DB:.0f} dB of what a Gaussian of its shape gives"
    )
    if (best.sqnr_db or 0.0) < COARSE_DB:
        return f"{usual}, so outliers are not the problem: it takes a finer scheme to do better"
    return f"{usual}; {_NOT_MEASURED}"


def _to_watch(tensor: TensorReport, held: str, index: int) -> str:
    """Names a tensor and says what scheme number `index` does to it; the other schemes are
    alternatives."""
    others = [e for i, e in enumerate(tensor.errors) if i != index]
    why = explain(
        [tensor.errors[index], *others],
        tensor.statistics,
        tensor.outliers,
        stored_bits=8 * tensor.info.nbytes / tensor.info.elements,
    )
    return f"the tensor to watch is {quoted(tensor.info.name)}{held}: {why.removesuffix('.')}"


def _squared_error(tensor: TensorReport, index: int) -> float:
    return (tensor.errors[index].relative_mse or 0.0) * tensor.energy


def _beyond_gaussian(tensor: TensorReport, index: int) -> float:
    """By how much the relative error exceeds that of Gaussian values."""
    case = Case(tensor.errors[index], tensor.statistics, tensor.outliers)
    return max(0.0, case.relative_mse - case.ordinary)


def _carried_by_outliers(tensors: Sequence[TensorReport]) -> str:
    """A warning if a few values hold much of a tensor's energy: they raise its SQNR, and the other
    values may fare far worse."""
    parameters = sum(t.info.parameters for t in tensors)
    energy = sum(t.energy for t in tensors if t.errors) or 1.0
    found = [
        (t.outliers.energy_share * t.energy, t.outliers, t.info.name)
        for t in tensors
        if t.errors
        and t.outliers
        and t.outliers.energy_share >= CARRIED_SHARE
        and max(t.info.parameters / parameters, t.energy / energy) >= LEAST_SHARE
    ]
    if not found:
        return ""
    _, outliers, name = max(found, key=lambda carried: carried[0])
    held = f"{outliers.count:,} outlier{'s' if outliers.count > 1 else ''}"
    if outliers.columns and outliers.count > 1:
        first = outliers.columns[0]
        share = "all" if first.count == outliers.count else f"{first.count:,} of them"
        held += f" ({share} in column {first.column:,})"
    hold, them = ("hold", "them") if outliers.count > 1 else ("holds", "it")
    energy_share = percent(outliers.energy_share)
    return (
        f"but {held} of {quoted(name)} {hold} {energy_share} of its energy, which flatters the "
        f"decibels: keep {them} in 16 bits and look at what the others lose"
    )


def _below_gaussian(tensor: TensorReport, index: int) -> float:
    """By how many decibels a tensor is worse than Gaussian values with a suitable scale: of their
    own if the model shares one, near 1 for a cast. Negative if it is better."""
    error = tensor.errors[index]
    if not error.relative_mse:
        return 0.0
    return Case(error, tensor.statistics, tensor.outliers).worse
