"""The 4-bit codebooks of bitsandbytes, byte for byte.

Sources: bitsandbytes 0.50, `functional.get_4bit_type` (levels) and `backends/default/ops.py`
(scaling, thresholds, packing on the CPU).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qtui_core.quant.coding.coder import Coder, Codes, GroupScales, keep_finite
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.grouping import Extent, group_views
from qtui_core.quant.segments.layout import Layout
from qtui_core.quant.segments.parallel import Scratch

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


class CodebookCoder(Coder):
    """Sixteen levels between -1 and 1, times the absmax of a block.

    An element times 1/absmax takes the nearest level, on a tie the LOWER one. Two codes share a
    byte, the first in the high nibble; an odd last one is followed by the code of zero. The scale
    is absmax itself, 0 for a block of zeros.

    As in bitsandbytes on the CPU, a short last block differs in two details: its elements are
    divided by absmax instead of multiplied by 1/absmax, and its stored absmax is at least 1e-38.
    """

    extent = Extent.ABSMAX
    code_dtype = np.dtype(np.uint8)

    def __init__(self, levels: Float32, block: int) -> None:
        self.block = block
        self.smallest_extent = float(SMALLEST_ABSMAX)
        order = np.argsort(levels, kind="stable")
        ascending = levels[order]
        distinct = np.append(True, ascending[1:] != ascending[:-1])
        values = ascending[distinct]
        #: Midpoints of neighbouring levels, computed in float32 as bitsandbytes does.
        self.thresholds: Float32 = (values[:-1] + values[1:]) / np.float32(2)
        ranks = order[distinct].astype(np.uint8)
        self.code_of_rank = None if np.array_equal(ranks, np.arange(16)) else ranks
        self.rank_of_zero = int(np.flatnonzero(values == 0)[0])
        byte = np.arange(256)
        first, second = ranks.take([byte >> 4, byte & 15], mode="clip")
        #: The two codes of a byte with two ranks.
        self.codes_of_ranks = (first << np.uint8(4)) | second
        pairs = np.stack([levels[byte >> 4], levels[byte & 15]], axis=1)
        #: The two levels of a byte as one 8-byte item, for a single look-up.
        self.pair_of_byte = np.ascontiguousarray(pairs, np.float32).view(np.uint64).reshape(-1)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        absmax = extents[0].copy()
        if size % self.block:
            absmax[-1] = max(absmax[-1], SMALLEST_ABSMAX)
        return GroupScales(absmax)

    def code_count(self, elements: int) -> int:
        return (elements + 1) // 2

    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        # The magnitudes are no longer needed; one large buffer less leaves more in the cache.
        scaled = scratch.take("magnitude", x.size, np.float32)
        absmax = np.maximum(scales.scale, SMALLEST_ABSMAX)
        for (view, out), (divisor,) in group_views(layout, (x, scaled), (absmax,)):
            if view.shape[-1] < self.block:
                np.divide(view, divisor, out=out)
            else:
                np.multiply(view, np.float32(1) / divisor, out=out)
        ranks = scratch.take("ranks", x.size + x.size % 2, np.uint8)
        above = scratch.take("above", x.size, np.bool_)
        counted, one = ranks[: x.size], above.view(np.uint8)
        # What happens between two calls of numpy keeps the other thread waiting: no view is made
        # and no number converted there.
        lowest, *others = map(np.asarray, self.thresholds)
        np.greater(scaled, lowest, counted.view(np.bool_))
        for threshold in others:
            np.greater(scaled, threshold, above)
            np.add(counted, one, counted)
        ranks[x.size :] = self.rank_of_zero
        pack_nibbles(ranks, codes)
        if self.code_of_rank is not None:
            np.take(self.codes_of_ranks, codes, out=codes, mode="clip")

    def decode(
        self, layout: Layout, codes: Codes, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        if out.size % 2 == 0 and out.ctypes.data % 8 == 0:
            np.take(self.pair_of_byte, codes, out=out.view(np.uint64), mode="clip")
        else:
            pairs = scratch.take("pairs", codes.size, np.uint64)
            np.take(self.pair_of_byte, codes, out=pairs, mode="clip")
            out[...] = pairs.view(np.float32)[: out.size]
        for (view,), (scale,) in group_views(layout, (out,), (scales.scale,)):
            np.multiply(view, scale, out=view)
        keep_finite(out, scales)


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
