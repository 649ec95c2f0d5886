"""Which scheme for which tensor: the least total error in a budget, and what each byte buys.

Errors add up over tensors. Weighed by weights, the error of a tensor is its squared error, and
the total is relative to the energy of all matrices, as in the totals of an inspection. Weighed by
outputs, it is the expected squared error of the layer's output over its expected square, where
inputs have the second moments that calibration text gave them; each layer counts the same, since
a normalization follows each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qtui_core.errors import UsageError
from qtui_core.inspection.assignment import Frontier, Option, frontier
from qtui_core.inspection.conclude import choose_total
from qtui_core.inspection.report import Inspection, TensorReport
from qtui_core.inspection.rows import open_rows
from qtui_core.inspection.sample import limit_of
from qtui_core.models import ModelSource
from qtui_core.models.quoting import quoted
from qtui_core.quant import PerModel, Scheme
from qtui_core.quant.column_errors import column_errors
from qtui_core.quant.measure import decibels

#: Points of the frontier that are kept of it, for a curve.
CURVE_POINTS = 160
#: What an option is called that leaves the tensor as it is.
AS_STORED = "as stored"
#: A gain below this is not worth a sentence.
NOTICEABLE_DB = 0.1
#: A larger budget is worth a look from here on.
WORTH_DB = 1.0

Float64 = npt.NDArray[np.float64]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, eq=False)
class InputMoments:
    """The mean of the square of each input channel of a layer, float64 `[inputs]`. The weight is
    [outputs, inputs], or with `transposed` [inputs, outputs] (the Conv1D of GPT-2)."""

    second_moment: Float64
    transposed: bool = False


@dataclass(frozen=True)
class TensorOptions:
    """The ways to store one tensor: schemes (None leaves it as stored) with bytes and the share
    that each adds to the total error."""

    name: str
    parameters: int
    schemes: tuple[str | None, ...]
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Weighing:
    """What errors are counted by: "weights" or "outputs". `kept_bytes` are those of tensors no
    scheme applies to; `unweighed` names tensors whose inputs were not seen, which count by their
    weights instead; `nonfinite` values that were read of the tensors count in no error."""

    by: str
    tensors: tuple[TensorOptions, ...]
    kept_bytes: int
    parameters: int
    unweighed: tuple[str, ...] = ()
    nonfinite: int = 0


@dataclass(frozen=True)
class TensorChoice:
    """What one tensor gets; `error` is its share of the total relative error."""

    name: str
    parameters: int
    scheme: str | None
    nbytes: int
    error: float


@dataclass(frozen=True)
class FrontierPoint:
    """The least relative error in so many bytes of the model; `sqnr_db` is None without error."""

    nbytes: int
    bits_per_parameter: float
    relative_error: float
    sqnr_db: float | None


@dataclass(frozen=True)
class UniformPoint:
    """One scheme for every tensor, and what an assignment of the same bytes reaches."""

    scheme: str
    point: FrontierPoint
    assigned: FrontierPoint


@dataclass(frozen=True)
class Sensitivity:
    """The assignment for a budget, and the frontier around it.

    `bound` is a relative error that no assignment within the budget can be below; equal to that
    of `point` where `exact`.
    """

    by: str
    budget: int
    point: FrontierPoint
    bound: float
    exact: bool
    choices: tuple[TensorChoice, ...]
    frontier: tuple[FrontierPoint, ...]
    uniform: tuple[UniformPoint, ...]
    unweighed: tuple[str, ...]
    conclusion: str


def refuse_shared_scales(schemes: Sequence[Scheme]) -> None:
    """Raises UsageError for a scheme whose scale belongs to the whole model: tensors with
    schemes of their own do not share one."""
    for scheme in schemes:
        if isinstance(scheme.granularity, PerModel):
            raise UsageError(
                f"{scheme} shares one scale among all tensors, so it cannot be given to some of "
                f"them: write {scheme.format}:tensor."
            )


def weigh_by_weights(inspection: Inspection) -> Weighing:
    """Options from the errors that an inspection measured."""
    quantized = [t for t in inspection.tensors if t.errors]
    total = sum(_energy(t) for t in quantized) or 1.0

    def error_of(tensor: TensorReport, index: int) -> float:
        return (tensor.errors[index].relative_mse or 0.0) * _energy(tensor) / total

    return _weighing("weights", inspection, error_of)


def weigh_by_outputs(
    source: ModelSource,
    inspection: Inspection,
    inputs: Mapping[str, InputMoments],
    *,
    full: bool = False,
    progress: Progress | None = None,
) -> Weighing:
    """Options whose errors are those of the layers' outputs. Reads the values once more.

    Args:
        source: the inspected model.
        inspection: of the same tensors and schemes, sampled alike.
        inputs: tensor name -> what its layer's inputs are like. A tensor without them counts
            by its weights: of an embedding the rows themselves are the output.
        progress: as for `inspect_model`.
    """
    quantized = [t for t in inspection.tensors if t.errors]
    limit = limit_of(source, full=full)
    relative: dict[str, list[float]] = {}
    unweighed = []
    for index, tensor in enumerate(quantized):
        name = tensor.info.name
        if progress:
            progress(index, len(quantized), name)
        moments = inputs.get(name)
        if moments is None:
            relative[name] = [e.relative_mse or 0.0 for e in tensor.errors]
            unweighed.append(name)
            continue
        relative[name] = _of_outputs(source, tensor, moments, limit)

    def error_of(tensor: TensorReport, index: int) -> float:
        return relative[tensor.info.name][index] / len(quantized)

    return _weighing("outputs", inspection, error_of, tuple(unweighed))


def _of_outputs(
    source: ModelSource, tensor: TensorReport, inputs: InputMoments, limit: int | None
) -> list[float]:
    """E|ΔW x|² / E|W x|² of each scheme, for inputs of these second moments that do not
    correlate."""
    rows, sample = open_rows(source, tensor.info, limit)
    weights = inputs.second_moment
    if inputs.transposed:
        weights = weights[np.concatenate([np.arange(*strip) for strip in sample.strips])]
    found = []
    for error in tensor.errors:
        sums = column_errors(rows, error.scheme)
        wrong, signal = sums.squared_error, sums.squared
        if inputs.transposed:
            wrong, signal = sums.row_squared_error, sums.row_squared
        energy = float(signal @ weights)
        found.append(float(wrong @ weights) / energy if energy > 0 else 0.0)
    return found


def _weighing(
    by: str,
    inspection: Inspection,
    error_of: Callable[[TensorReport, int], float],
    unweighed: tuple[str, ...] = (),
) -> Weighing:
    options = []
    kept = nonfinite = 0
    for tensor in inspection.tensors:
        info = tensor.info
        if not tensor.errors:
            kept += info.nbytes
            continue
        if tensor.statistics:
            nonfinite += tensor.statistics.nan + tensor.statistics.inf
        found = [Option(e.bytes, error_of(tensor, i)) for i, e in enumerate(tensor.errors)]
        options.append(
            TensorOptions(
                name=info.name,
                parameters=info.parameters,
                schemes=(*(str(e.scheme) for e in tensor.errors), None),
                options=(*found, Option(info.nbytes, 0.0)),
            )
        )
    parameters = sum(t.info.parameters for t in inspection.tensors)
    return Weighing(by, tuple(options), kept, parameters, unweighed, nonfinite)


def _energy(tensor: TensorReport) -> float:
    return tensor.statistics.mean_square * tensor.info.elements if tensor.statistics else 0.0


def default_budget(inspection: Inspection) -> int:
    """The bytes of the one scheme for all tensors that an inspection recommends."""
    return choose_total([t for t in inspection.schemes if t.relative_mse is not None]).nbytes


def assign_schemes(weighing: Weighing, budget: int) -> Sensitivity:
    """The assignment of least error within `budget` bytes of the whole model.

    Raises UsageError where not even the smallest options fit.
    """
    found = frontier([t.options for t in weighing.tensors])
    best = found.best_within(budget - weighing.kept_bytes)
    if best is None:
        least = int(found.nbytes[0]) + weighing.kept_bytes
        raise UsageError(
            f"A budget of {budget:,} byte{'s' * (budget != 1)} cannot be met: these schemes make "
            f"the tensors no smaller than {least:,} bytes "
            f"({8 * least / weighing.parameters:.2f} bits per parameter). "
            "Name a smaller scheme, or raise the budget."
        )
    choices = tuple(
        TensorChoice(
            tensor.name,
            tensor.parameters,
            tensor.schemes[index],
            tensor.options[index].nbytes,
            tensor.options[index].error,
        )
        for tensor, index in zip(weighing.tensors, best.chosen, strict=True)
    )
    point = _point(weighing, best.nbytes, best.error)
    uniform = _uniform(weighing, found)
    curve = _curve(weighing, found)
    return Sensitivity(
        by=weighing.by,
        budget=budget,
        point=point,
        bound=best.bound,
        exact=best.bound == best.error,
        choices=choices,
        frontier=curve,
        uniform=uniform,
        unweighed=weighing.unweighed,
        conclusion=_conclude(weighing, point, choices, uniform, curve),
    )


def _point(weighing: Weighing, nbytes: int, error: float) -> FrontierPoint:
    total = nbytes + weighing.kept_bytes
    bits = 8 * total / weighing.parameters if weighing.parameters else 0.0
    return FrontierPoint(total, bits, error, decibels(error))


def _curve(weighing: Weighing, found: Frontier) -> tuple[FrontierPoint, ...]:
    """Points of the frontier at about equal distances in bytes, both ends among them."""
    wanted = np.linspace(found.nbytes[0], found.nbytes[-1], CURVE_POINTS)
    at = np.unique(np.searchsorted(found.nbytes, wanted, side="right") - 1)
    return tuple(_point(weighing, int(found.nbytes[i]), float(found.error[i])) for i in at)


def _uniform(weighing: Weighing, found: Frontier) -> tuple[UniformPoint, ...]:
    points = []
    schemes = weighing.tensors[0].schemes[:-1] if weighing.tensors else ()
    for index, scheme in enumerate(schemes):
        options = [t.options[index] for t in weighing.tensors]
        nbytes, error = sum(o.nbytes for o in options), sum(o.error for o in options)
        own = _point(weighing, nbytes, error)
        best = found.best_within(nbytes)
        assigned = own
        # A frontier that was thinned may have lost even this assignment.
        if best is not None and best.error < error:
            assigned = _point(weighing, best.nbytes, best.error)
        points.append(UniformPoint(scheme or AS_STORED, own, assigned))
    return tuple(points)


def _conclude(
    weighing: Weighing,
    point: FrontierPoint,
    choices: Sequence[TensorChoice],
    uniform: Sequence[UniformPoint],
    curve: Sequence[FrontierPoint],
) -> str:
    """What the assignment reaches, what it gives to whom, and what that is worth."""
    if not choices:
        return "No tensor could be quantized, so there is nothing to assign: every byte is kept."
    counts = Counter(c.scheme or AS_STORED for c in choices)
    parts = [_given(scheme, count, len(choices)) for scheme, count in counts.most_common(3)]
    if len(counts) > 3:
        parts.append(f"{len(counts) - 3} other schemes for the rest")
    quality = "every value exactly" if point.sqnr_db is None else f"{point.sqnr_db:z.1f} dB"
    of = "of the layers' outputs " if weighing.by == "outputs" else ""
    text = (
        f"{_broken(weighing)}At {point.bits_per_parameter:.2f} bits per parameter the best "
        f"assignment keeps {quality} {of}with {', '.join(parts)}"
    )
    smaller = [u for u in uniform if u.point.nbytes <= point.nbytes and u.point.sqnr_db is not None]
    best = max(smaller, key=lambda u: u.point.sqnr_db or 0.0, default=None)
    if best is None or point.sqnr_db is None or best.point.sqnr_db is None:
        return f"{text}."
    gain = point.sqnr_db - best.point.sqnr_db
    if gain < NOTICEABLE_DB:
        if point.nbytes == curve[0].nbytes:
            return f"{text}: these schemes allow no smaller one{_larger_budget(point, curve)}."
        return f"{text}: no tensor stands out, so one scheme for all, {best.scheme}, is as good."
    return (
        f"{text}, {gain:.1f} dB more than {best.scheme} for every tensor "
        f"({best.point.bits_per_parameter:.2f} bits){_deserving(choices, counts)}."
    )


def _broken(weighing: Weighing) -> str:
    """A warning to begin with, where the errors are not those of every value."""
    if not weighing.nonfinite:
        return ""
    count = weighing.nonfinite
    values = "value that is" if count == 1 else "values that are"
    return (
        f"{count:,} {values} NaN or infinite in float32 count for nothing here, so find out where "
        f"they come from first. "
    )


def _given(scheme: str, count: int, of: int) -> str:
    tensors = _tensors(count, of)
    return f"{tensors} {AS_STORED}" if scheme == AS_STORED else f"{scheme} for {tensors}"


def _larger_budget(point: FrontierPoint, curve: Sequence[FrontierPoint]) -> str:
    """What the first point of the curve that is worth it would bring: which tensors deserve bits
    shows only where there are some to give."""
    before = point.sqnr_db
    for after in curve:
        if before is not None and (after.sqnr_db is None or after.sqnr_db >= before + WORTH_DB):
            reached = "no error" if after.sqnr_db is None else f"{after.sqnr_db:z.1f} dB"
            return (
                f", so there are no bits to give; a budget of {after.bits_per_parameter:.2f} bits "
                f"would reach {reached} and show which tensors deserve them"
            )
    return ""


def _tensors(count: int, of: int) -> str:
    if count == of:
        return "every tensor" if count > 1 else "the one tensor"
    return "1 tensor" if count == 1 else f"{count} tensors"


def _deserving(choices: Sequence[TensorChoice], counts: Counter[str]) -> str:
    """Names the tensor that got the most bits, where few did."""
    best = max(choices, key=lambda c: (c.nbytes / max(1, c.parameters), c.parameters))
    scheme = best.scheme or AS_STORED
    if len(counts) == 1 or counts[scheme] > len(choices) // 2:
        return ""
    more = counts[scheme] - 1
    others = f" and {more} more" if more else ""
    return f"; bits are worth most in {quoted(best.name)}{others} ({scheme})"
