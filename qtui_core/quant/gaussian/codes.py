"""How often a Gaussian tensor would use each code: the reference for a histogram of codes.

As in `gaussian`, the extent of a group of independent normal elements has a known density. Given
the extent, the share of a cell is a difference of two values of the normal distribution function.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qtui_core.quant.coding.alphabet import alphabet_of
from qtui_core.quant.coding.levels import Float64, shared_scale
from qtui_core.quant.coding.microscaling import LARGEST_SCALE
from qtui_core.quant.gaussian.normal import absmax_nodes, distribution, min_max_nodes
from qtui_core.quant.gaussian.ternary import MEAN
from qtui_core.quant.gaussian.two_level import scale_values
from qtui_core.quant.segments.layout import run_lengths
from qtui_core.schemes.scheme import Family, Scheme

#: Panels of 8 quadrature nodes over the absmax of a group, for scales that are proportional to it
#: and for scales that are rounded and so jump.
ABSMAX_PANELS, JUMPING_PANELS = 12, 64
TENSOR_PANELS = 1
MIN_MAX_PANELS = 8
#: With so few steps the zero point takes few values, and the integral needs finer nodes.
FINE_PANELS, FINE_STEPS = 16, 7
#: For at least this many elements, the mean magnitude is replaced by its expectation.
MANY = 256
#: Quadrature nodes per chunk, which bounds memory: thousands of nodes may have many edges each.
CHUNK = 512


def expected_code_shares(
    scheme: Scheme, shape: tuple[int, ...], *, sigma: float = 1.0
) -> Float64 | None:
    """The expected share of each code of `alphabet_of(scheme)` in a tensor of independent
    N(0, sigma²) elements: float64 `[K]`, with the sum 1. `sigma` matters only for scales that are
    powers of two.

    None for an empty tensor, for roundings other than to nearest, for columns kept in 16 bits, for
    float zero points, and for ternary groups of fewer than `MANY` elements.
    """
    alphabet = alphabet_of(scheme)
    if scheme.rounding != "nearest":
        return None
    inside = expected_shares(scheme, shape, alphabet.edges, sigma=sigma)
    if inside is None:
        return None
    shares = np.zeros(len(alphabet.levels))
    shares[alphabet.reachable] = inside
    return shares


def expected_shares(
    scheme: Scheme, shape: tuple[int, ...], edges: Float64, *, sigma: float = 1.0
) -> Float64 | None:
    """The expected share of elements between each two neighbouring `edges` (ascending, `[K + 1]`):
    float64 `[K]`. Edges are in the units of the levels of `alphabet_of`. None in the cases of
    `expected_code_shares`, except that the rounding does not matter."""
    lengths = run_lengths(scheme.granularity, shape)
    if scheme.float_zero_point or scheme.outlier_threshold is not None or not lengths:
        return None
    if scheme.family is Family.TERNARY and min(lengths) < MANY:
        return None
    # If scales are powers of two, shares are the same for sigma and twice the sigma.
    fraction = math.frexp(sigma)[0] if scheme.family is Family.MICROSCALING else 1.0
    count = math.prod(shape)
    total = np.zeros(len(edges) - 1)
    for length, groups in lengths.items():
        total += length * groups * _shares(scheme, length, count, fraction, tuple(edges))
    return total / count


class _Groups(NamedTuple):
    """Quadrature nodes over groups, each float64 `[n]`: the absmax and the value of level 1, in
    units of sigma, and weights with the sum 1."""

    absmax: Float64
    reach: Float64
    weights: Float64


def _groups(scheme: Scheme, length: int, count: int, sigma: float) -> _Groups:
    """Nodes for groups of `length` elements in a tensor of `count` elements."""
    if scheme.family not in (Family.MICROSCALING, Family.TWO_LEVEL):
        m, weights = absmax_nodes(length, ABSMAX_PANELS)
        return _Groups(m, m, weights)
    top = alphabet_of(scheme).top
    m, weights = absmax_nodes(length, JUMPING_PANELS)
    if scheme.family is Family.MICROSCALING:
        scales = np.array([shared_scale(scheme, absmax * sigma) / sigma for absmax in m.tolist()])
        return _Groups(m, scales * top, weights)
    return _two_level_groups(m, weights, count)


def _two_level_groups(m: Float64, weights: Float64, count: int) -> _Groups:
    """Nodes for a two-level scheme: the scale of a group is its absmax rounded to E4M3, in units
    set by the absmax of the tensor."""
    values = scale_values()
    largest, shares = absmax_nodes(count, TENSOR_PANELS)
    below = np.where(m <= largest[:, None], weights, 0.0)
    below *= (shares / below.sum(axis=1))[:, None]
    units = largest[:, None] / float(LARGEST_SCALE)
    nearest = values[np.searchsorted((values[1:] + values[:-1]) / 2, m / units)]
    return _Groups(np.tile(m, len(largest)), (nearest * units).reshape(-1), below.reshape(-1))


@lru_cache(maxsize=256)
def _shares(
    scheme: Scheme, length: int, count: int, sigma: float, edges: tuple[float, ...]
) -> Float64:
    """The shares of groups of `length` elements."""
    place = np.array(edges)
    if scheme.family is Family.TERNARY:
        below = distribution(place * MEAN)
        return np.diff(below)
    if not scheme.symmetric:
        # The nodes are not symmetric about zero, the distribution is: take the mean of both signs.
        steps = 2**scheme.bits - 1
        shares = _asymmetric_shares(steps, length, place)
        return (shares + _asymmetric_shares(steps, length, -place[::-1])[::-1]) / 2
    groups = _groups(scheme, length, count, sigma)
    ends = groups.absmax / groups.reach
    extreme = _held(place, ends, groups.weights)
    if scheme.scale_rule != "signed":
        extreme = (extreme + _held(place, -ends, groups.weights)) / 2
    inside = _inside(place * groups.reach[:, None], -groups.absmax, groups.absmax, groups.weights)
    return ((length - 1) * inside + extreme) / length


def _asymmetric_shares(steps: int, length: int, place: Float64) -> Float64:
    """The shares for asymmetric integers, whose range is from the smallest to the largest element
    and includes zero."""
    code = (place + 1) / 2 * steps
    one = np.ones(1)
    low, high = _held(code, np.zeros(1), one), _held(code, np.full(1, float(steps)), one)
    if length == 1:
        return (low + high) / 2
    # Groups with all elements on one side of zero: the range is from zero to the extreme element.
    m, weights = absmax_nodes(length, ABSMAX_PANELS)
    nothing = np.zeros_like(m)
    above = _inside(code / steps * m[:, None], nothing, m, weights)
    below = _inside((code / steps - 1) * m[:, None], -m, nothing, weights)
    one_sided = ((length - 1) * (above + below) + low + high) / 2
    panels = FINE_PANELS if steps <= FINE_STEPS else MIN_MAX_PANELS
    a, b, weights = min_max_nodes(length, panels)
    scale = (b - a) / steps
    zero_point = np.rint(-a / scale)
    # The zero point is rounded, so the ends of the range move by up to half a step.
    moved = zero_point + a / scale
    two_sided = _held(code, moved, weights) + _held(code, steps + moved, weights)
    if length > 2:
        cells = (code - zero_point[:, None]) * scale[:, None]
        two_sided = two_sided + (length - 2) * _inside(cells, a, b, weights)
    share = 2.0 ** (1 - length)
    return (share * one_sided + (1 - share) * two_sided) / length


def _inside(edges: Float64, low: Float64, high: Float64, weights: Float64) -> Float64:
    """Mean shares of cells between edges `[n, K + 1]` for N(0, 1) elements restricted to
    (low, high) `[n]`."""
    mass = np.maximum(distribution(high) - distribution(low), 1e-300)
    total = np.zeros(edges.shape[1] - 1)
    for start in range(0, len(low), CHUNK):
        part = slice(start, start + CHUNK)
        clipped = np.clip(edges[part], low[part, None], high[part, None])
        total += (weights[part] / mass[part]) @ np.diff(distribution(clipped), axis=1)
    return total


def _held(edges: Float64, places: Float64, weights: Float64) -> Float64:
    """The sum of the weights of the `places` in each cell, float64 `[K]`. A place on an edge
    belongs to the outer cell, to which extreme elements mostly round: the rule "full" has an edge
    at the extreme."""
    cell = np.searchsorted(edges[1:-1], places * (1 + 1e-9))
    sums: Float64 = np.bincount(cell, weights, minlength=len(edges) - 1).astype(np.float64)
    return sums
