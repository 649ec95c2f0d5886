"""The error a scheme would make on normal data: what "normal" means for a tensor.

For independent N(0, σ²) elements the extent of a group has a known density. Given the extent
the levels of the group are known, and the error of its elements is a sum of exact partial moments
of the normal density. So the expectation is a quadrature in one or two dimensions: nothing is
sampled, and nothing is a stored table. One module for each kind of scale.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qtui_core.formats import FloatFormat, get_format
from qtui_core.quant.coding.levels import plain_levels, shared_scale
from qtui_core.quant.gaussian.casts import cast_mse
from qtui_core.quant.gaussian.groups import fixed_mse, group_mse
from qtui_core.quant.gaussian.moments import error_within
from qtui_core.quant.gaussian.normal import upper_tail
from qtui_core.quant.gaussian.shared_exponent import shared_exponent_mse
from qtui_core.quant.gaussian.ternary import MEAN, magnitude_error, ternary_mse
from qtui_core.quant.gaussian.two_level import two_level_mse
from qtui_core.quant.segments.elements import ModelExtent
from qtui_core.quant.segments.layout import matrix_shape, run_lengths
from qtui_core.schemes.granularity import PerModel
from qtui_core.schemes.scheme import Family, Scheme

__all__ = ["gaussian_relative_mse", "stretched_relative_mse"]

#: So few columns expected beyond an outlier threshold are none.
NO_COLUMNS = 0.01


def gaussian_relative_mse(
    scheme: Scheme,
    shape: tuple[int, ...],
    *,
    sigma: float = 1.0,
    model_absmax: ModelExtent | None = None,
) -> float | None:
    """Expected squared error over expected squared value of a tensor of `shape` whose
    elements are independent N(0, sigma²); None for an empty one, and where an outlier threshold
    is within their reach: what is kept then depends on the largest of all.

    `sigma` matters for casts, for scales that are powers of two, and with a `model_absmax` given:
    other schemes scale with the tensor. Scales are taken as exact where they are float32, without
    their smallest value; those in 8 bits as they are.
    """
    count = math.prod(shape)
    if count == 0:
        return None
    if scheme.outlier_threshold is not None:
        if _kept_columns(scheme.outlier_threshold / sigma, *matrix_shape(shape)) > NO_COLUMNS:
            return None
        scheme = replace(scheme, outlier_threshold=None)
    if scheme.family is Family.CAST:
        fmt = get_format(scheme.format)
        assert isinstance(fmt, FloatFormat)
        return cast_mse(fmt, sigma, scheme.rounding, scheme.saturate)
    if isinstance(scheme.granularity, PerModel) and model_absmax is not None:
        low, high = (
            model_absmax if isinstance(model_absmax, tuple) else (-model_absmax, model_absmax)
        )
        return fixed_mse(scheme, low / sigma, high / sigma)
    lengths = run_lengths(scheme.granularity, shape)
    if scheme.family is Family.TWO_LEVEL:
        return two_level_mse(scheme, tuple(sorted(lengths.items())))
    nested = min(scheme.nested_block, sum(lengths.values())) if scheme.double_quantization else 0

    def of_group(length: int) -> float:
        match scheme.family:
            case Family.MICROSCALING:
                return shared_exponent_mse(scheme, length, sigma)
            case Family.TERNARY:
                return ternary_mse(length)
        return group_mse(scheme, length, nested)

    return sum(length * groups * of_group(length) for length, groups in lengths.items()) / count


def _kept_columns(threshold: float, rows: int, columns: int) -> float:
    """How many columns are expected to have an element of N(0, 1) beyond `threshold`."""
    beyond = min(2 * upper_tail(threshold), 1 - 1e-16)
    return -math.expm1(rows * math.log1p(-beyond)) * columns


def stretched_relative_mse(
    scheme: Scheme, extent: float, sigma: float, length: int | None = None
) -> float:
    """Expected squared error over squared value of N(0, sigma²) elements of a group whose
    scale something else of magnitude `extent` has set; among `length` elements, which matters
    for a scale that is a mean (without it the mean itself is `extent`)."""
    # Far beyond this nothing is left of the elements under any scheme, and numbers overflow.
    high = min(extent / sigma, 1e60)
    infinite = np.array([np.inf])
    match scheme.family:
        case Family.TERNARY:
            mean = high if length is None else MEAN + (high - MEAN) / length
            return magnitude_error(mean)
        case Family.MICROSCALING:
            levels = plain_levels(scheme) * (shared_scale(scheme, high * sigma) / sigma)
            return float(error_within(levels[None], -infinite, infinite, scheme.rounding)[0])
    return fixed_mse(scheme, -high if scheme.symmetric else -min(high, 3.0), high)
