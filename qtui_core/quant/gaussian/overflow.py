"""What a format that does not saturate leaves of normal data: elements that overflow are counted
apart, so error and signal are those of the others."""

from __future__ import annotations

import math

import numpy as np

from qtui_core.quant.gaussian.normal import density, interval_nodes, upper_tail

#: Beyond this many σ there is nothing to float64.
NOTHING_BEYOND = 38.0


def tail_error(limit: float) -> float:
    """E[(|x| - limit)²] over |x| > limit."""
    if limit > NOTHING_BEYOND:
        return 0.0
    return 2 * ((1 + limit * limit) * upper_tail(limit) - limit * _height(limit))


def without_overflow(inside: float, largest: float, step: float, rounding: str) -> float:
    """Expected squared error over expected squared value of the elements of N(0, 1) that stay
    finite. `inside` is the squared error of those up to `largest`, the largest number, and
    `step` what the next number would be beyond it.

    Rounding to nearest, half a step beyond still becomes the largest number; at random, ever less
    of the whole step; toward zero everything.
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
