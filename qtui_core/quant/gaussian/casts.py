"""The error of a cast on normal data. It depends on σ, as a cast has no scale."""

from __future__ import annotations

import math

import numpy as np

from qtui_core.formats import FloatFormat
from qtui_core.quant.gaussian.moments import error_within
from qtui_core.quant.gaussian.normal import density, interval_nodes
from qtui_core.quant.gaussian.overflow import tail_error, without_overflow

#: The error is integrated over this many octaves below σ. Those further below add 2^-48 of it.
OCTAVES_BELOW = 16


def cast_mse(
    fmt: FloatFormat, sigma: float, rounding: str = "nearest", saturate: bool = True
) -> float:
    """Expected squared error of a cast of N(0, sigma²) elements, in units of sigma².

    Within an octave the numbers of a format are evenly spaced, so the squared error is integrated
    cell by cell. Elements beyond the largest number are rounded to it; if the cast does not
    saturate, they are left out of the mean."""
    largest = float(fmt.max) / sigma
    step = 2.0 ** (fmt.min_exponent - fmt.mantissa_bits) / sigma
    if step > 2.0**-6:
        # σ is among the subnormals, which are evenly spaced: few levels, exact moments.
        reach = math.ceil(9 / step) + 1
        grid = np.arange(-reach, reach + 1, dtype=np.float64)[None] * np.float64(step)
        infinite = np.array([np.inf])
        return float(error_within(grid, -infinite, infinite, rounding)[0])
    top = math.floor(math.log2(sigma))
    bottom, finest = top - OCTAVES_BELOW, fmt.min_exponent - fmt.mantissa_bits
    total = 0.0
    if bottom <= finest:
        # The cell between zero and the smallest subnormal, as wide as the two above it.
        bottom, total = finest, _rounding_error(0.0, step / 2, 2, rounding)
    for exponent in range(bottom, top + 4):
        base = 2.0**exponent / sigma
        if base >= largest:
            break
        half_cell = 2.0 ** (max(exponent, fmt.min_exponent) - fmt.mantissa_bits - 1) / sigma
        cells = max(1, round((min(2 * base, largest) - base) / half_cell))
        total += _rounding_error(base, half_cell, cells, rounding)
    if saturate:
        return 2 * total + tail_error(largest)
    last = 2.0 ** (fmt.max_exponent - fmt.mantissa_bits) / sigma
    return without_overflow(2 * total, largest, last, rounding)


def _rounding_error(start: float, width: float, cells: int, rounding: str) -> float:
    """∫ (squared error) φ over `cells` half-cells of `width` from the grid point `start` upwards. A
    half-cell is half the distance between two grid points."""
    nodes, weights = interval_nodes(0.0, 1.0)
    index = np.arange(cells)[:, None]
    above = np.where(index % 2 == 0, nodes, 1 + nodes) * width  # distance from the grid point below
    match rounding:
        case "truncate":
            squared = np.square(above)
        case "stochastic":
            squared = above * (2 * width - above)
        case _:
            squared = np.square(np.minimum(above, 2 * width - above))
    x = start + (index + nodes) * width
    return float((squared * density(x) * weights).sum()) * width
