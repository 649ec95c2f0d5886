"""The scale that each scale rule computes from the largest element of a group, the values that the
group can then represent, and the codes of a scheme: bit pattern, level, and whether any element can
get it.

The numbers of a rule of `SCALE_RULES` are defined only here: for integers the codes and steps
(`integer_range`), for power-of-two scales the code of a float32 absmax (`scale_codes`). Source of
the rules for powers of two: torchao's `to_mx` (torchao 0.18, `prototype/mx_formats/mx_tensor.py`).
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.formats import FloatFormat, Format, decode, get_format
from qtui_core.quant.codebook import LEVELS
from qtui_core.quant.layout import Float32, Float64, Int64
from qtui_core.schemes.scheme import Family, Scheme, check_countable

FLOAT32_MANTISSA = 23
FLOAT32_BIAS = 127
#: The E8M0 code of 1, and the largest code that is a number: 2^127. 255 is NaN.
E8M0_BIAS = 127
E8M0_LARGEST = 254


@dataclass(frozen=True)
class IntegerRange:
    """Codes `lowest` to `highest` of symmetric integers. The scale of a group is its extent over
    `steps`. The extent is the absmax; if `steps` is negative, the extreme element with its sign."""

    lowest: int
    highest: int
    steps: float


def integer_range(rule: str, bits: int) -> IntegerRange:
    """The codes of symmetric integers of `bits` bits under a rule."""
    half = 2 ** (bits - 1)
    lowest, steps = {"absmax": (1 - half, half - 1), "full": (-half, half - 0.5)}.get(
        rule, (-half, -half)
    )
    return IntegerRange(lowest, half - 1, steps)


def scale_codes(
    absmax: Float32, rule: str, largest: np.float32, mantissa_bits: int
) -> npt.NDArray[np.uint8]:
    """The E8M0 codes, uint8 `[blocks]`, of blocks with these `absmax`, finite float32 `[blocks]`.
    `largest` is the largest number of the element format, and `mantissa_bits` its mantissa bits."""
    if rule == "rceil":
        exponent = _ceil_exponent(_words(absmax / largest))
    else:
        words = _words(absmax)
        match rule:
            case "even":
                # Rounds half away from zero to the element's mantissa; a carry doubles the scale.
                half = 1 << (FLOAT32_MANTISSA - mantissa_bits - 1)
                exponent = _floor_exponent(words + half)
            case "ceil":
                exponent = _ceil_exponent(words)
            case _:
                exponent = _floor_exponent(words)
        exponent -= math.frexp(largest)[1] - 1
    return np.clip(exponent + E8M0_BIAS, 0, E8M0_LARGEST).astype(np.uint8)


def power_of_two(codes: npt.NDArray[np.uint8]) -> Float32:
    """The values of E8M0 codes below 255: 2^(code - 127), float32."""
    return np.ldexp(np.float32(1), codes.astype(np.int32) - E8M0_BIAS).astype(np.float32)


def _words(values: Float32) -> Int64:
    return np.ascontiguousarray(values, np.float32).view(np.int32).astype(np.int64)


def _floor_exponent(words: Int64) -> Int64:
    """floor(log2) of float32 words; -127 for zero and subnormal numbers."""
    return (words >> FLOAT32_MANTISSA) - FLOAT32_BIAS


def _ceil_exponent(words: Int64) -> Int64:
    """ceil(log2) of float32 words; -127 for zero and numbers up to 2^-127."""
    mantissa = words & ((1 << FLOAT32_MANTISSA) - 1)
    subnormal = words < 1 << FLOAT32_MANTISSA
    beyond = mantissa > np.where(subnormal, 1 << (FLOAT32_MANTISSA - 1), 0)
    return _floor_exponent(words) + beyond


def levels_at_scale(scheme: Scheme, scale: float, zero_point: float | None = None) -> Float64:
    """The values that a group with this stored scale (and zero point) represents, float64,
    ascending; empty for a cast."""
    if scheme.family is Family.CAST:
        return np.empty(0)
    if zero_point is not None:
        steps = np.arange(2**scheme.bits, dtype=np.float64)
        if scheme.float_zero_point:
            return (steps - 2 ** (scheme.bits - 1)) * scale + zero_point
        return (steps - zero_point) * scale
    return np.sort(plain_levels(scheme) * scale)


@cache
def plain_levels(scheme: Scheme) -> Float64:
    """Levels of a symmetric scheme before the scale, float64, ascending, zero once."""
    alphabet = alphabet_of(scheme)
    return _frozen(np.unique(alphabet.values[alphabet.reachable]))


@cache
def element_values(fmt: Format) -> Float64:
    """The value of each code of a format of at most 8 bits, float64 `[2^bits]`, with NaN and
    infinities. The code of -2 in MXINT8, which quantization does not use, is NaN here."""
    values = np.array([decode(fmt, code).to_float() for code in range(fmt.code_count)])
    if not isinstance(fmt, FloatFormat):
        values[fmt.sign_bit] = np.nan
    return _frozen(values)


def _frozen(values: Float64) -> Float64:
    values.flags.writeable = False
    return values


@dataclass(frozen=True, eq=False)
class Alphabet:
    """The codes of a format in ascending order of what they stand for, -0 before +0.

    Attributes:
        codes: int64 `[K]`, bit patterns; integers in two's complement.
        values: float64 `[K]`, in units of the stored scale. NaN and infinities where a pattern
            stands for these.
        reachable: bool `[K]`, False for a pattern that no finite element gets: the lowest code of a
            restricted integer, the second zero of bitsandbytes' FP4, NaN, infinity.
        top: the extent of a group in units of the stored scale; negative for the rule "signed",
            whose scale has the opposite sign of the extreme element.
    """

    codes: npt.NDArray[np.int64]
    values: Float64
    reachable: npt.NDArray[np.bool_]
    top: float

    @property
    def levels(self) -> Float64:
        """float64 `[K]`, in units of the extent of a group: of its absmax, or for asymmetric
        integers -1 for the low end of the range and 1 for the high end."""
        return np.where(self.values == 0, self.values, self.values / self.top)  # a signed zero


@lru_cache(maxsize=64)
def alphabet_of(scheme: Scheme) -> Alphabet:
    """The codes of a scheme.

    Raises UsageError for a format of more than 8 bits.
    """
    check_countable(scheme)
    patterns = np.arange(2**scheme.bits)
    match scheme.family:
        case Family.CODEBOOK:
            values, top = LEVELS[scheme.format].astype(np.float64), 1.0
            # Two patterns decode to zero; the encoder writes the first.
            reachable = ~(np.signbit(values) & (values == 0))
        case Family.INTEGER:
            values, top, reachable = _integers(scheme, patterns)
        case Family.TERNARY:
            # Two bits, of which one pattern is never used.
            values = np.where(patterns >= 2, patterns - 4, patterns).astype(np.float64)
            top, reachable = 1.0, values >= -1
        case _:
            assert scheme.element is not None
            values = element_values(get_format(scheme.element))
            reachable = np.isfinite(values)
            top = float(values[reachable].max())
    made = Alphabet(patterns, values, reachable, top)
    order = np.lexsort((~np.signbit(made.levels), made.levels))
    return Alphabet(patterns[order], values[order], reachable[order], top)


def _integers(
    scheme: Scheme, patterns: npt.NDArray[np.int64]
) -> tuple[Float64, float, npt.NDArray[np.bool_]]:
    half = len(patterns) // 2
    if not scheme.symmetric:
        middle = half - 0.5
        return patterns.astype(np.float64) - middle, middle, np.ones(len(patterns), bool)
    values = np.where(patterns >= half, patterns - 2 * half, patterns).astype(np.float64)
    codes = integer_range(scheme.scale_rule, scheme.bits)
    return values, float(codes.steps), values >= codes.lowest
