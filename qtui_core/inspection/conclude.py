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
#: From this share of the sum of squares on, outliers determine the SQNR of a tensor: they raise it,
#: and the other values may fare far worse.
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
    quantized = [t for t in tensors if t.errors]
    if not quantized:
        if census.quantization:
            return (
                f"{census.model} is already quantized and no matrix is left in floating point: "
                f"compare it with the weights it was made from (qtui inspect ORIGINAL --against "
                f"{census.model})."
            )
        return (
            f"Nothing in {census.model} could be quantized: of {plural(len(tensors), 'tensor')} "
            f"none is a floating-point matrix with values that can be read."
        )
    index = recommended_scheme(totals, tensors)
    if index is None:
        return (
            f"{where}Every matrix of {census.model} is zero in float32, which any scheme keeps "
            f"exactly."
        )
    best, stored = totals[index], sum(t.info.nbytes for t in tensors)
    size = ""
    if best.nbytes and not 0.95 <= (shrink := stored / best.nbytes) <= 1.05:
        size = f", {shrink:.1f} times smaller than stored"
        if shrink < 1:
            size = f", which is {1 / shrink:.1f} times larger than stored"
    if census.quantization:
        left = plural(len(quantized), "matrix", "matrices")
        where += f"{census.model} is already quantized; of {left} left in floating point, "
    keeps = "every value exactly" if best.sqnr_db is None else f"{best.sqnr_db:z.1f} dB"
    at = f"at {best.bits_per_parameter:.2f} bits per parameter{size}"
    said = f"{where}{best.scheme} keeps {keeps} {at}"
    if best.nbytes >= stored:
        return f"{said}; that saves nothing, so leave the model as it is stored."
    if best.sqnr_db is None:
        return f"{said}."
    parameters = sum(t.info.parameters for t in tensors)
    return f"{said}; {_advice(quantized, parameters, index, best)}."


def recommended_scheme(
    totals: Sequence[SchemeTotal], tensors: Sequence[TensorReport]
) -> int | None:
    """The index of the scheme that the sentence recommends; None if nothing was measured."""
    measured = [t for t in totals if t.relative_mse is not None]
    if not measured:
        return None
    stored = sum(t.info.nbytes for t in tensors)
    return list(totals).index(recommended(measured, lambda t: t.relative_mse or 0.0, stored, ALIKE))


def _advice(
    quantized: Sequence[TensorReport], parameters: int, index: int, best: SchemeTotal
) -> str:
    if best.saturated:
        return _to_watch(max(quantized, key=lambda t: t.errors[index].saturated), index)
    error = sum((t.errors[index].relative_mse or 0.0) * t.energy for t in quantized) or 1.0
    energy = sum(t.energy for t in quantized) or 1.0

    def share(tensor: TensorReport, of_all: float) -> float:
        """Of the parameters, or of something else if that is more."""
        return max(tensor.info.parameters / parameters, of_all)

    cases = [(t, Case(t.errors[index], t.statistics, t.outliers)) for t in quantized]
    # By how much they are worse than Gaussian values with a suitable scale, weighted by size.
    worse = {
        t.info.name: max(0.0, case.relative_mse - case.ordinary) * t.info.parameters
        for t, case in cases
        if case.relative_mse and case.worse >= NOTICEABLE_DB
    }
    most = max(quantized, key=lambda t: worse.get(t.info.name, -1.0))
    own = (most.errors[index].relative_mse or 0.0) * most.energy
    if worse and share(most, own / error) >= LEAST_SHARE:
        return _to_watch(most, index)
    for t in sorted(quantized, key=lambda t: -t.energy):
        held = t.outliers.energy_share if t.outliers else 0.0
        if t.outliers and held >= CARRIED_SHARE and share(t, t.energy / energy) >= LEAST_SHARE:
            return (
                f"but {plural(t.outliers.count, 'outlier holds', 'outliers hold')} {percent(held)} "
                f"of the energy of {quoted(t.info.name)}, which flatters the decibels: look at "
                f"what its other values lose"
            )
    if worse:
        part = percent(
            sum(t.info.parameters for t in quantized if t.info.name in worse) / parameters
        )
        return (
            f"{plural(len(worse), 'tensor is', 'tensors are')} over {NOTICEABLE_DB:.0f} dB worse "
            f"than a Gaussian would be, with {part} of the parameters in all "
            f"({quoted(most.info.name)} loses most)"
        )
    usual = f"no tensor is over {NOTICEABLE_DB:.0f} dB worse than a Gaussian of its shape would be"
    if (best.sqnr_db or 0.0) < COARSE_DB:
        return f"{usual}, so outliers are not the problem: it takes a finer scheme to do better"
    return usual if len(quantized) == 1 else f"{usual}: --sensitivity tells which the loss feels"


def _to_watch(tensor: TensorReport, index: int) -> str:
    """Names a tensor and says what scheme number `index` does to it; the other schemes are
    alternatives."""
    others = [e for i, e in enumerate(tensor.errors) if i != index]
    why = explain(
        [tensor.errors[index], *others],
        tensor.statistics,
        tensor.outliers,
        stored_bits=8 * tensor.info.nbytes / tensor.info.elements,
    )
    return f"the tensor to watch is {quoted(tensor.info.name)}: {why.removesuffix('.')}"
