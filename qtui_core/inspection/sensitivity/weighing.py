"""The bytes and the error of each way to store a tensor, with errors that can be added up.

Weighed by weights, the error of a tensor is its squared error, and the total is relative to the
energy of all matrices, as in the totals of an inspection. Weighed by outputs, it is the squared
error of the layer's output over the square of that output, on the layer's inputs for a calibration
text; the total is the mean over the layers. Weighed by predictions, it is the KL divergence of the
model with only this tensor quantized, in nats a token; the total is their sum, which leaves out
that errors of several tensors meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from qtui_core.answers.tensors import PredictionErrors
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.inspection.layer_errors import LayerErrors
from qtui_core.inspection.report import Inspection, TensorReport
from qtui_core.inspection.sensitivity.relaxation import Option
from qtui_core.inspection.sensitivity.report import Objective
from qtui_core.quant import PerModel, Scheme
from qtui_core.quantities import plural


@dataclass(frozen=True)
class TensorOptions:
    """The ways to store one tensor: schemes (None leaves it as stored), with the bytes and the part
    of the total error of each; in nats, `windows` has it for each window, `[schemes][windows]`."""

    name: str
    parameters: int
    schemes: tuple[str | None, ...]
    options: tuple[Option, ...]
    windows: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Weighing:
    """The options of all tensors, weighed by `by`. `kept_bytes` are those of tensors to which no
    scheme applies. `unweighed` names tensors whose layer had no finite input; they are weighed by
    their weights. `nonfinite` counts values that were read and are left out of the errors.
    `tokens`, for outputs: the fewest and the most tokens of a layer. `read` says what the model
    read, and `because` why it did not, as in `Sensitivity`."""

    by: Objective
    tensors: tuple[TensorOptions, ...]
    kept_bytes: int
    parameters: int
    unweighed: tuple[str, ...] = ()
    nonfinite: int = 0
    tokens: tuple[int, int] | None = None
    read: str = ""
    because: str = ""

    @property
    def nats(self) -> bool:
        """Whether errors are in nats a token; else they are relative."""
        return self.by in ("fisher", "kl")


def refuse_shared_scales(schemes: Sequence[Scheme]) -> None:
    """Raises UsageError for a scheme whose scale belongs to the whole model: tensors with different
    schemes cannot share one."""
    for scheme in schemes:
        if isinstance(scheme.granularity, PerModel):
            raise UsageError(
                f"{scheme} shares one scale among all tensors, so it cannot be given to some of "
                f"them: write {scheme.format}:tensor."
            )


def weigh_by_weights(inspection: Inspection) -> Weighing:
    """Options with the errors that an inspection measured."""
    quantized = [t for t in inspection.tensors if t.errors]
    total = sum(t.energy for t in quantized) or 1.0

    def error_of(tensor: TensorReport, index: int) -> float:
        return (tensor.errors[index].relative_mse or 0.0) * tensor.energy / total

    return _weighing("weights", inspection, error_of)


def weigh_by_predictions(inspection: Inspection, found: PredictionErrors) -> Weighing:
    """Options with the divergence of the model that has only this tensor quantized. `found` is of
    the same tensors and schemes."""

    def error_of(tensor: TensorReport, index: int) -> float:
        by_window = found.nats[tensor.info.name][index]
        return math.fsum(by_window) / len(by_window)

    weighing = _weighing(found.by, inspection, error_of)
    return replace(
        weighing,
        tensors=tuple(replace(t, windows=found.nats[t.name]) for t in weighing.tensors),
        read=(
            f"{plural(found.windows, 'window')} of {found.window:,} tokens of the first half of "
            f"{found.text}, {found.windows * found.scored:,} tokens scored"
        ),
    )


def weigh_by_outputs(
    inspection: Inspection, layers: Mapping[str, LayerErrors], text: str = ""
) -> Weighing:
    """Options with the errors of the layers' outputs.

    Args:
        inspection: of the same tensors and schemes.
        layers: tensor name -> the errors of its layer, in the order of the schemes. A tensor
            without them is weighed by its weights: the rows of an embedding are its output.
        text: what the model read, in words.
    """
    quantized = [t for t in inspection.tensors if t.errors]
    relative: dict[str, Sequence[float]] = {
        t.info.name: [e.relative_mse or 0.0 for e in t.errors] for t in quantized
    }
    relative |= {name: found.relative_mse for name, found in layers.items()}
    tokens = [found.tokens for found in layers.values()]

    def error_of(tensor: TensorReport, index: int) -> float:
        return relative[tensor.info.name][index] / len(quantized)

    weighing = _weighing("output", inspection, error_of)
    return replace(
        weighing,
        unweighed=tuple(t.info.name for t in quantized if t.info.name not in layers),
        tokens=(min(tokens), max(tokens)) if tokens else None,
        read=f"the first half of {text}" if text else "",
    )


def _weighing(
    by: Objective,
    inspection: Inspection,
    error_of: Callable[[TensorReport, int], float],
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
    return Weighing(by, tuple(options), kept, parameters, nonfinite=nonfinite)
