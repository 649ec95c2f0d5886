"""The error, on normal data, of groups whose scale is set by their extreme elements.

The extent of a group has a known density and determines the levels. The extreme elements lie at
known places among the levels, and the error of the other elements is a sum of exact partial
moments.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np

from qtui_core.quant.coding.double_quant import round_to_map
from qtui_core.quant.coding.levels import Float64, asymmetric_levels, plain_levels, unit_levels
from qtui_core.quant.gaussian.moments import error_at, error_within, level_moments
from qtui_core.quant.gaussian.normal import absmax_nodes, min_max_nodes, upper_tail
from qtui_core.quant.gaussian.overflow import without_overflow
from qtui_core.schemes.scheme import Scheme

#: Panels of 8 quadrature nodes over the absmax of a group.
ABSMAX_PANELS = 12
#: The same under double quantization, where the reconstructed absmax jumps from node to node.
NESTED_PANELS = 64
NESTED_EXTENTS = 48
#: How many numbers near a node effects of the last mantissa bits are averaged over.
MANTISSAS = 64
#: Rounding errors of a zero point in steps: the two Gauss-Legendre nodes on [-1/2, 1/2].
ZERO_POINT_SHIFTS = (-0.5 / math.sqrt(3), 0.5 / math.sqrt(3))


@lru_cache(maxsize=4096)
def group_mse(scheme: Scheme, length: int, nested: int) -> float:
    """Mean squared error of a group of `length` elements of N(0, 1). `nested` is how many scales
    share a constant under double quantization, 0 without it."""
    if scheme.float_zero_point:
        return _float_zero_group(scheme, length)
    if not scheme.symmetric:
        return _asymmetric_group(scheme, length)
    unit = unit_levels(scheme)
    m, weights = absmax_nodes(length, ABSMAX_PANELS)
    inside = error_within(unit * m[:, None], -m, m, scheme.rounding)
    extreme = np.square(m) * _extreme_error(unit, scheme)
    error = extreme + (length - 1) * inside
    added = _added_by_nesting(unit, length, nested) if nested > 1 else 0.0
    return float(weights @ error) / length + added


def fixed_mse(scheme: Scheme, low: float, high: float) -> float:
    """Mean squared error of N(0, 1) elements with levels over the fixed range `low` to `high`, in
    units of σ. Elements beyond the range take the outermost level."""
    if scheme.float_zero_point:
        grid = np.linspace(low, high, 2**scheme.bits)[None]
    elif not scheme.symmetric:
        grid = asymmetric_levels(scheme.bits, np.array([low]), np.array([high]))
    else:
        extreme = low if abs(low) > abs(high) else high
        grid = np.sort(unit_levels(scheme) * extreme)[None]
    rounding = "down" if scheme.float_zero_point and scheme.rounding == "truncate" else ""
    rounding = rounding or scheme.rounding
    if not scheme.saturate:
        largest, before = (float(level) for level in grid[0, [-1, -2]])
        end = np.array([largest])
        inside = float(error_within(grid, -end, end, rounding)[0]) * (1 - 2 * upper_tail(largest))
        return without_overflow(inside, largest, largest - before, rounding)
    infinite = np.array([np.inf])
    return float(error_within(grid, -infinite, infinite, rounding)[0])


def _extreme_error(unit: Float64, scheme: Scheme) -> float:
    """Squared error of the extreme element itself, in units of the absmax."""
    ends = np.array([1.0] if scheme.scale_rule == "signed" else [-1.0, 1.0])
    error = float(error_at(unit[None], ends, scheme.rounding).mean())
    if scheme.rounding == "truncate" and unit[-1] == 1.0:
        # If float32 rounds x / scale to just below the last level, truncation loses a whole step.
        last = plain_levels(scheme)[-1]
        error += _falls_short(last) * float(np.square(unit[-1] - unit[-2]))
    return error


@cache
def _falls_short(steps: float) -> float:
    """The share of mantissas of x for which x / (x / steps) is less than `steps` in float32."""
    x = np.exp2((np.arange(1 << 14) + 0.5) / (1 << 14)).astype(np.float32)
    return float((x / (x / np.float32(steps)) < steps).mean())


def _range_falls_short(low: Float64, high: Float64, steps: int) -> Float64:
    """The share of ranges near (`low`, `high`) `[n]` whose upper end, with a float zero point,
    truncates to the level below the last, depending on last mantissa bits: float64 `[n]`."""
    beside = 1 + np.arange(MANTISSAS) * 2.0**-13
    least = (low[:, None] * beside).astype(np.float32)
    most = (high[:, None] * beside[::-1]).astype(np.float32)
    scale = (most - least) / np.float32(steps)
    middle = np.float32((steps + 1) // 2)
    return ((most - (least + scale * middle - scale * middle)) / scale < steps).mean(axis=1)


def _float_zero_group(scheme: Scheme, length: int) -> float:
    """Mean squared error with a float zero point: the smallest and the largest element are the
    first and the last level."""
    if length == 1:
        return 0.0
    steps = 2**scheme.bits - 1
    low, high, weights = min_max_nodes(length, 4, around_zero=False)
    scale = (high - low) / steps
    grid = low[:, None] + np.arange(steps + 1) * scale[:, None]
    truncate = scheme.rounding == "truncate"
    ends = np.square(scale) * _range_falls_short(low, high, steps) if truncate else 0.0 * scale
    rounding = "down" if truncate else scheme.rounding
    inside = error_within(grid, low, high, rounding) if length > 2 else 0.0
    return float(weights @ (ends + (length - 2) * inside)) / length


def _asymmetric_group(scheme: Scheme, length: int) -> float:
    """Mean squared error of asymmetric integers. The range is from the smallest to the largest
    element, or from zero to the extreme element if all are on one side of zero."""
    if length == 1:
        return 0.0  # the only element becomes the last level exactly
    steps = 2**scheme.bits - 1
    extreme, weights = absmax_nodes(length, ABSMAX_PANELS)
    grid = np.arange(steps + 1) / steps * extreme[:, None]
    inside = error_within(grid, np.zeros_like(extreme), extreme, scheme.rounding)
    one_sided = float(weights @ ((length - 1) * inside))
    share = 2.0 ** (1 - length)
    return (share * one_sided + (1 - share) * _two_sided(scheme, length)) / length


def _two_sided(scheme: Scheme, length: int) -> float:
    """Expected sum of squared errors of a group with elements on both sides of zero."""
    steps = 2**scheme.bits - 1
    low, high, weights = min_max_nodes(length, 3)
    zero = -low / (high - low) * steps
    spread = math.sqrt(float(weights @ np.square(zero - weights @ zero)))
    # The unrounded zero point varies between groups. If it varies by more than about half a step,
    # its rounding error is taken as uniform; else finer nodes resolve it.
    shifts: tuple[float | Float64, ...] = ZERO_POINT_SHIFTS
    if spread <= 0.6 or scheme.bits == 2 or scheme.rounding != "nearest":
        low, high, weights = min_max_nodes(length, 8)
        zero = -low / (high - low) * steps
        shifts = (np.rint(zero) - zero,)
    total = 0.0
    scale = (high - low) / steps
    for shift in shifts:
        # Levels are counted from zero, so that zero is exactly a level if the shift makes it one.
        index = np.arange(steps + 1) - np.reshape(zero + shift, (-1, 1))
        grid = index * scale[:, None]
        ends = error_at(grid, low, scheme.rounding) + error_at(grid, high, scheme.rounding)
        inside = error_within(grid, low, high, scheme.rounding) if length > 2 else 0.0
        total += float(weights @ (ends + (length - 2) * inside)) / len(shifts)
    return total


def _added_by_nesting(unit: Float64, length: int, nested: int) -> float:
    """The mean squared error that double quantization (each absmax in 8 bits) adds to a codebook.

    `nested` absmaxes share a constant, the largest deviation of any of them from the mean absmax.
    Each deviation is rounded to a level of the 8-bit map times that constant. Codes are chosen with
    the exact absmax and decoded with the rounded one, so the squared error of an element grows by
    (x - rL)² - (x - L)², where r is the rounded over the exact absmax. The absmax that sets the
    constant is almost exact, but is treated like the others.
    """
    m, weights = absmax_nodes(length, NESTED_PANELS)
    offset = float(weights @ m)
    deviation = m - offset
    order = np.argsort(np.abs(deviation))
    cumulative = np.cumsum(weights[order]) ** nested
    quantiles = (np.arange(NESTED_EXTENTS) + 0.5) / NESTED_EXTENTS
    constants = np.interp(quantiles, cumulative, np.abs(deviation)[order])[:, None]

    possible = np.where(np.abs(deviation) <= constants, weights, 0.0)
    possible /= possible.sum(axis=1, keepdims=True)
    ratio = (offset + round_to_map(deviation / constants) * constants) / m
    inside = level_moments(unit * m[:, None], -m, m)
    added = 2 * (1 - ratio) * inside.xl - (1 - ratio**2) * inside.ll
    added = (length - 1) * added / np.maximum(inside.mass, 1e-300) + np.square(m * (1 - ratio))
    return float((possible * added).sum()) / NESTED_EXTENTS / length
