"""The error of NVFP4 on normal data. The scale of a block is an E4M3 number times a scale of the
tensor, which depends on the absmax of the tensor."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from qtui_core.formats import E4M3
from qtui_core.quant.coding.levels import Float64, element_values, plain_levels
from qtui_core.quant.coding.microscaling import LARGEST_SCALE
from qtui_core.quant.gaussian.moments import error_at, error_within
from qtui_core.quant.gaussian.normal import absmax_between, absmax_nodes, absmax_range
from qtui_core.schemes.scheme import Scheme

#: Panels of 8 quadrature nodes over the absmax of the tensor.
PANELS = 2


@lru_cache(maxsize=1024)
def two_level_mse(scheme: Scheme, lengths: tuple[tuple[int, int], ...]) -> float:
    """Mean squared error of N(0, 1) elements in blocks. `lengths` are pairs (elements of a block,
    number of such blocks).

    Given the absmax A of the tensor, the block that contains it has the largest scale, and the
    other blocks are independent, each with an absmax below A.
    """
    count = sum(length * blocks for length, blocks in lengths)
    largest, weights = absmax_nodes(count, PANELS)
    total = 0.0
    for top, weight in zip(largest.tolist(), weights.tolist(), strict=True):
        for length, blocks in lengths:
            has_it = length / count
            of_it = _top_block(scheme, length, top)
            other = (
                _other_block(scheme, length, top) if blocks * length < count or blocks > 1 else 0
            )
            total += weight * blocks * (has_it * of_it + (1 - has_it) * other)
    return total / count


def _top_block(scheme: Scheme, length: int, top: float) -> float:
    """Expected sum of the squared errors of the block with the tensor's absmax, whose scale is
    exact."""
    plain, end = plain_levels(scheme), np.array([top])
    grid = (plain / plain[-1] * top)[None]
    inside = (length - 1) * float(error_within(grid, -end, end, scheme.rounding)[0])
    return inside + float(error_at(grid, end, scheme.rounding)[0])


def _other_block(scheme: Scheme, length: int, top: float) -> float:
    """Expected sum of the squared errors of a block whose absmax is below `top`."""
    plain = plain_levels(scheme)
    unit = top / float(LARGEST_SCALE)  # the absmax of a block divided by this is rounded to E4M3
    low, high = absmax_range(length)
    high = min(high, top)
    low = min(low, high / 2)
    values = scale_values()
    middles = (values[1:] + values[:-1]) / 2 * unit
    edges = np.concatenate([[low], middles[(middles > low) & (middles < high)], [high]])
    m, weights = absmax_between(length, edges)
    centre = (edges[1:] + edges[:-1]) / 2 / unit
    nearest = values[np.searchsorted((values[1:] + values[:-1]) / 2, centre)]
    scale = np.repeat(nearest * unit / plain[-1], m.shape[1])
    grid, m, weights = scale[:, None] * plain, m.reshape(-1), weights.reshape(-1)
    error = error_at(grid, m, scheme.rounding)
    if length > 1:
        error = error + (length - 1) * error_within(grid, -m, m, scheme.rounding)
    return float(weights @ error)


def scale_values() -> Float64:
    """The E4M3 numbers that a block's scale can be, ascending: the positive normal ones."""
    values = element_values(E4M3)
    return np.unique(values[np.isfinite(values) & (values >= float(E4M3.min_normal))])
