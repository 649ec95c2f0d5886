"""The sentence at the end of an inspection, computed from what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from qtui_core.inspection.report import Census, SchemeTotal, TensorReport
from qtui_core.inspection.sentences import in_a_sample, not_finite, recommended
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
#: Schemes whose errors differ by less than this factor (0.1 dB) count as equally good.
ALIKE = 10**0.01


def conclude(census: Census, tensors: Sequence[TensorReport], totals: Sequence[SchemeTotal]) -> str:
    """What the numbers mean and what to do.

    Broken weights come first, then the choice among the schemes of 5 bits or fewer, then the tensor
    that most needs attention.
    """
    where = in_a_sample(
        sum(t.sampled_parameters for t in tensors),
        sum(t.info.elements for t in tensors if t.sampled_parameters),
    )
    if broken := [t for t in tensors if t.statistics and t.statistics.nan + t.statistics.inf]:
        count = sum(t.statistics.nan + t.statistics.inf for t in broken if t.statistics)
        rest = "every figure here is over the finite rest"
        if not any(t.statistics.finite for t in tensors if t.statistics):
            rest = "no value is finite, so nothing could be measured"
        first = f"in {census.model}, first in {quoted(broken[0].info.name)}"
        wide = any(t.info.dtype == "F64" for t in broken)
        return f"{where}{not_finite(count, first, float64=wide)}; {rest}."
    matrices = sum(1 for t in tensors if t.errors)
    if not matrices:
        return _nothing_to_quantize(census, len(tensors))
    index = recommended_scheme(totals, tensors)
    if index is None:
        return (
            f"{where}Every matrix of {census.model} is zero in float32, which any scheme keeps "
            f"exactly."
        )
    best, stored = totals[index], sum(t.info.nbytes for t in tensors)
    shrink = stored / best.nbytes if best.nbytes else 1.0
    size = ""
    if shrink > 1.05:
        size = f", {shrink:.1f} times smaller than stored"
    elif shrink < 0.95:
        size = f", which is {1 / shrink:.1f} times larger than stored"
    at = f"at {best.bits_per_parameter:.2f} bits per parameter{size}"
    if census.quantization:
        left = "the one matrix" if matrices == 1 else f"the {matrices} matrices"
        where += f"{census.model} is already quantized; of {left} left in floating point, "
    keeps = "every value exactly" if best.sqnr_db is None else f"{best.sqnr_db:z.1f} dB"
    said = f"{where}{best.scheme} keeps {keeps} {at}"
    if best.nbytes >= stored:
        one = sum(total.relative_mse is not None for total in totals) == 1
        none = "it saves nothing" if one else "none of these schemes saves anything"
        return f"{said}; {none}, so leave the model as it is stored."
    if best.sqnr_db is None:
        return f"{said}."
    return f"{said}; {_advice(tensors, index, best)}."


def recommended_scheme(
    totals: Sequence[SchemeTotal], tensors: Sequence[TensorReport]
) -> int | None:
    """The index of the scheme that the sentence recommends; None if nothing was measured."""
    measured = [t for t in totals if t.relative_mse is not None]
    if not measured:
        return None
    stored = sum(t.info.nbytes for t in tensors)
    return list(totals).index(recommended(measured, lambda t: t.relative_mse or 0.0, stored, ALIKE))


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
    none = f"{which} tensor is not" if tensors == 1 else f"none of {which} tensors is"
    return (
        f"Nothing in {census.model} could be quantized: {none} a floating-point matrix with "
        f"values that can be read."
    )


def _advice(tensors: Sequence[TensorReport], index: int, best: SchemeTotal) -> str:
    quantized = [t for t in tensors if t.errors]
    cases = {t.info.name: Case(t.errors[index], t.statistics, t.outliers) for t in quantized}
    errors = {t.info.name: (t.errors[index].relative_mse or 0.0) * t.energy for t in quantized}
    # By how many decibels each is worse than Gaussian values with a suitable scale.
    gaps = {name: case.worse if case.relative_mse else 0.0 for name, case in cases.items()}
    worse = [t for t in quantized if gaps[t.info.name] >= NOTICEABLE_DB]
    parameters = sum(t.info.parameters for t in tensors)
    if best.saturated:
        clipped = max(quantized, key=lambda t: t.errors[index].saturated)
        return _to_watch(clipped, "", index)
    name = ""
    if worse:
        # Errors beyond those of a Gaussian tensor, relative to each tensor and weighted by its
        # size.
        beyond = {
            t.info.name: max(0.0, case.relative_mse - case.ordinary) * t.info.parameters
            for t in worse
            for case in (cases[t.info.name],)
        }
        most = max(worse, key=lambda t: beyond[t.info.name])
        name, size = most.info.name, most.info.parameters / parameters
        if max(size, errors[name] / (sum(errors.values()) or 1.0)) >= LEAST_SHARE:
            part = beyond[name] / (sum(beyond.values()) or 1.0)
            held = (
                f", with {percent(size)} of the parameters and {percent(part)} of what all lose "
                f"beyond a Gaussian's error"
            )
            return _to_watch(most, held, index)
    if carried := _carried_by_outliers(tensors):
        return carried
    if worse:
        share = percent(sum(t.info.parameters for t in worse) / parameters)
        return (
            f"{plural(len(worse), 'tensor is', 'tensors are')} over {NOTICEABLE_DB:.0f} dB worse "
            f"than a Gaussian would be, with {share} of the parameters in all ({quoted(name)} "
            f"loses most)"
        )
    usual = f"no tensor is over {NOTICEABLE_DB:.0f} dB worse than a Gaussian of its shape would be"
    if (best.sqnr_db or 0.0) < COARSE_DB:
        return f"{usual}, so outliers are not the problem: it takes a finer scheme to do better"
    return usual if len(quantized) == 1 else f"{usual}: --sensitivity tells which the loss feels"


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


def _carried_by_outliers(tensors: Sequence[TensorReport]) -> str:
    """A warning if a few values hold much of a tensor's energy: they raise its SQNR, and the other
    values may fare far worse."""
    parameters = sum(t.info.parameters for t in tensors)
    energy = sum(t.energy for t in tensors if t.errors) or 1.0
    carried = [
        (t.outliers.energy_share * t.energy, t.outliers, t.info.name)
        for t in tensors
        if t.errors
        and t.outliers
        and t.outliers.energy_share >= CARRIED_SHARE
        and max(t.info.parameters / parameters, t.energy / energy) >= LEAST_SHARE
    ]
    if not carried:
        return ""
    _, outliers, name = max(carried, key=lambda each: each[0])
    one = outliers.count == 1
    held = plural(outliers.count, "outlier")
    if outliers.columns and not one:
        first = outliers.columns[0]
        share = "all" if first.count == outliers.count else f"{first.count:,} of them"
        held += f" ({share} in column {first.column:,})"
    return (
        f"but {held} of {quoted(name)} {'holds' if one else 'hold'} "
        f"{percent(outliers.energy_share)} of its energy, which flatters the decibels: keep "
        f"{'it' if one else 'them'} in 16 bits and look at what the others lose"
    )
