"""What quantized weights and activations do to the output of a layer, y = x W^T + b, rather than to
the tensors alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qtui_core.activations.observers import Float64
from qtui_core.activations.ranges import ActivationScheme
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.job import IDLE, Job
from qtui_core.quant import Scheme, quantize
from qtui_core.quant.elements import Float32
from qtui_core.quant.measure import decibels

#: The most elements of a weight: the layer and one quantized copy are held as float32.
MAX_ELEMENTS = 1 << 28
#: The most multiplications of one product that still take only seconds.
MAX_WORK = 1 << 35
LEAST_TOKENS = 16


@dataclass(frozen=True, eq=False)
class OutputError:
    """The error of the output of a layer over some tokens.

    Attributes:
        relative_mse: sum of (y' - y)^2 over sum of y^2, where y is the exact output with its bias;
            None if the output is zero everywhere.
        sqnr_db: -10 log10(relative_mse), decibels; None if there is no error.
        channel_squared_error: float64 `[out]`, the first sum for each output channel.
    """

    relative_mse: float | None
    channel_squared_error: Float64

    @property
    def sqnr_db(self) -> float | None:
        return decibels(self.relative_mse)

    @property
    def channel_share(self) -> Float64:
        """The share of the squared error in each output channel, float64 `[out]`; zeros if there is
        no error."""
        total = self.channel_squared_error.sum()
        return self.channel_squared_error / total if total else self.channel_squared_error


def tokens_for(weight_shape: tuple[int, int], available: int) -> int:
    """How many of the available tokens `output_errors` can process in seconds."""
    elements = max(1, weight_shape[0] * weight_shape[1])
    return min(available, max(LEAST_TOKENS, MAX_WORK // elements))


def output_errors(
    x: Float32,
    weight: Float32,
    bias: Float32 | None,
    weight_schemes: Sequence[Scheme | None],
    activation_schemes: Sequence[ActivationScheme | None],
    *,
    transposed: bool = False,
    model_absmax: tuple[float, float] | None = None,
    job: Job = IDLE,
) -> list[list[OutputError]]:
    """The error for each weight scheme (first index) with each activation scheme (second); None
    leaves the weights or the activations unquantized.

    With dX = X' - X and dW = W' - W, the error is dX W'^T + X dW^T and is computed in this form:
    the difference of two float32 outputs would lose small errors.

    Args:
        x: float32 `[tokens, in]`; tokens with a NaN or infinity are left out.
        weight: float32 `[out, in]`; if `transposed`, `[in, out]`, and quantized in this layout.
        bias: float32 `[out]`. It is part of the output but not of the error.
        model_absmax: as for `quantize`, for weight schemes with granularity `model`.

    Raises:
        Cancelled: as `job` says.
        UsageError: shapes that do not fit, a weight that is too large, or no tokens.
    """
    inputs = weight.shape[0] if transposed else weight.shape[1]
    if x.ndim != 2 or x.shape[1] != inputs:
        raise UsageError(f"A layer of {inputs:,} inputs does not take x of shape {x.shape}.")
    if weight.size > MAX_ELEMENTS:
        raise UsageError(
            f"The layer has {weight.size:,} weights; its output error is computed for layers "
            f"of up to {MAX_ELEMENTS:,}."
        )
    x = x[np.isfinite(x).all(axis=1)]
    if not x.shape[0]:
        raise UsageError("No captured token is finite, so the layer has no output to compare.")
    quantized = sum(way is not None for way in activation_schemes)
    steps = 1 + sum(quantized + (scheme is not None) for scheme in weight_schemes)
    done = 0

    def product(left: Float32, right: Float32) -> Float32:
        nonlocal done
        result: Float32 = left @ (right if transposed else right.T)
        done += 1
        job.at(done, steps)
        return result

    job.check()

    y = product(x, weight)
    if bias is not None:
        y += bias
    total = float(_channel_squares(y).sum())
    width = y.shape[1]
    del y
    changes = [_change(x, way) for way in activation_schemes]
    table = []
    for scheme in weight_schemes:
        used, from_weight = weight, None
        if scheme is not None:
            used = quantize(weight, scheme, model_absmax=model_absmax).dequantize()
            from_weight = product(x, used - weight)
        row = []
        for change in changes:
            error = from_weight
            if change is not None:
                from_activation = product(change, used)
                error = from_activation if error is None else from_activation + error
            wrong = np.zeros(width) if error is None else _channel_squares(error)
            relative = float(wrong.sum()) / total if total else None
            row.append(OutputError(relative, wrong))
        table.append(row)
    return table


def _change(x: Float32, way: ActivationScheme | None) -> Float32 | None:
    if way is None:
        return None
    return quantize(x, way.scheme, model_absmax=way.extent).dequantize() - x


def _channel_squares(y: Float32) -> Float64:
    return np.einsum("ij,ij->j", y, y, dtype=np.float64)
