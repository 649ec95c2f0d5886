"""The expected error of a scheme on normally distributed data, the reference for measured errors.

The extent (absmax, or smallest and largest element) of a group of independent N(0, σ²) elements
has a known density. The extent determines the levels of the group, and the error of its elements
is a sum of exact partial moments of the normal density. So the expected error is an integral over
one or two dimensions, computed by quadrature: nothing is sampled, nothing is read from stored
results. Each kind of scale has a module.
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

__all__ = ["gaussian_relative_mse", "outlier_relative_mse"]

#: An expected number of outlier columns up to this counts as none.
NO_COLUMNS = 0.01


def gaussian_relative_mse(
    scheme: Scheme,
    shape: tuple[int, ...],
    *,
    sigma: float = 1.0,
    model_absmax: ModelExtent | None = None,
) -> float | None:
    """Expected squared error over expected squared value (no unit) of a tensor of `shape` whose
    elements are independent N(0, sigma²).

    Args:
        scheme: the scheme.
        shape: of the tensor, any number of dimensions.
        sigma: in the unit of the tensor. It matters for casts, for scales that are powers of two,
            and with `model_absmax`; the levels of other schemes scale with the tensor.
        model_absmax: the extent of the model for granularity `model`, as for `quantize`.

    Returns None for an empty tensor, and if elements are expected beyond the outlier threshold of
    the scheme. float32 scales count as exact, without a smallest one; 8-bit scales are rounded as
    the scheme rounds them.
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
    """The expected number of columns with an element of N(0, 1) beyond ±`threshold`."""
    beyond = min(2 * upper_tail(threshold), 1 - 1e-16)
    return -math.expm1(rows * math.log1p(-beyond)) * columns


def outlier_relative_mse(
    scheme: Scheme, extent: float, sigma: float, length: int | None = None
) -> float:
    """Expected squared error over squared value of N(0, sigma²) elements in a group whose scale is
    set by an outlier of magnitude `extent` (in the unit of `sigma`). `length` is the number of
    elements in the group. It matters only if the scale is a mean magnitude; without it, `extent` is
    that mean."""
    # At larger ratios every element rounds to zero under any scheme, and the arithmetic overflows.
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
