"""What each way to store a tensor costs in bytes and in error, made ready to be added up.

Weighed by weights, the error of a tensor is its squared error, and the total is relative to the
energy of all matrices, as in the totals of an inspection. Weighed by outputs, it is the expected
squared error of the layer's output over its expected square, where inputs have the second moments
that calibration text gave them; each layer counts the same, since a normalization follows each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.inspection.relaxation import Option
from qtui_core.inspection.report import Inspection, TensorReport
from qtui_core.inspection.rows import open_rows
from qtui_core.inspection.sample import limit_of
from qtui_core.models import ModelSource
from qtui_core.quant import PerModel, Scheme
from qtui_core.quant.column_errors import column_errors

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
