"""How each family of formats turns elements into codes, and back: integers, floats with a scale,
casts, ternary weights and the 4-bit codebooks.

Integers: q = round(x / scale) + zero point, as in torchao and GGUF's Q4_0. Ternary weights: Ma et
al. 2024, arXiv:2402.17764, equations 1 to 3, and the function `weight_quant` that the authors
published ("The Era of 1-bit LLMs: Training Tips, Code and FAQ"), which is
`integrations.bitnet.WeightQuant` in transformers.

Blocks of small elements under an 8-bit scale: OCP Microscaling Formats (MX) Specification 1.0,
sections 5 and 6.3; for NVFP4 (E2M1 elements, an E4M3 scale for each 16 of them, and one scale for
the tensor) `nvfp4_quantize` of torchao 0.18 (`prototype/mx_formats/nvfp4_tensor.py`), whose float32
operations are repeated one by one, so that codes and scales have the same bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.formats import E2M1, E4M3, FloatFormat, float_format, get_format
from qtui_core.quant.codebook import LEVELS, SMALLEST_ABSMAX
from qtui_core.quant.layout import Extent, Float32
from qtui_core.quant.levels import E8M0_BIAS, integer_range, power_of_two, scale_codes
from qtui_core.quant.narrow import FixedPoint, NarrowFloat, NumberFormat, WideFloat
from qtui_core.quant.rounding import Words, to_integers
from qtui_core.schemes.granularity import PerBlock
from qtui_core.schemes.scheme import Family, Scheme

Codes = npt.NDArray[Any]

#: Smallest normal float32. Scales are at least this, as in torchao, so that their reciprocal is
#: finite; groups with smaller values still become zeros.
SMALLEST_NORMAL = np.float32(2.0**-126)
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class GroupScales:
    """The scales of groups.

    Attributes:
        scale: float32 `[groups]`, the factor of the levels.
        zero_point: `[groups]`, uint8, or float32 in the tensor's unit; None without zero points.
        code: uint8 `[groups]`, the stored code of a scale that is a small float; else None.
        inverse: float32 `[groups]`, the factor of the elements; None where they are divided by the
            scale, and where the scales were read from a stored tensor.
    """

    scale: Float32
    zero_point: Any = None
    code: Any = None
    inverse: Any = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All of them, as the class takes them; None if there are no scales."""
        if not self.scale.size:
            return None, None, None, None
        return self.scale, self.zero_point, self.code, self.inverse


NO_SCALES = GroupScales(np.empty(0, np.float32))


class Coder(ABC):
    """Turns elements into codes and back, given the scales of their groups.

    Elements `x` are finite float32 of any shape: the caller replaces NaN by 0 and infinities by the
    largest float32 with their sign, and overwrites the codes if the format has codes for them. The
    arrays of `scales` broadcast with them, and `noise` are their random words, None for rounding to
    nearest.
    """

    extent: ClassVar[Extent | None]
    code_dtype: np.dtype[Any]
    nan_code: int | None = None
    zero_code: int = 0
    #: Codes of +inf and -inf.
    infinity_codes: tuple[int, int] | None = None
    #: Largest finite value of the format before scaling.
    largest: float = LARGEST
    #: Smallest normal number of a float format before scaling.
    smallest_normal: np.float32 = SMALLEST_NORMAL
    #: A group with a smaller extent gets the scale for this extent, or becomes zeros.
    smallest_extent: float = 0.0
    #: The format in which scales are stored; None for float32.
    scale_format: ClassVar[str | None] = None
    #: The scale of the tensor, a factor of the scales of all groups; None if there is none.
    tensor_scale: float | None = None

    @abstractmethod
    def scales(self, extents: Float32, size: int) -> GroupScales:
        """The scales of groups with `extents` float32 `[extent.width, groups]` and `size` elements
        in all. Only extents are passed, never elements, so a rule that needs the elements (such as
        the least squared error) needs its own `Extent`."""

    @abstractmethod
    def encode(self, x: Float32, scales: GroupScales, noise: Words | None) -> Codes:
        """The code of each element."""

    @abstractmethod
    def round(self, x: Float32, scales: GroupScales, noise: Words | None) -> Float32:
        """What `numbers` gives for those codes, without them."""

    @abstractmethod
    def numbers(self, codes: Codes, out: Float32) -> None:
        """Writes the number that each code stands for, before scales and zero points, to `out`."""

    def multiply(self, numbers: Float32, scales: GroupScales) -> None:
        """Turns numbers into values under their scales, in place."""
        numbers *= scales.scale


class IntegerCoder(Coder):
    """Codes are whole numbers."""

    code_dtype: np.dtype[Any] = np.dtype(np.int8)

    def encode(self, x: Float32, scales: GroupScales, noise: Words | None) -> Codes:
        return self.round(x, scales, noise).astype(self.code_dtype)

    def numbers(self, codes: Codes, out: Float32) -> None:
        np.copyto(out, codes)


class _CenteredCoder(IntegerCoder):
    """Codes from `lowest` to `highest` without a zero point."""

    lowest: int
    highest: int

    def round(self, x: Float32, scales: GroupScales, noise: Words | None) -> Float32:
        steps = to_integers(x * scales.inverse, noise)
        return np.clip(steps, self.lowest, self.highest, out=steps)


class SymmetricCoder(_CenteredCoder):
    """Signed codes without a zero point: x / scale rounded, by default half to even. The scale is
    absmax over the `steps` of the rule's `integer_range`. x is multiplied by 1/scale, as in
    torchao.

    Rule "absmax": scale = absmax / (2^(b-1) - 1), codes +-(2^(b-1) - 1); torchao with that
    quant_min and quant_max. Rule "full": scale = absmax / ((2^b - 1) / 2), all 2^b codes;
    torchao's MappingType.SYMMETRIC.

    With `from_extent`, x is multiplied by (2^(b-1) - 1) (1 / absmax) instead of the reciprocal of
    the scale, which may differ in the last bit. LLM.int8() in bitsandbytes does so, because torch
    divides a number by a tensor in this way.
    """

    extent = Extent.ABSMAX

    def __init__(self, bits: int, rule: str, from_extent: bool = False) -> None:
        self.from_extent = from_extent
        codes = integer_range(rule, bits)
        self.lowest, self.highest = codes.lowest, codes.highest
        self.half_range = np.float32(codes.steps)
        self.smallest_extent = float(self.half_range * SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = np.maximum(extents[0] / self.half_range, SMALLEST_NORMAL)
        if not self.from_extent:
            return GroupScales(scale, inverse=np.float32(1) / scale)
        extent = np.maximum(extents[0], self.smallest_extent)
        return GroupScales(scale, inverse=self.half_range * (np.float32(1) / extent))


SMALLEST_SCALE = np.float32(1e-5)


class TernaryCoder(_CenteredCoder):
    """Codes -1, 0 and 1: scale = mean magnitude of the finite elements, at least 1e-5;
    q = round(x * (1/scale)), half to even, clipped. The published function stores the float32
    reciprocal of the scale; here the value of a code is the scale itself, which can differ from
    `1 / (1/scale)` in the last bit.

    A code takes 2 bits, four in a byte. Three values need only log2(3) = 1.58 bits, which five
    codes in a byte would come close to.
    """

    extent = Extent.ABS_MEAN
    smallest_extent = float(SMALLEST_SCALE)
    lowest, highest = -1, 1

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = np.maximum(extents[0], SMALLEST_SCALE)
        return GroupScales(scale, inverse=np.float32(1) / scale)


class SignedCoder(IntegerCoder):
    """GGUF's Q4_0 rule for any width: scale = m / -2^(b-1), where m is the first element with the
    largest magnitude, so that m has exactly the lowest code. Codes are
    trunc(x / scale + 2^(b-1) + 1/2) - 2^(b-1): ties go up, as in GGUF. The scale may be negative,
    is float32 (Q4_0 stores float16), and is 0 for a group of zeros.
    """

    extent = Extent.SIGNED

    def __init__(self, bits: int) -> None:
        self.half = 2 ** (bits - 1)
        self.smallest_extent = float(self.half * SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = extents[0] / np.float32(-self.half)
        zero = np.abs(scale) < SMALLEST_NORMAL
        inverse = np.float32(1) / np.where(zero, np.float32(np.inf), scale)
        return GroupScales(np.where(zero, np.float32(0), scale), inverse=inverse)

    def round(self, x: Float32, scales: GroupScales, noise: Words | None) -> Float32:
        steps = x * scales.inverse + np.float32(self.half + 0.5)
        np.clip(steps, 0, 2 * self.half - 1, out=steps)
        return np.floor(steps, out=steps) - np.float32(self.half)


class _RangeCoder(IntegerCoder):
    """Codes 0 to 2^b - 1 over the range of a group: scale = (max - min) / (2^b - 1)."""

    code_dtype = np.dtype(np.uint8)

    def __init__(self, bits: int) -> None:
        self.highest = 2**bits - 1
        self.middle = np.float32(2 ** (bits - 1))
        self.smallest_extent = float(self.highest * SMALLEST_NORMAL)

    def _steps(self, low: Float32, high: Float32) -> Float32:
        """The scales `[groups]` that cut the ranges from `low` to `high` into the codes."""
        steps = np.float32(self.highest)
        scale = (high - low) / steps
        # A range wider than float32 can hold is divided before it is subtracted.
        scale = np.where(np.isfinite(scale), scale, high / steps - low / steps)
        return np.maximum(scale, SMALLEST_NORMAL).astype(np.float32)


class AsymmetricCoder(_RangeCoder):
    """The range is extended to include 0: zero point = round(-min / scale),
    q = round(x * (1/scale)) + zero point. Rounding is by default half to even. torchao's
    MappingType.ASYMMETRIC."""

    extent = Extent.MIN_MAX

    def scales(self, extents: Float32, size: int) -> GroupScales:
        low, high = np.minimum(extents[0], 0), np.maximum(extents[1], 0)
        scale = self._steps(low, high)
        zero_point = np.clip(-np.rint(low / scale), 0, self.highest)
        return GroupScales(scale, zero_point.astype(np.uint8), inverse=np.float32(1) / scale)

    def round(self, x: Float32, scales: GroupScales, noise: Words | None) -> Float32:
        steps = to_integers(x * scales.inverse, noise)
        steps += scales.zero_point
        return np.clip(steps, 0, self.highest, out=steps)

    def multiply(self, numbers: Float32, scales: GroupScales) -> None:
        numbers -= scales.zero_point
        numbers *= scales.scale


class FloatZeroCoder(_RangeCoder):
    """The range need not include 0. The zero point is the value of code 2^(b-1) in the tensor's
    unit: min + scale 2^(b-1). q = round((x - (zero point - scale 2^(b-1))) / scale), by default
    half to even; the value of q is (q - 2^(b-1)) scale + zero point. torchao's tinygemm convention
    (`_choose_qparams_affine_tinygemm` and related functions), in float32 throughout.

    Where a step of these overflows although the result does not, it is taken in another order.
    """

    extent = Extent.RANGE

    def scales(self, extents: Float32, size: int) -> GroupScales:
        low, high = extents
        scale = self._steps(low, high)
        zero_point = low + scale * self.middle
        half = np.float32(0.5)
        wide = np.float32(2) * (half * low + scale * (half * self.middle))
        return GroupScales(scale, np.where(np.isfinite(zero_point), zero_point, wide))

    def round(self, x: Float32, scales: GroupScales, noise: Words | None) -> Float32:
        scale, zero_point = scales.scale, scales.zero_point
        low = zero_point - scale * self.middle
        steps = (x - low) / scale
        wide = ~np.isfinite(scale * np.float32(self.highest)) | ~np.isfinite(low)
        if wide.any():
            steps = np.where(wide, x / scale - (zero_point / scale - self.middle), steps)
        return to_integers(np.clip(steps, 0, self.highest), noise)

    def multiply(self, numbers: Float32, scales: GroupScales) -> None:
        wide = ~np.isfinite(scales.scale * self.middle)
        half = np.where(wide, np.float32(0.5), np.float32(1))
        numbers -= self.middle
        numbers *= scales.scale * half
        numbers += scales.zero_point * half
        if wide.any():
            numbers /= half


class NumberCoder(Coder):
    """Elements over a scale, rounded to a number format. Subclasses differ in their scales."""

    def __init__(self, numbers: NumberFormat) -> None:
        self.format = numbers
        self.largest, self.smallest_normal = float(numbers.largest), numbers.smallest_normal
        self.code_dtype = numbers.code_dtype
        self.nan_code, self.infinity_codes = numbers.nan_code, numbers.infinity_codes

    def _scaled(self, x: Float32, scales: GroupScales) -> Float32:
        scaled: Float32 = x * scales.inverse
        return scaled

    def encode(self, x: Float32, scales: GroupScales, noise: Words | None) -> Codes:
        return self.format.codes(self._scaled(x, scales), noise)

    def round(self, x: Float32, scales: GroupScales, noise: Words | None) -> Float32:
        return self.format.round(self._scaled(x, scales), noise)

    def numbers(self, codes: Codes, out: Float32) -> None:
        self.format.numbers(codes, out)


class ScaledFloatCoder(NumberCoder):
    """A small float with a scale: scale = absmax / largest number, and x / scale is rounded, by
    default to nearest even. As in torchao, x is divided by the scale, not multiplied by its
    reciprocal."""

    extent = Extent.ABSMAX

    def __init__(self, fmt: FloatFormat) -> None:
        super().__init__(NarrowFloat(fmt))
        self.smallest_extent = self.largest * float(SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = extents[0] / np.float32(self.largest)
        return GroupScales(np.maximum(scale, SMALLEST_NORMAL))

    def _scaled(self, x: Float32, scales: GroupScales) -> Float32:
        return x / scales.scale


class CastCoder(NumberCoder):
    """A format without a scale. Values beyond the largest number become that number."""

    extent = None

    def __init__(self, fmt: FloatFormat) -> None:
        super().__init__(NarrowFloat(fmt) if fmt.exponent_bits < 8 else WideFloat(fmt))

    def scales(self, extents: Float32, size: int) -> GroupScales:
        return NO_SCALES

    def _scaled(self, x: Float32, scales: GroupScales) -> Float32:
        return x

    def multiply(self, numbers: Float32, scales: GroupScales) -> None:
        pass


class CodebookCoder(Coder):
    """Sixteen levels between -1 and 1, times the absmax of a block.

    An element times 1/absmax takes the nearest level, on a tie the LOWER one. Two codes share a
    byte, the first in the high nibble; an odd last one is followed by the code of zero. The scale
    is absmax itself, 0 for a block of zeros.

    As in bitsandbytes on the CPU, a short last block differs in two details: its elements are
    divided by absmax instead of multiplied by 1/absmax (its inverse is NaN here), and its stored
    absmax is at least 1e-38.
    """

    extent = Extent.ABSMAX
    code_dtype = np.dtype(np.uint8)
    smallest_extent = float(SMALLEST_ABSMAX)

    def __init__(self, levels: Float32, block: int) -> None:
        self.block = block
        order = np.argsort(levels, kind="stable")
        ascending = levels[order]
        distinct = np.append(True, ascending[1:] != ascending[:-1])
        values = ascending[distinct]
        #: Midpoints of neighbouring levels, computed in float32 as bitsandbytes does.
        self.thresholds: Float32 = (values[:-1] + values[1:]) / np.float32(2)
        ranks = order[distinct].astype(np.uint8)
        self.code_of_rank = None if np.array_equal(ranks, np.arange(16)) else ranks
        self.level_of_rank = levels[ranks]
        self.zero_code = int(order[distinct][values == 0][0])
        byte = np.arange(256)
        pairs = np.stack([levels[byte >> 4], levels[byte & 15]], axis=1)
        #: The two levels of a byte as one 8-byte item, for a single look-up.
        self.pair_of_byte = np.ascontiguousarray(pairs, np.float32).view(np.uint64).reshape(-1)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        absmax = extents[0].copy()
        inverse = np.float32(1) / np.maximum(absmax, SMALLEST_ABSMAX)
        if size % self.block:
            absmax[-1] = max(absmax[-1], SMALLEST_ABSMAX)
            inverse[-1] = np.nan
        return GroupScales(absmax, inverse=inverse)

    def _ranks(self, x: Float32, scales: GroupScales) -> npt.NDArray[np.uint8]:
        divided = np.isnan(scales.inverse[-1, -1])
        scaled = x / scales.scale if divided else x * scales.inverse
        lowest, *others = map(np.asarray, self.thresholds)
        ranks = np.greater(scaled, lowest).view(np.uint8)
        above = np.empty(scaled.shape, np.bool_)
        counted = above.view(np.uint8)
        for threshold in others:
            np.greater(scaled, threshold, above)
            np.add(ranks, counted, ranks)
        return ranks

    def encode(self, x: Float32, scales: GroupScales, noise: Words | None) -> Codes:
        ranks = self._ranks(x, scales)
        return ranks if self.code_of_rank is None else self.code_of_rank[ranks]

    def round(self, x: Float32, scales: GroupScales, noise: Words | None) -> Float32:
        levels: Float32 = self.level_of_rank.take(self._ranks(x, scales), mode="clip")
        return levels

    def numbers(self, codes: Codes, out: Float32) -> None:
        """Of packed codes, two in a byte."""
        if out.size % 2 == 0 and out.ctypes.data % 8 == 0:
            np.take(self.pair_of_byte, codes, out=out.view(np.uint64), mode="clip")
        else:
            out[...] = self.pair_of_byte[codes].view(np.float32)[: out.size]


class MicroscalingCoder(NumberCoder):
    """Blocks of 32 elements of a row under a scale 2^k, k from -127 to 127, which is stored as the
    code k + 127 (E8M0). An element is x / 2^k, which is exact, rounded to the element format (to
    nearest even unless the scheme says otherwise) and at most its largest number. The last block of
    a row may be short; torchao refuses such rows.

    The exponent is read from the bits of absmax, not computed as a floating-point logarithm, which
    is wrong beside powers of two. `rceil` gives the result of NVIDIA's instruction
    `cvt.rp.satfinite.ue8m0x2`. A block of zeros has code 0.

    If a block is so small that its code is 0, it is rounded here with the scale that it is read
    with, 2^-127. torchao rounds it with 2^-126 (with 1 under `rceil`) and reads it with 2^-127, so
    that it comes back at half its size, or as zeros. NaN and infinities do not count for the scale,
    as everywhere in this library; in torchao and in the specification they make the whole block
    NaN.

    MXINT8 has steps of 1/64 up to 1.984375 = 127/64. The code of -2 is not used, so that levels are
    symmetric; the specification permits this, and its authors' emulation does the same.
    """

    extent = Extent.ABSMAX
    scale_format = "e8m0"

    def __init__(self, element: str, rule: str) -> None:
        fmt = get_format(element)
        super().__init__(NarrowFloat(fmt) if isinstance(fmt, FloatFormat) else FixedPoint())
        self.rule = rule
        self.smallest_extent = float(self.format.largest) * 2.0**-E8M0_BIAS

    def scales(self, extents: Float32, size: int) -> GroupScales:
        largest, mantissa_bits = self.format.largest, self.format.mantissa_bits
        code = scale_codes(extents[0], self.rule, largest, mantissa_bits)
        scale = power_of_two(code)
        # The reciprocal of a power of two is a power of two, possibly a subnormal number.
        return GroupScales(scale, code=code, inverse=np.float32(1) / scale)


LARGEST_ELEMENT = np.float32(float(E2M1.max))
#: 448, the largest scale of a block in NVFP4.
LARGEST_BLOCK_SCALE = np.float32(float(E4M3.max))
#: torchao keeps scales of blocks among the normal numbers of E4M3.
SMALLEST_BLOCK_SCALE = np.float32(float(E4M3.min_normal))
#: The absmax of the tensor divided by its scale: 6 x 448.
TENSOR_STEPS = LARGEST_ELEMENT * LARGEST_BLOCK_SCALE
#: The reciprocal of this scale times the smallest scale of a block is still a float32.
SMALLEST_TENSOR_SCALE = np.float32(2.0**-120)


class TwoLevelCoder(NumberCoder):
    """The coder of NVFP4, which has a scale of the tensor, t, and a scale of each block, s.

    t = absmax / 2688, so that the block with the largest element has the scale 448. s = absmax of
    the block / 6 / t, rounded to nearest even in E4M3, from 2^-6 to 448. An element is x times ((1
    / t) / s), rounded to nearest even unless the scheme says otherwise, at most 6 in magnitude. It
    is read back as the E2M1 number times (t s). The last block of a row may be short; torchao
    refuses such rows.

    If a tensor is all zeros, or so small that 1 / t would overflow, t is 2^-120; torchao then has
    NaN scales. NaN and infinities do not count for either scale.

    compressed-tensors 0.20 stores 2688 / absmax instead of t, multiplies absmax / 6 by it, allows
    subnormal scales of blocks (a scale of 0 becomes 2^-3), and divides elements by the scale
    instead of multiplying by its reciprocal. So a few codes beside ties differ.
    """

    extent = Extent.ABSMAX
    scale_format = "e4m3"

    def __init__(self, tensor_absmax: float = float(TENSOR_STEPS)):
        super().__init__(NarrowFloat(E2M1))
        scale = np.float32(tensor_absmax) / TENSOR_STEPS
        self.tensor = max(scale, SMALLEST_TENSOR_SCALE)
        self.tensor_scale = float(self.tensor)
        self.blocks = NarrowFloat(E4M3)
        self.smallest_extent = float(TENSOR_STEPS * SMALLEST_TENSOR_SCALE)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = extents[0] / LARGEST_ELEMENT / self.tensor
        scale = np.clip(scale, SMALLEST_BLOCK_SCALE, LARGEST_BLOCK_SCALE).astype(np.float32)
        code = self.blocks.codes(scale, None)
        block = np.empty(code.shape, np.float32)
        self.blocks.numbers(code, block)
        return GroupScales(
            self.tensor * block, code=code, inverse=np.float32(1) / self.tensor / block
        )


@lru_cache(maxsize=256)
def make_coder(scheme: Scheme) -> Coder:
    """The coder of a scheme's format and scale rule. Coders hold tables and no state."""
    match scheme.family:
        case Family.CODEBOOK:
            assert isinstance(scheme.granularity, PerBlock)
            return CodebookCoder(LEVELS[scheme.format], scheme.granularity.size)
        case Family.INTEGER:
            if scheme.float_zero_point:
                return FloatZeroCoder(scheme.bits)
            if not scheme.symmetric:
                return AsymmetricCoder(scheme.bits)
            if scheme.scale_rule == "signed":
                return SignedCoder(scheme.bits)
            decomposed = scheme.outlier_threshold is not None and scheme.scale_rule == "absmax"
            return SymmetricCoder(scheme.bits, scheme.scale_rule, decomposed)
        case Family.MICROSCALING:
            assert scheme.element is not None
            return MicroscalingCoder(scheme.element, scheme.scale_rule)
        case Family.TWO_LEVEL:
            return TwoLevelCoder()
        case Family.TERNARY:
            return TernaryCoder()
    fmt = float_format(scheme.format)
    return CastCoder(fmt) if scheme.family is Family.CAST else ScaledFloatCoder(fmt)
