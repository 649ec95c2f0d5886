"""The error of a microscaling group on normal data. Its scale is a power of two."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np

from qtui_core.quant.coding.levels import Float64, plain_levels, shared_scale, turn_of_scale
from qtui_core.quant.gaussian.moments import error_at, error_within
from qtui_core.quant.gaussian.normal import absmax_between, absmax_range
from qtui_core.schemes.scheme import Scheme

#: Panels of 8 quadrature nodes in each octave of the absmax.
PANELS = 3
#: Octaves of the absmax that are integrated. Those further below add 2^-36 of the error.
OCTAVES = 12


def shared_exponent_mse(scheme: Scheme, length: int, sigma: float) -> float:
    """Mean squared error of a group of `length` elements of N(0, sigma²), in units of sigma². It is
    the same for twice the sigma, because scales are powers of two. The limits of E8M0 are
    ignored."""
    return _of_fraction(scheme, length, math.frexp(sigma)[0])


@lru_cache(maxsize=4096)
def _of_fraction(scheme: Scheme, length: int, sigma: float) -> float:
    plain = plain_levels(scheme)
    low, high = absmax_range(length)
    octaves = _octaves(scheme, max(low, high * 2.0**-OCTAVES), high, sigma)
    # The scale between each two jumps, in units of sigma.
    scales = [
        shared_scale(scheme, math.sqrt(a * b) * sigma) / sigma
        for a, b in pairwise(octaves.tolist())
    ]
    total = 0.0
    if length > 1:
        m, weights = absmax_between(length, octaves, PANELS)
        for levels, nodes, weight in zip(scales, m, weights, strict=True):
            inside = error_within((plain * levels)[None], -nodes, nodes, scheme.rounding)
            total += (length - 1) * float(weight @ inside)
    edges, grids = _cells(plain, octaves, scales)
    m, weights = absmax_between(length, edges)
    scale = np.repeat(grids, m.shape[1])
    extreme = np.square(scale) * error_at(plain[None], m.reshape(-1) / scale, scheme.rounding)
    return (total + float(weights.reshape(-1) @ extreme)) / length


def _octaves(scheme: Scheme, low: float, high: float, sigma: float) -> Float64:
    """The ascending edges of absmax: `low`, the points where the scale jumps, and `high`."""
    first = turn_of_scale(scheme)[0] / sigma
    start, stop = math.floor(math.log2(low / first)), math.ceil(math.log2(high / first))
    jumps = first * 2.0 ** np.arange(start, stop + 1)
    return np.concatenate([[low], jumps[(jumps > low) & (jumps < high)], [high]])


def _cells(plain: Float64, octaves: Float64, scales: list[float]) -> tuple[Float64, Float64]:
    """(edges, scales of the pieces between them): the edges of the octaves, and the points at which
    the extreme element reaches a level or starts to round to the next."""
    positive = plain[plain >= 0]
    turns = np.sort(np.concatenate([positive, (positive[1:] + positive[:-1]) / 2]))
    edges, grids = [octaves[:1]], []
    for left, right, scale in zip(octaves[:-1], octaves[1:], scales, strict=True):
        at = turns * scale
        edges.append(np.append(at[(at > left) & (at < right)], right))
        grids.append(np.full(edges[-1].size, scale))
    return np.concatenate(edges), np.concatenate(grids)
