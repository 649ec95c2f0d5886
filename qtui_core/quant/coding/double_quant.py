"""Double quantization: the absmax of each block is itself stored in 8 bits.

As in bitsandbytes (QLoRA): offset = mean(absmax); absmax - offset is quantized in blocks (of 256
there) with the signed 8-bit dynamic map. A code is that of the NEAREST entry of the map, on a tie
the lower one, as in its CUDA kernel. Its CPU kernel uses a uniform table of 65,536 entries and
misses the nearest entry for some values, so codes can differ from it by one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.coding.coder import LARGEST
from qtui_core.quant.segments.elements import Float32
from qtui_core.schemes.scheme import NESTED_BLOCK


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
        return np.clip(scale, -LARGEST, LARGEST)


@cache
def dynamic_map() -> Float32:
    """The signed 8-bit dynamic map, 256 ascending values in (-1, 1].

    For each decade 10^0 … 10^-6 the midpoints of equal steps between 0.1 and 1, 64 of them
    in the highest decade and half as many in each one below, with both signs; then 0 and 1.
    Dettmers 2015, arXiv:1511.04561; bitsandbytes `functional.create_dynamic_map`.
    """
    values = [np.float32(0), np.float32(1)]
    for power in range(7):
        edges = _linspace(2**power + 1)
        middles = (edges[:-1] + edges[1:]) / np.float32(2)
        decade = np.float32(10.0 ** (power - 6)) * middles
        values += [*decade, *-decade]
    table = np.sort(np.array(values, np.float32))
    table.flags.writeable = False
    return table


def _linspace(count: int) -> Float32:
    """`count` float32 values from 0.1 to 1 as torch.linspace computes them: multiples of a float32
    step, added to the nearer end with one rounding (a fused multiply-add, here in float64)."""
    start, end = np.float32(0.1), np.float32(1)
    step = np.float64((end - start) / np.float32(count - 1))
    index = np.arange(count)
    up, down = start + step * index, end - step * (count - 1 - index)
    return np.where(index < count // 2, up, down).astype(np.float32)


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
