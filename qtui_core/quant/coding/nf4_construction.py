"""How the sixteen levels of NF4 are constructed, step by step.

Dettmers et al. 2023 (QLoRA), appendix E; bitsandbytes `functional.create_normal_map`. The levels
are quantiles of a normal distribution, so that each code would be used about equally often.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from qtui_core.answers.codes import NF4Construction, NF4Level, NF4Step
from qtui_core.quant.coding.codebook import NF4_LEVELS

#: The probability of the outermost quantile, 1 - (1/32 + 1/30) / 2 truncated to seven places: half
#: way between the centre of the last of 16 equal shares and the centre of the last of 15.
OFFSET = 0.9677083
POSITIVE, NEGATIVE = 8, 7


def construct_nf4(offset: float = OFFSET) -> NF4Construction:
    """NF4 from normal quantiles. The published constants have the default offset.

    Raises ValueError for an offset that is not between 0.5 and 1.
    """
    if not 0.5 < offset < 1:
        raise ValueError(f"the outermost probability is between 0.5 and 1; got {offset}")
    positive = np.linspace(offset, 0.5, POSITIVE + 1)[:-1]
    negative = np.linspace(offset, 0.5, NEGATIVE + 1)[:-1]
    quantile_of = NormalDist().inv_cdf
    above = [(float(p), quantile_of(float(p))) for p in positive]
    below = [(1 - float(p), -quantile_of(float(p))) for p in negative]
    ascending: list[tuple[float | None, float]] = [*below, (None, 0.0), *reversed(above)]
    largest = ascending[-1][1]
    derived = np.array([quantile / largest for _, quantile in ascending])
    ulps = _ulps(derived.astype(np.float32))
    float32_ulps = _ulps(_in_float32(offset))
    levels = tuple(
        NF4Level(
            code,
            probability,
            quantile,
            float(derived[code]),
            float(NF4_LEVELS[code]),
            int(ulps[code]),
            int(float32_ulps[code]),
        )
        for code, (probability, quantile) in enumerate(ascending)
    )
    return NF4Construction(offset, levels, _steps(levels, largest))


def _ulps(levels: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The distance of each level from the published one, counted in float32 numbers; negative if
    it is below."""

    def ordered(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        words = np.where(values == 0, np.float32(0), values).view(np.int32).astype(np.int64)
        return np.where(words < 0, -(words & 0x7FFF_FFFF), words)

    return ordered(levels) - ordered(NF4_LEVELS)


def _in_float32(offset: float) -> npt.NDArray[np.float32]:
    """The same with probabilities, quantiles and quotients each rounded to float32."""
    quantile_of = NormalDist().inv_cdf

    def quantiles(count: int) -> list[float]:
        return [quantile_of(float(p)) for p in _float32_line(offset, count + 1)[:-1]]

    values = [*quantiles(POSITIVE), 0.0, *(-q for q in quantiles(NEGATIVE))]
    ascending = np.sort(np.array(values, np.float32))
    result: npt.NDArray[np.float32] = ascending / ascending[-1]
    return result


def _float32_line(start: float, count: int) -> npt.NDArray[np.float32]:
    """`torch.linspace(start, 0.5, count)`: a float32 step, added to the nearer end with one
    rounding."""
    first, last = np.float32(start), np.float32(0.5)
    step = np.float64((last - first) / np.float32(count - 1))
    index = np.arange(count)
    up, down = first + step * index, last - step * (count - 1 - index)
    return np.where(index < count // 2, up, down).astype(np.float32)


def _steps(levels: tuple[NF4Level, ...], largest: float) -> tuple[NF4Step, ...]:
    exact = sum(level.ulps == 0 for level in levels)
    exact32 = sum(level.float32_ulps == 0 for level in levels)
    furthest = max(abs(level.ulps) for level in levels)
    return (
        NF4Step(
            "probabilities",
            f"{POSITIVE} from {OFFSET:g} down to one half for the positive levels, {NEGATIVE} for "
            f"the negative ones; zero takes the sixteenth code. {OFFSET:g} is 1 - (1/32 + 1/30)/2, "
            f"between the middles of the last of 16 and of 15 equal shares: 1 has no quantile.",
            "probability",
        ),
        NF4Step(
            "quantiles",
            "Each probability becomes the value below which that share of a normal "
            "distribution lies: where values are dense the levels are close together.",
            "quantile",
        ),
        NF4Step(
            "zero",
            "Zero is put between the two sides, so that zeros (padding, pruned weights) are "
            "kept exactly; 7 levels lie below it and 8 above.",
            "quantile",
        ),
        NF4Step(
            "divide by the largest",
            f"Everything over the largest quantile, {largest:.6f}: the levels span -1 to 1, as "
            f"elements over the absmax of their block do.",
            "derived",
        ),
        NF4Step(
            "published constants",
            f"Of the float64 results {exact} of 16 round to the published float32 constants, the "
            f"others miss by up to {furthest} float32 steps; in float32 throughout, as they were "
            f"made, {exact32} of 16 hit: use the constants and never compute them anew.",
            "published",
        ),
    )
