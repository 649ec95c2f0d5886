"""How often a Gaussian tensor would use each code: what a histogram of codes is compared with.

As in `gaussian`, the extent of a group of independent N(0, 1) elements has a known density;
given it, the share of a cell is a difference of two values of the normal distribution function.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from qtui_core.quant.alphabet import alphabet_of
from qtui_core.quant.layout import run_lengths
from qtui_core.quant.levels import Float64
from qtui_core.quant.normal import absmax_nodes, distribution, min_max_nodes
from qtui_core.quant.scheme import Family, Scheme

ABSMAX_PANELS = 12
MIN_MAX_PANELS = 8
#: With so few levels the zero point jumps between few values, which takes finer nodes.
FINE_PANELS, FINE_STEPS = 16, 7


def expected_code_shares(scheme: Scheme, shape: tuple[int, ...]) -> Float64 | None:
    """The expected share of each code of `alphabet_of(scheme)`, float64 `[K]`, summing to 1,
    in a tensor of independent normal elements of mean 0; None where it is not known: for an
    empty tensor, roundings other than nearest, and scales that are not the extent of a group.
    """
    alphabet = alphabet_of(scheme)
    if scheme.rounding != "nearest":
        return None
    inside = expected_shares(scheme, shape, alphabet.edges)
    if inside is None:
        return None
    shares = np.zeros(len(alphabet.levels))
    shares[alphabet.reachable] = inside
    return shares


def expected_shares(scheme: Scheme, shape: tuple[int, ...], edges: Float64) -> Float64 | None:
    """The share of elements whose place in their group, as the levels of `alphabet_of` are
    given, is between consecutive `edges`, ascending `[K + 1]`: float64 `[K]`."""
    if not _has_extents(scheme) or math.prod(shape) == 0:
        return None
    total = np.zeros(len(edges) - 1)
    for length, groups in run_lengths(scheme.granularity, shape).items():
        total += length * groups * _shares(scheme, length, tuple(edges))
    return total / math.prod(shape)


def _has_extents(scheme: Scheme) -> bool:
    """Whether scales follow the extent of a group exactly."""
    if scheme.float_zero_point or scheme.outlier_threshold is not None:
        return False
    return scheme.family in (Family.CODEBOOK, Family.INTEGER, Family.FLOAT)


@lru_cache(maxsize=256)
def _shares(scheme: Scheme, length: int, edges: tuple[float, ...]) -> Float64:
    """The shares of a group of `length` elements."""
    place = np.array(edges)
    if not scheme.symmetric:
        return _asymmetric_shares(2**scheme.bits - 1, length, place)
    m, weights = absmax_nodes(length, ABSMAX_PANELS)
    inside = _between(place * m[:, None], -m, m)
    ends = (1.0,) if scheme.scale_rule == "signed" else (-1.0, 1.0)
    extreme = np.mean([_holding(place, end) for end in ends], axis=0)
    result: Float64 = ((length - 1) * (weights @ inside) + extreme) / length
    return result


def _asymmetric_shares(steps: int, length: int, place: Float64) -> Float64:
    """The range is from the smallest to the largest element, zero included."""
    code = (place + 1) / 2 * steps
    low, high = _holding(code, 0.0), _holding(code, float(steps))
    if length == 1:
        return (low + high) / 2
    # All on one side: the range is from zero to the extreme.
    m, weights = absmax_nodes(length, ABSMAX_PANELS)
    nothing = np.zeros_like(m)
    above = weights @ _between(code / steps * m[:, None], nothing, m)
    below = weights @ _between((code / steps - 1) * m[:, None], -m, nothing)
    one_sided = ((length - 1) * (above + below) + low + high) / 2
    panels = FINE_PANELS if steps <= FINE_STEPS else MIN_MAX_PANELS
    a, b, weights = min_max_nodes(length, panels)
    scale = (b - a) / steps
    zero_point = np.rint(-a / scale)
    # Zero is put on a level, which moves the ends by up to half a step.
    moved = zero_point + a / scale
    two_sided = _held(code, moved, weights) + _held(code, steps + moved, weights)
    if length > 2:
        # Few nodes at a time: there are thousands of them, and the edges may be many.
        for start in range(0, len(a), 512):
            part = slice(start, start + 512)
            cells = (code - zero_point[part, None]) * scale[part, None]
            two_sided = two_sided + (length - 2) * (
                weights[part] @ _between(cells, a[part], b[part])
            )
    share = 2.0 ** (1 - length)
    return (share * one_sided + (1 - share) * two_sided) / length


def _between(edges: Float64, low: Float64, high: Float64) -> Float64:
    """Shares of cells `[n, K]` for N(0, 1) elements restricted to (low, high) `[n]`."""
    below = distribution(np.clip(edges, low[:, None], high[:, None]))
    mass = distribution(high) - distribution(low)
    return np.diff(below, axis=1) / np.maximum(mass, 1e-300)[:, None]


def _holding(edges: Float64, end: float) -> Float64:
    """1 in the cell that holds an end of the range. On an edge it is the outer one, where an
    extreme element is mostly rounded to (the rule "full" has an edge there)."""
    outwards = 1e-9 if end > (edges[1] + edges[-2]) / 2 else -1e-9
    held = np.zeros(len(edges) - 1)
    held[np.searchsorted(edges[1:-1], end + outwards)] = 1
    return held


def _held(edges: Float64, places: Float64, weights: Float64) -> Float64:
    """The sums of the weights of the places in each cell."""
    cell = np.searchsorted(edges[1:-1], places)
    sums: Float64 = np.bincount(cell, weights, minlength=len(edges) - 1).astype(np.float64)
    return sums
