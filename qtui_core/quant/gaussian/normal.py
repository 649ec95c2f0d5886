"""The standard normal distribution on arrays, and quadrature over the extremes of samples."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_STEP = 1 / 256
#: The probability beyond each end of the range over which an extreme is integrated.
_TAIL = 1e-10
_END = 8.5  # beyond ±8.5 the distribution function is 0 or 1 within 1e-16


def density(x: Float64) -> Float64:
    """φ(x)."""
    result: Float64 = np.exp(-0.5 * np.square(x)) / math.sqrt(2 * math.pi)
    return result


@cache
def _table() -> Float64:
    nodes = np.arange(-_END, _END + _STEP / 2, _STEP)
    return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in nodes])


def distribution(x: Float64) -> Float64:
    """Φ(x), with an absolute error below 1e-15: a Taylor series of degree 5 around the nearest node
    of a table with steps of 1/256, which math.erfc computes."""
    clipped = np.clip(x, -_END, _END)
    index = np.rint((clipped + _END) / _STEP).astype(np.intp)
    node = (index * _STEP - _END).astype(np.float64)
    h = clipped - node
    square = node * node
    series = 1 + h * (
        -node / 2
        + h
        * (
            (square - 1) / 6
            + h * (-node * (square - 3) / 24 + h * (square * square - 6 * square + 3) / 120)
        )
    )
    result: Float64 = _table()[index] + density(node) * h * series
    return result


def upper_tail(x: float) -> float:
    """P(X > x) to full relative precision."""
    return 0.5 * math.erfc(x / math.sqrt(2))


def upper_quantile(probability: float) -> float:
    """x with P(X > x) = probability, for probabilities down to 1e-300."""
    smallest = 1e-300
    return -NormalDist().inv_cdf(min(max(probability, smallest), 1 - 1e-16))


def absmax_nodes(count: int, panels: int) -> tuple[Float64, Float64]:
    """Quadrature nodes and weights, each `[8 * panels]`, for the largest magnitude of `count`
    independent normal numbers. The weights sum to 1."""
    low, high = absmax_range(count)
    m, weights = interval_nodes(low, high, panels)
    inside = np.array([math.log1p(-2 * upper_tail(v)) for v in m])
    weights = weights * np.exp((count - 1) * inside) * density(m)
    return m, weights / weights.sum()


def absmax_range(count: int) -> tuple[float, float]:
    """(low, high): the largest magnitude of `count` independent normal numbers is below or above
    them with probability 1e-10 each."""
    # P(absmax < m) = (1 - 2 P(X > m))^count, solved for m at both ends.
    low = upper_quantile(-math.expm1(math.log(_TAIL) / count) / 2)
    high = upper_quantile(-math.expm1(math.log1p(-_TAIL) / count) / 2)
    return max(low, 0.0), high


def absmax_between(count: int, edges: Float64, panels: int = 1) -> tuple[Float64, Float64]:
    """Nodes and weights, each `[pieces, 8 * panels]`, for the largest magnitude of `count`
    independent normal numbers, given that it lies between the first and the last of `edges`
    (ascending, `[pieces + 1]`). The sum of all weights is 1."""
    unit, unit_weights = interval_nodes(0.0, 1.0, panels)
    width = np.diff(edges)[:, None]
    m = edges[:-1, None] + width * unit
    inside = np.log(np.maximum(2 * distribution(m) - 1, 1e-300))
    logarithm = (count - 1) * inside - 0.5 * np.square(m)
    weights = width * unit_weights * np.exp(logarithm - logarithm.max())
    return m, weights / weights.sum()


def min_max_nodes(
    count: int, panels: int, around_zero: bool = True
) -> tuple[Float64, Float64, Float64]:
    """(a, b, weights), each float64 `[n]`: quadrature nodes for the smallest (a) and the largest
    (b) of `count` >= 2 independent normal numbers, and weights with the sum 1. With `around_zero`,
    given that a < 0 < b."""
    low = -upper_quantile(-math.expm1(math.log1p(-_TAIL) / count))
    high = -upper_quantile(-math.expm1(math.log(_TAIL) / count))
    smallest, outer = interval_nodes(low, min(high, 0.0) if around_zero else high, panels)
    above = np.array([upper_tail(v) for v in smallest])
    outer = outer * np.exp((count - 1) * np.log(above)) * density(smallest)
    a, b, weights = [], [], []
    for value, weight, mass in zip(smallest, outer, above, strict=True):
        first = upper_quantile(mass * -math.expm1(math.log(_TAIL) / (count - 1)))
        last = upper_quantile(mass * -math.expm1(math.log1p(-_TAIL) / (count - 1)))
        largest, inner = interval_nodes(
            max(first, 0.0) if around_zero else max(first, value), last, panels
        )
        beyond = np.array([upper_tail(v) for v in largest])
        inner = inner * density(largest) * ((mass - beyond) / mass) ** (count - 2) / mass
        a.append(np.full(largest.size, value))
        b.append(largest)
        weights.append(weight * inner)
    weight = np.concatenate(weights)
    return np.concatenate(a), np.concatenate(b), weight / weight.sum()


def interval_nodes(low: float, high: float, panels: int = 1) -> tuple[Float64, Float64]:
    """Nodes and weights on [low, high], each `[8 * panels]`: Gauss-Legendre with 8 nodes in each
    of `panels` equal panels."""
    x, w = _legendre()
    half = (high - low) / (2 * panels)
    centres = low + half * (2 * np.arange(panels)[:, None] + 1)
    return (centres + half * x).reshape(-1), np.tile(half * w, panels)


@cache
def _legendre() -> tuple[Float64, Float64]:
    x, w = np.polynomial.legendre.leggauss(8)
    return x, w
