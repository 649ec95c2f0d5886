"""The error, on normal data, of a cast that does not saturate: over the elements that stay finite,
because those that overflow are counted separately."""

from __future__ import annotations

import math

import numpy as np

from qtui_core.quant.gaussian.normal import density, interval_nodes, upper_tail

#: Beyond this many σ the normal density underflows in float64.
NOTHING_BEYOND = 38.0


def tail_error(limit: float) -> float:
    """∫ (|x| - limit)² φ over |x| > limit: the squared error of x ~ N(0, 1) that saturates at
    ±limit."""
    if limit > NOTHING_BEYOND:
        return 0.0
    return 2 * ((1 + limit * limit) * upper_tail(limit) - limit * _height(limit))


def without_overflow(inside: float, largest: float, step: float, rounding: str) -> float:
    """Expected squared error over expected squared value of those elements of N(0, 1) that stay
    finite. `inside` is the squared error of elements up to `largest`, the largest number of the
    format; `step` is the distance from it to the number that would come next.

    With rounding to nearest, elements up to half a step beyond `largest` stay finite; with
    stochastic rounding elements within a step, with decreasing probability; toward zero all do.
    """
    if rounding == "truncate" or largest > NOTHING_BEYOND:
        return inside + tail_error(largest)
    signal = 1 - 2 * (upper_tail(largest) + largest * _height(largest))
    width = step if rounding == "stochastic" else step / 2
    x, weights = interval_nodes(largest, largest + width, 4)
    weights = 2 * weights * density(x)
    if rounding == "stochastic":
        weights = weights * (largest + step - x) / step
    error = inside + float(weights @ np.square(x - largest))
    signal += float(weights @ np.square(x))
    return error / signal if signal > 0 else 0.0


def _height(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
