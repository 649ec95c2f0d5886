"""The error of x ~ N(0, 1) rounded to given levels, from exact partial moments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qtui_core.quant.coding.levels import Float64
from qtui_core.quant.gaussian.normal import density, distribution


class GaussianMoments(NamedTuple):
    """Partial moments over intervals, each float64 `[n]`, of x ~ N(0, 1) and the level L that x is
    rounded to: the probability of the interval, and the integrals of x² φ, x L φ and L² φ."""

    mass: Float64
    xx: Float64
    xl: Float64
    ll: Float64


def level_moments(levels: Float64, low: Float64, high: Float64) -> GaussianMoments:
    """Moments `[n]` over (low, high) `[n]` of x ~ N(0, 1) rounded to the nearest of `levels`
    `[n, K]`, ascending."""
    edges = np.concatenate(
        [low[:, None], (levels[:, 1:] + levels[:, :-1]) / 2, high[:, None]], axis=1
    )
    mass, first, second = _between(np.clip(edges, low[:, None], high[:, None]))
    return GaussianMoments(
        mass=mass.sum(axis=1),
        xx=second.sum(axis=1),
        xl=(levels * first).sum(axis=1),
        ll=(np.square(levels) * mass).sum(axis=1),
    )


def mean_error(m: GaussianMoments) -> Float64:
    """E[(x - L)² | x in the interval]."""
    return (m.xx - 2 * m.xl + m.ll) / np.maximum(m.mass, 1e-300)


def error_within(levels: Float64, low: Float64, high: Float64, rounding: str) -> Float64:
    """E[(x - L)² | low < x < high], float64 `[n]`, of x ~ N(0, 1) rounded to a level L of `levels`
    `[n, K]`, which ascend and include zero. `rounding` is one of the ROUNDINGS of a scheme, or
    "down". An x beyond the outermost level takes that level."""
    levels = np.broadcast_to(levels, (low.size, levels.shape[-1]))
    if rounding == "nearest":
        return mean_error(level_moments(levels, low, high))
    edges = np.concatenate([low[:, None], levels, high[:, None]], axis=1)
    mass, first, second = _between(np.clip(edges, low[:, None], high[:, None]))
    below = np.concatenate([levels[:, :1], levels], axis=1)
    above = np.concatenate([levels, levels[:, -1:]], axis=1)
    if rounding == "stochastic":
        # Between two levels the expected squared error is (x - below)(above - x).
        between = (below + above) * first - below * above * mass - second
        outside = second - 2 * below * first + np.square(below) * mass
        inner = np.ones(mass.shape[1], bool)
        inner[[0, -1]] = False
        total = np.where(inner, between, outside)
    else:
        taken = below if rounding == "down" else np.where(above <= 0, above, below)
        total = second - 2 * taken * first + np.square(taken) * mass
    return total.sum(axis=1) / np.maximum(mass.sum(axis=1), 1e-300)


def error_at(levels: Float64, x: Float64, rounding: str) -> Float64:
    """The expected squared error, float64 `[n]`, of each number of `x` `[n]` rounded to its levels:
    `levels` `[n, K]`, ascending, or `[1, K]` for all numbers."""
    inside = np.clip(x, levels[:, 0], levels[:, -1])
    if levels.shape[0] == 1:
        above = levels[0, np.searchsorted(levels[0], inside)]
        below = levels[0, np.searchsorted(levels[0], inside, side="right") - 1]
    else:
        above = np.where(levels >= inside[:, None], levels, np.inf).min(axis=1)
        below = np.where(levels <= inside[:, None], levels, -np.inf).max(axis=1)
    up, down = np.square(above - x), np.square(x - below)
    if rounding == "nearest":
        return np.minimum(up, down)
    if rounding == "truncate":
        return np.where(x < 0, up, down)
    step = np.maximum(above - below, 1e-300)
    share = np.clip((x - below) / step, 0.0, 1.0)
    return share * up + (1 - share) * down


def _between(edges: Float64) -> tuple[Float64, Float64, Float64]:
    """∫ φ, ∫ x φ and ∫ x² φ between neighbouring `edges` `[n, K]`, each `[n, K - 1]`."""
    height = density(edges)
    mass = np.diff(distribution(edges), axis=1)
    finite = np.where(np.isfinite(edges), edges, 0.0)
    return mass, -np.diff(height, axis=1), mass - np.diff(finite * height, axis=1)
