"""What a scheme would do to the whole model, summed over its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from qtui_core.inspection.report import SchemeTotal, TensorReport
from qtui_core.quant import PerModel, PerTensor, Scheme, quantized_bytes
from qtui_core.quant.measure import decibels


def total_of(scheme: Scheme, index: int, tensors: Sequence[TensorReport]) -> SchemeTotal:
    """The total of `scheme`, which is number `index` among the errors of each tensor."""
    nbytes = _model_scale_bytes(scheme)
    squared_error = signal = 0.0
    expected: float | None = 0.0
    worst, worst_sqnr = None, math.inf
    saturated = overflowed = 0
    for tensor in tensors:
        info = tensor.info
        if not tensor.errors:
            nbytes += info.nbytes
            continue
        error = tensor.errors[index]
        nbytes += error.bytes
        saturated += error.saturated
        overflowed += error.overflowed
        power = tensor.energy
        if error.overflowed:  # left out of the error, so of the weight too
            power = error.signal * info.elements / tensor.sampled_parameters
        if error.relative_mse is None or power == 0.0:
            if error.overflowed and worst_sqnr > -math.inf:
                worst, worst_sqnr = info.name, -math.inf
            continue
        squared_error += error.relative_mse * power
        if error.gaussian_relative_mse is None:
            expected = None  # an expectation for only some tensors says nothing about the model
        elif expected is not None:
            expected += error.gaussian_relative_mse * power
        signal += power
        sqnr = -math.inf if error.overflowed else error.sqnr_db
        if sqnr is not None and sqnr < worst_sqnr:
            worst, worst_sqnr = info.name, sqnr
    parameters = sum(t.info.parameters for t in tensors)
    relative = squared_error / signal if signal else None
    return SchemeTotal(
        scheme=str(scheme),
        bits_per_parameter=8 * nbytes / parameters if parameters else 0.0,
        nbytes=nbytes,
        relative_mse=relative,
        sqnr_db=decibels(relative),
        gaussian_sqnr_db=decibels(expected / signal if signal and expected is not None else None),
        worst_tensor=worst,
        saturated=saturated,
        overflowed=overflowed,
    )


def _model_scale_bytes(scheme: Scheme) -> int:
    """Bytes of the scale and zero point of a whole model, which belong to no tensor."""
    if not isinstance(scheme.granularity, PerModel):
        return 0
    own = replace(scheme, granularity=PerTensor())
    return quantized_bytes(own, (1, 1)) - quantized_bytes(scheme, (1, 1))
