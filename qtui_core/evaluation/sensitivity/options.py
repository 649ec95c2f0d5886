"""The bytes and the error of each way to store a tensor, with errors that can be added up.

Weighed by weights, the error of a tensor is its squared error, and the total is relative to the
energy of all matrices, as in the totals of an inspection. Weighed by predictions, it is the KL
divergence of the model with only this tensor quantized, in nats a token; the total is their sum,
which leaves out that errors of several tensors meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from qtui_core.answers.tensors import PredictionErrors
from qtui_core.dataclass import dataclass
from qtui_core.evaluation.sensitivity.relaxation import Option
from qtui_core.evaluation.sensitivity.settings import Objective
from qtui_core.inspection.report import Inspection, TensorReport
from qtui_core.models import TensorInfo
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
    scheme applies. `nonfinite` counts values that were read and are left out of the errors. `read`
    says what the model read, and `because` why it did not, as in `Sensitivity`."""

    by: Objective
    tensors: tuple[TensorOptions, ...]
    kept_bytes: int
    parameters: int
    nonfinite: int = 0
    read: str = ""
    because: str = ""

    @property
    def nats(self) -> bool:
        """Whether errors are in nats a token; else they are relative."""
        return self.by != "weights"

    def stored_by(
        self, nbytes: Callable[[TensorInfo, str | None], int], infos: Mapping[str, TensorInfo]
    ) -> Weighing:
        """The same options with the bytes that a tool stores for a tensor in a scheme."""
        tensors = []
        for each in self.tensors:
            stored = (nbytes(infos[each.name], scheme) for scheme in each.schemes)
            options = zip(each.options, stored, strict=True)
            tensors.append(replace(each, options=tuple(Option(n, o.error) for o, n in options)))
        return replace(self, tensors=tuple(tensors))


def weigh(
    inspection: Inspection, found: PredictionErrors | None = None, because: str = ""
) -> Weighing:
    """Options with the errors of weights that the inspection measured; or, if `found`, which is of
    the same tensors and schemes, with the divergence of the model that has only this tensor
    quantized."""
    quantized = [tensor for tensor in inspection.tensors if tensor.errors]
    energy = sum(tensor.energy for tensor in quantized) or 1.0

    def errors_of(tensor: TensorReport) -> list[float]:
        if found is not None:
            return [math.fsum(nats) / len(nats) for nats in found.nats[tensor.info.name]]
        # Infinity or NaN spoils everything that it touches, as if nothing were kept of the tensor.
        relative = [e.relative_mse or 0.0 for e in tensor.errors]
        return [error * tensor.energy / energy for error in relative]

    def options_of(tensor: TensorReport) -> TensorOptions:
        info, errors = tensor.info, tensor.errors
        sizes = [*(error.bytes for error in errors), info.nbytes]
        return TensorOptions(
            info.name,
            info.parameters,
            (*(str(error.scheme) for error in errors), None),
            tuple(map(Option, sizes, [*errors_of(tensor), 0.0])),
            () if found is None else found.nats[info.name],
        )

    read = ""
    if found is not None:
        read = (
            f"{plural(found.windows, 'window')} of {found.window:,} tokens of the first half of "
            f"{found.text}, {found.windows * found.scored:,} tokens scored"
        )
    return Weighing(
        "weights" if found is None else found.by,
        tuple(map(options_of, quantized)),
        sum(tensor.info.nbytes for tensor in inspection.tensors if not tensor.errors),
        sum(tensor.info.parameters for tensor in inspection.tensors),
        sum(t.statistics.nan + t.statistics.inf for t in quantized if t.statistics),
        read,
        because,
    )
