"""The error of a ternary group on normal data. Its scale is the mean magnitude."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from qtui_core.quant.coding.levels import Float64
from qtui_core.quant.gaussian.normal import density, distribution

#: Mean and variance of |x| for x ~ N(0, 1).
MEAN = math.sqrt(2 / math.pi)
VARIANCE = 1 - 2 / math.pi
#: From this many magnitudes on, their sum is taken as normally distributed.
MANY = 48
STEP = 1 / 128


@lru_cache(maxsize=1024)
def ternary_mse(length: int) -> float:
    """Mean squared error of a group of `length` elements of N(0, 1).

    Let a = |x| be the magnitude of one element and S the sum of the others: the scale is
    s = (a + S) / n. If a < S / (2n - 1), a is nearer to 0 than to s and its error is a², else
    (a - s)². Both are squares of linear functions of a and are integrated exactly for a given S.
    For few elements, the density of S is computed by convolution on a grid. The smallest scale,
    1e-5, is ignored.
    """
    if length == 1:
        return 0.0  # the element is the mean
    others, weights = _sum_of_magnitudes(length - 1)
    limit = others / (2 * length - 1)
    zero = _partial_square(np.zeros_like(limit), limit, 1.0, np.zeros_like(limit))
    infinite = np.full_like(limit, np.inf)
    one = _partial_square(limit, infinite, 1 - 1 / length, others / length)
    return float(weights @ (zero + one))


def magnitude_error(scale: float) -> float:
    """E[(x - L)²] for x ~ N(0, 1) and levels -scale, 0 and scale."""
    half, zero, infinite = (np.array([v]) for v in (scale / 2, 0.0, np.inf))
    near = _partial_square(zero, half, 1.0, zero)
    return float((near + _partial_square(half, infinite, 1.0, np.array([scale])))[0])


def _partial_square(low: Float64, high: Float64, slope: float, offset: Float64) -> Float64:
    """∫ (slope a - offset)² 2 φ(a) da from low to high."""

    def at(x: Float64) -> tuple[Float64, Float64, Float64]:
        finite = np.where(np.isfinite(x), x, 0.0)
        below, height = distribution(x), density(x)
        return below, -height, below - finite * height

    (m0, m1, m2), (n0, n1, n2) = at(low), at(high)
    mass, first, second = n0 - m0, n1 - m1, n2 - m2
    return 2 * (slope**2 * second - 2 * slope * offset * first + offset**2 * mass)


def _sum_of_magnitudes(count: int) -> tuple[Float64, Float64]:
    """Nodes and weights, each `[n]`, for the sum of the magnitudes of `count` independent normal
    numbers. The weights sum to 1."""
    if count >= MANY:
        points, shares = np.polynomial.hermite_e.hermegauss(24)
        sums = np.maximum(count * MEAN + math.sqrt(count * VARIANCE) * points, 0.0)
        return sums, shares / shares.sum()
    edges = np.arange(0, 9, STEP)
    cell = 2 * np.diff(distribution(edges))
    size = 1 << math.ceil(math.log2(count * cell.size + 1))
    spectrum = np.fft.rfft(cell, size) ** count
    weights: Float64 = np.maximum(np.fft.irfft(spectrum, size), 0.0)
    # A cell of the grid is represented by its middle.
    nodes: Float64 = STEP * np.arange(count / 2, size + count / 2, dtype=np.float64)
    kept = weights > 1e-14
    return nodes[kept], weights[kept] / weights[kept].sum()
