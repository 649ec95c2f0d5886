"""The 4-bit codebooks of bitsandbytes, byte for byte, how NF4's levels are constructed, and the
8-bit scales of double quantization.

Sources: bitsandbytes 0.50, `functional.get_4bit_type` (levels), `functional.create_normal_map`
(their construction) and `backends/default/ops.py` (scaling, thresholds, packing on the CPU).
Dettmers et al. 2023 (QLoRA), appendix E: levels are quantiles of a normal distribution, so that
each code would be used about equally often.

Double quantization: offset = mean(absmax); absmax - offset is quantized in blocks (of 256 in
bitsandbytes) with the signed 8-bit dynamic map. A code is that of the NEAREST entry of the map, on
a tie the lower one, as in its CUDA kernel. Its CPU kernel uses a uniform table of 65,536 entries
and misses the nearest entry for some values, so codes can differ from it by one."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from qtui_core.answers import NF4Construction, NF4Level, NF4Step
from qtui_core.dataclass import dataclass
from qtui_core.quant.layout import Float32
from qtui_core.schemes.scheme import NESTED_BLOCK

#: NormalFloat4, Dettmers et al. 2023 (QLoRA), appendix E. These are the published float32
#: constants: computing them from normal quantiles gives other last bits.
NF4_LEVELS = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)
#: bitsandbytes' own FP4 in the order of its codes: bit 3 is the sign. Not OCP E2M1.
FP4_LEVELS = np.array(
    [0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0, -0.0625, -8, -12, -4, -6, -2, -3], np.float32
) / np.float32(12)

LEVELS = {"nf4": NF4_LEVELS, "fp4": FP4_LEVELS}

#: bitsandbytes divides by at least this, so that a block of zeros gives zeros.
SMALLEST_ABSMAX = np.float32(1e-38)


def pack_nibbles(codes: npt.NDArray[np.uint8], packed: npt.NDArray[np.uint8]) -> None:
    """Writes two codes to each byte of `packed` uint8 `[n / 2]`, the first in the high nibble.
    `codes` uint8 `[n]` has an even length and is overwritten."""
    words = codes.view("<u2")
    # The first code is the low byte of a word. The product has it in the high nibble of the high
    # byte too, beside the second code.
    words *= np.uint16(1 + (1 << 12))
    np.right_shift(words, 8, out=packed, casting="unsafe")


def unpack_nibbles(packed: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.uint8]:
    """The first `count` codes, uint8 `[count]`, of bytes from `pack_nibbles`."""
    codes = np.empty(2 * packed.size, np.uint8)
    np.right_shift(packed.reshape(-1), 4, out=codes[::2])
    np.bitwise_and(packed.reshape(-1), 15, out=codes[1::2])
    return codes[:count]


#: The probability of the outermost quantile, 1 - (1/32 + 1/30) / 2 truncated to seven places: half
#: way between the centre of the last of 16 equal shares and the centre of the last of 15.
OFFSET = 0.9677083
POSITIVE, NEGATIVE = 8, 7


def construct_nf4() -> NF4Construction:
    """NF4 from normal quantiles."""
    positive = np.linspace(OFFSET, 0.5, POSITIVE + 1)[:-1]
    negative = np.linspace(OFFSET, 0.5, NEGATIVE + 1)[:-1]
    quantile_of = NormalDist().inv_cdf
    above = [(float(p), quantile_of(float(p))) for p in positive]
    below = [(1 - float(p), -quantile_of(float(p))) for p in negative]
    ascending: list[tuple[float | None, float]] = [*below, (None, 0.0), *reversed(above)]
    largest = ascending[-1][1]
    derived = np.array([quantile / largest for _, quantile in ascending])
    ulps = _ulps(derived.astype(np.float32))
    levels = tuple(
        NF4Level(
            code,
            probability,
            quantile,
            float(derived[code]),
            float(NF4_LEVELS[code]),
            int(ulps[code]),
        )
        for code, (probability, quantile) in enumerate(ascending)
    )
    return NF4Construction(OFFSET, levels, _steps(levels, largest))


def _ulps(levels: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The distance of each level from the published one, counted in float32 numbers; negative if
    it is below."""

    def ordered(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        words = np.where(values == 0, np.float32(0), values).view(np.int32).astype(np.int64)
        return np.where(words < 0, -(words & 0x7FFF_FFFF), words)

    return ordered(levels) - ordered(NF4_LEVELS)


def _linspace(start: float, end: float, count: int) -> Float32:
    """`count` float32 values from `start` to `end` as torch.linspace computes them: multiples of a
    float32 step, added to the nearer end with one rounding (a fused multiply-add, here in
    float64)."""
    first, last = np.float32(start), np.float32(end)
    step = np.float64((last - first) / np.float32(count - 1))
    index = np.arange(count)
    up, down = first + step * index, last - step * (count - 1 - index)
    return np.where(index < count // 2, up, down).astype(np.float32)


def _steps(levels: tuple[NF4Level, ...], largest: float) -> tuple[NF4Step, ...]:
    exact = sum(level.ulps == 0 for level in levels)
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
            f"others miss by up to {furthest} float32 steps, as those were made in float32 "
            f"throughout: use the constants and never compute them anew.",
            "published",
        ),
    )


@dataclass(frozen=True)
class NestedScales:
    """The stored scales of n blocks: `codes` uint8 `[n]`, constants `absmax` float32
    `[ceil(n / block)]`, and one float32 `offset`. `block` scales share a constant."""

    codes: npt.NDArray[np.uint8]
    absmax: Float32
    offset: float
    block: int = NESTED_BLOCK

    def dequantize(self) -> Float32:
        """The scales the codes stand for, float32 `[n]`."""
        constant = np.repeat(self.absmax, self.block)[: self.codes.size]
        with np.errstate(over="ignore"):
            scale = dynamic_map()[self.codes] * constant + np.float32(self.offset)
        # Near the largest float32 a scale could round to infinity, and zeros would become NaN.
        largest = np.finfo(np.float32).max
        return np.clip(scale, -largest, largest)


@cache
def dynamic_map() -> Float32:
    """The signed 8-bit dynamic map, 256 ascending values in (-1, 1].

    For each decade 10^0 … 10^-6 the midpoints of equal steps between 0.1 and 1, 64 of them
    in the highest decade and half as many in each one below, with both signs; then 0 and 1.
    Dettmers 2015, arXiv:1511.04561; bitsandbytes `functional.create_dynamic_map`.
    """
    values = [np.float32(0), np.float32(1)]
    for power in range(7):
        edges = _linspace(0.1, 1, 2**power + 1)
        middles = (edges[:-1] + edges[1:]) / np.float32(2)
        decade = np.float32(10.0 ** (power - 6)) * middles
        values += [*decade, *-decade]
    table = np.sort(np.array(values, np.float32))
    table.flags.writeable = False
    return table


@cache
def _thresholds() -> Float32:
    table = dynamic_map()
    return (table[:-1] + table[1:]) / np.float32(2)


def quantize_scales(absmax: Float32, offset: float, block: int = NESTED_BLOCK) -> NestedScales:
    """The nested codes of `absmax` float32 `[n]`. A nested block begins at the first element."""
    deviation = absmax - np.float32(offset)
    nested = -(-deviation.size // block)
    padded = np.zeros(nested * block, np.float32)
    padded[: deviation.size] = deviation
    largest = np.abs(padded.reshape(nested, block)).max(axis=1, initial=0)
    divisor = np.repeat(np.where(largest > 0, largest, np.float32(1)), block)
    scaled = deviation * (np.float32(1) / divisor[: deviation.size])
    return NestedScales(nearest_codes(scaled), largest, offset, block)


def nearest_codes(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """The codes of the nearest entries of the dynamic map; of two equally near, the lower."""
    return np.searchsorted(_thresholds(), values, side="left").astype(np.uint8)
