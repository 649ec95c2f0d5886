"""The error a scheme would make on normal data: what "normal" means for a tensor.

For independent N(0, σ²) elements the extent of a group has a known density. Given the extent
the levels of the group are known, the error of the elements inside is a sum of exact partial
moments of the normal density over the cells of the levels, and the extreme elements
themselves are at known places. So the expectation is a one- or two-dimensional quadrature:
nothing is sampled, and nothing is a stored table.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qtui_core.formats import FloatFormat, get_format
from qtui_core.quant.double_quant import round_to_map
from qtui_core.quant.elements import ModelExtent
from qtui_core.quant.granularity import PerModel
from qtui_core.quant.layout import run_lengths
from qtui_core.quant.levels import Float64, asymmetric_levels, unit_levels
from qtui_core.quant.normal import (
    absmax_nodes,
    density,
    distribution,
    interval_nodes,
    min_max_nodes,
    upper_tail,
)
from qtui_core.quant.scheme import NESTED_BLOCK, Family, Scheme

#: Panels of 8 nodes.
ABSMAX_PANELS = 12
#: The reconstruction of absmax under double quantization jumps from node to node.
NESTED_PANELS = 64
NESTED_EXTENTS = 48
#: Two-point Gauss-Legendre on [-1/2, 1/2], steps by which a zero point is rounded.
ZERO_POINT_SHIFTS = (-0.5 / math.sqrt(3), 0.5 / math.sqrt(3))
#: A cast is integrated over this many octaves below σ; what is below carries 2^-48 of the
#: error of the rest.
OCTAVES_BELOW = 16


class Moments(NamedTuple):
    """Moments over an interval of x ~ N(0, 1) and of the level L(x) it is rounded to:
    probability, E[x²], E[x L], E[L²], each restricted to the interval, not divided by it."""

    mass: Float64
    xx: Float64
    xl: Float64
    ll: Float64


def gaussian_relative_mse(
    scheme: Scheme,
    shape: tuple[int, ...],
    *,
    sigma: float = 1.0,
    model_absmax: ModelExtent | None = None,
) -> float | None:
    """Expected squared error over expected squared value of a tensor of `shape` whose
    elements are independent N(0, sigma²); None for an empty one.

    `sigma` matters for casts, and with a `model_absmax` given, only: other schemes scale
    with the tensor. Scales are taken as exact, double quantization aside.
    """
    count = math.prod(shape)
    if count == 0:
        return None
    if scheme.family is Family.CAST:
        fmt = get_format(scheme.format)
        assert isinstance(fmt, FloatFormat)
        return _cast_mse(fmt, sigma)
    if isinstance(scheme.granularity, PerModel) and model_absmax is not None:
        low, high = (
            model_absmax if isinstance(model_absmax, tuple) else (-model_absmax, model_absmax)
        )
        return _fixed_mse(scheme, low / sigma, high / sigma)
    lengths = run_lengths(scheme.granularity, shape)
    nested = min(NESTED_BLOCK, sum(lengths.values())) if scheme.double_quantization else 0
    total = sum(
        length * groups * _group_mse(scheme, length, nested) for length, groups in lengths.items()
    )
    return total / count


def stretched_relative_mse(scheme: Scheme, extent: float, sigma: float) -> float:
    """Expected squared error over squared value of N(0, sigma²) elements of a group whose
    scale something else of magnitude `extent` has set."""
    # Far beyond this nothing is left of the elements under any scheme, and numbers overflow.
    high = min(extent / sigma, 1e60)
    return _fixed_mse(scheme, -high if scheme.symmetric else -min(high, 3.0), high)


@lru_cache(maxsize=4096)
def _group_mse(scheme: Scheme, length: int, nested: int) -> float:
    """Mean squared error of a group of `length` elements of N(0, 1)."""
    if not scheme.symmetric:
        return _asymmetric_group(scheme.bits, length)
    unit = unit_levels(scheme)
    m, weights = absmax_nodes(length, ABSMAX_PANELS)
    inside = level_moments(unit * m[:, None], -m, m)
    extreme = np.square(m) * _extreme_error(unit, scheme.scale_rule == "signed")
    error = extreme + (length - 1) * _mean_error(inside)
    added = _added_by_nesting(unit, length, nested) if nested > 1 else 0.0
    return float(weights @ error) / length + added


def _extreme_error(unit: Float64, signed: bool) -> float:
    """Squared error of the extreme element itself, in units of the absmax."""
    ends = (1.0,) if signed else (-1.0, 1.0)
    return float(np.mean([np.min(np.square(unit - end)) for end in ends]))


def _mean_error(m: Moments) -> Float64:
    """E[(x - L)² | x in the interval]."""
    return (m.xx - 2 * m.xl + m.ll) / np.maximum(m.mass, 1e-300)


def _asymmetric_group(bits: int, length: int) -> float:
    """A group all on one side of zero has a range from zero to its extreme; else the range
    ends in its smallest and largest element."""
    if length == 1:
        return 0.0  # the one element is an end of the levels
    steps = 2**bits - 1
    extreme, weights = absmax_nodes(length, ABSMAX_PANELS)
    grid = np.arange(steps + 1) / steps * extreme[:, None]
    inside = _mean_error(level_moments(grid, np.zeros_like(extreme), extreme))
    one_sided = float(weights @ ((length - 1) * inside))
    share = 2.0 ** (1 - length)
    return (share * one_sided + (1 - share) * _two_sided(bits, length)) / length


def _two_sided(bits: int, length: int) -> float:
    """Expected sum of squared errors of a group with elements on both sides of zero."""
    steps = 2**bits - 1
    low, high, weights = min_max_nodes(length, 3)
    zero = -low / (high - low) * steps
    spread = math.sqrt(float(weights @ np.square(zero - weights @ zero)))
    # Where zero falls between two levels varies from group to group. If it varies over more
    # than about half a step of many, its rounding is as good as uniform; else finer nodes
    # resolve it.
    shifts: tuple[float | Float64, ...] = ZERO_POINT_SHIFTS
    if spread <= 0.6 or bits == 2:
        low, high, weights = min_max_nodes(length, 8)
        zero = -low / (high - low) * steps
        shifts = (np.rint(zero) - zero,)
    total = 0.0
    scale = (high - low) / steps
    for shift in shifts:
        grid = low[:, None] + (np.arange(steps + 1) - np.reshape(shift, (-1, 1))) * scale[:, None]
        ends = 2 * np.square(shift * scale)
        inside = _mean_error(level_moments(grid, low, high)) if length > 2 else 0.0
        total += float(weights @ (ends + (length - 2) * inside)) / len(shifts)
    return total


def _added_by_nesting(unit: Float64, length: int, nested: int) -> float:
    """What keeping the absmax in 8 bits adds to the mean squared error, for a codebook.

    `nested` absmaxes share a constant, the largest deviation of any of them from the mean
    absmax. One that deviates is rounded in the map times that constant; levels are chosen by
    the exact absmax and multiplied by the rounded one, so the error of an element grows by
    (x - rL)² - (x - L)², r being their ratio. The one absmax that made the constant is exact
    or nearly so, and counted as the others.
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


def _fixed_mse(scheme: Scheme, low: float, high: float) -> float:
    """Levels that do not depend on the tensor: a range in units of σ, elements beyond it
    taking the outermost level."""
    if not scheme.symmetric:
        grid = asymmetric_levels(scheme.bits, np.array([low]), np.array([high]))
    else:
        extreme = low if abs(low) > abs(high) else high
        grid = np.sort(unit_levels(scheme) * extreme)[None]
    infinite = np.array([np.inf])
    return float(_mean_error(level_moments(grid, -infinite, infinite))[0])


def level_moments(levels: Float64, low: Float64, high: Float64) -> Moments:
    """Moments over (low, high) `[n]` of x ~ N(0, 1) rounded to the nearest of `levels`
    `[n, K]`, ascending."""
    edges = np.concatenate(
        [low[:, None], (levels[:, 1:] + levels[:, :-1]) / 2, high[:, None]], axis=1
    )
    edges = np.clip(edges, low[:, None], high[:, None])
    below, height = distribution(edges), density(edges)
    probability = np.diff(below, axis=1)
    first = -np.diff(height, axis=1)
    finite = np.where(np.isfinite(edges[:, [0, -1]]), edges[:, [0, -1]], 0.0)
    mass = below[:, -1] - below[:, 0]
    return Moments(
        mass=mass,
        xx=mass + finite[:, 0] * height[:, 0] - finite[:, 1] * height[:, -1],
        xl=(levels * first).sum(axis=1),
        ll=(np.square(levels) * probability).sum(axis=1),
    )


def _cast_mse(fmt: FloatFormat, sigma: float) -> float:
    """A cast saturates at the largest number and rounds to nearest below it: a uniform grid
    in each octave, so that the squared distance to it can be integrated cell by cell."""
    largest = float(fmt.max) / sigma
    tail = _tail_beyond(largest)
    step = 2.0 ** (fmt.min_exponent - fmt.mantissa_bits) / sigma
    if step > 2.0**-6:
        # σ is among the subnormals, where the grid is uniform: few cells, exact moments.
        reach = math.ceil(9 / step) + 1
        grid = np.arange(-reach, reach + 1, dtype=np.float64)[None] * np.float64(step)
        infinite = np.array([np.inf])
        return float(_mean_error(level_moments(grid, -infinite, infinite))[0])
    top = math.floor(math.log2(sigma))
    bottom, finest = top - OCTAVES_BELOW, fmt.min_exponent - fmt.mantissa_bits
    total = 0.0
    if bottom <= finest:
        # Between zero and the smallest subnormal, one cell as wide as the two above it.
        bottom, total = finest, _rounding_error(0.0, step / 2, 2)
    for exponent in range(bottom, top + 4):
        base = 2.0**exponent / sigma
        if base >= largest:
            break
        half_cell = 2.0 ** (max(exponent, fmt.min_exponent) - fmt.mantissa_bits - 1) / sigma
        cells = max(1, round((min(2 * base, largest) - base) / half_cell))
        total += _rounding_error(base, half_cell, cells)
    return 2 * total + tail


def _rounding_error(start: float, width: float, cells: int) -> float:
    """∫ (distance to the grid)² φ over `cells` half-cells of `width` from the grid point
    `start`; the grid has a point at every second boundary."""
    nodes, weights = interval_nodes(0.0, 1.0)
    index = np.arange(cells)[:, None]
    distance = np.where(index % 2 == 0, nodes, 1 - nodes) * width
    x = start + (index + nodes) * width
    return float((np.square(distance) * density(x) * weights).sum()) * width


def _tail_beyond(limit: float) -> float:
    """E[(|x| - limit)²] over |x| > limit."""
    if limit > 38:
        return 0.0
    height = math.exp(-limit * limit / 2) / math.sqrt(2 * math.pi)
    return 2 * ((1 + limit * limit) * upper_tail(limit) - limit * height)
