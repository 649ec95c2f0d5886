"""The values that a group can represent, and the codes of a scheme: bit pattern, level, and whether
any element can get it."""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.formats import FloatFormat, Format, decode, get_format
from qtui_core.quant.coding.codebook import LEVELS
from qtui_core.quant.coding.scale_rules import integer_range, turns_up_at
from qtui_core.schemes.scheme import Family, Scheme, check_countable

Float64 = npt.NDArray[np.float64]


def levels(scheme: Scheme, low: float = -1.0, high: float = 1.0) -> Float64:
    """All values that a group with elements from `low` to `high` (in the tensor's unit) can
    represent: float64, ascending, without duplicates. Scales are not rounded, except that a
    microscaling scale is a power of two. Empty for formats of more than 8 bits, whose levels are
    too many to draw.

    With the default range these are the levels of a group with absmax 1. For the rule `signed`, +1
    is then the extreme element, and there is one level more on its side of zero. The scale of a
    ternary group is a mean magnitude; here it is that of elements spread evenly over the range.
    """
    if scheme.family is Family.CAST:
        return np.empty(0)
    if scheme.float_zero_point:
        return np.unique(np.linspace(low, high, 2**scheme.bits))
    if not scheme.symmetric:
        return asymmetric_levels(scheme.bits, np.array([low]), np.array([high]))[0]
    extreme = low if abs(low) > abs(high) else high
    if scheme.scale_rule != "signed":
        extreme = abs(extreme)
    match scheme.family:
        case Family.TERNARY:
            return np.unique(unit_levels(scheme) * _even_mean(low, high))
        case Family.MICROSCALING:
            return np.unique(plain_levels(scheme) * shared_scale(scheme, extreme))
    return np.unique(unit_levels(scheme) * extreme)


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
    match scheme.family:
        case Family.CODEBOOK:
            return _frozen(np.unique(LEVELS[scheme.format].astype(np.float64)))
        case Family.TERNARY:
            return _frozen(np.array([-1.0, 0.0, 1.0]))
        case Family.INTEGER:
            codes = integer_range(scheme.scale_rule, scheme.bits)
            return _frozen(np.arange(codes.lowest, codes.highest + 1, dtype=np.float64))
    assert scheme.element is not None
    values = element_values(get_format(scheme.element))
    return _frozen(np.unique(values[np.isfinite(values)]))


@cache
def unit_levels(scheme: Scheme) -> Float64:
    """Levels of a symmetric scheme in units of the extent that sets the scale: the absmax, the
    extreme element for `signed`, the mean magnitude for ternary. float64, ascending, zero once.
    Power-of-two scales are treated as if they could be any number."""
    plain = plain_levels(scheme)
    match scheme.family:
        case Family.CODEBOOK | Family.TERNARY:
            return plain
        case Family.INTEGER:
            return _frozen(np.sort(plain / integer_range(scheme.scale_rule, scheme.bits).steps))
    return _frozen(plain / plain[-1])


@cache
def element_values(fmt: Format) -> Float64:
    """The value of each code of a format of at most 8 bits, float64 `[2^bits]`, with NaN and
    infinities. The code of -2 in MXINT8, which quantization does not use, is NaN here."""
    values = np.array([decode(fmt, code).to_float() for code in range(fmt.code_count)])
    if not isinstance(fmt, FloatFormat):
        values[fmt.sign_bit] = np.nan
    return _frozen(values)


def shared_scale(scheme: Scheme, absmax: float) -> float:
    """The power-of-two scale of a microscaling scheme for an absmax, as in `scale_codes` but
    without the limits of E8M0. 1 for zero."""
    if absmax == 0:
        return 1.0
    fraction, exponent = math.frexp(absmax)  # 0.5 <= fraction < 1
    limit, reached = turn_of_scale(scheme)
    exponent += fraction >= limit if reached else fraction > limit
    return math.ldexp(1.0, exponent - math.frexp(plain_levels(scheme)[-1])[1])


def turn_of_scale(scheme: Scheme) -> tuple[float, bool]:
    """`turns_up_at` for a microscaling scheme."""
    assert scheme.element is not None
    fmt = get_format(scheme.element)
    mantissa = fmt.mantissa_bits if isinstance(fmt, FloatFormat) else fmt.bits - 2
    return turns_up_at(scheme.scale_rule, float(plain_levels(scheme)[-1]), mantissa)


def asymmetric_levels(bits: int, low: Float64, high: Float64) -> Float64:
    """Levels of asymmetric integers for ranges `low`, `high` of any shape: float64 `[..., 2^bits]`.
    The zero point is rounded, so the outermost levels are within half a step of the range's
    ends."""
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    steps = 2**bits - 1
    scale = np.maximum((high - low) / steps, np.finfo(np.float64).tiny)
    zero_point = np.clip(np.rint(-low / scale), 0, steps)
    return (np.arange(steps + 1) - zero_point[..., None]) * scale[..., None]


def _even_mean(low: float, high: float) -> float:
    """The mean magnitude of numbers spread evenly from `low` to `high`."""
    if low == high:
        return abs(low)
    return abs(high * abs(high) - low * abs(low)) / (2 * (high - low))


def _frozen(values: Float64) -> Float64:
    values.flags.writeable = False
    return values


@dataclass(frozen=True, eq=False)
class Alphabet:
    """The codes of a format in ascending order of what they stand for, -0 before +0.

    Attributes:
        codes: int64 `[K]`, bit patterns; integers in two's complement.
        levels: float64 `[K]`, in units of the extent of a group: of its absmax, or for
            asymmetric integers -1 for the low end of the range and 1 for the high end. NaN and
            infinities where a pattern stands for these.
        reachable: bool `[K]`, False for a pattern that no finite element gets: the lowest code of a
            restricted integer, the second zero of bitsandbytes' FP4, NaN, infinity.
        top: the level 1 in units of the stored scale; negative for the rule "signed", whose scale
            has the opposite sign of the extreme element.
    """

    codes: npt.NDArray[np.int64]
    levels: Float64
    reachable: npt.NDArray[np.bool_]
    top: float

    @property
    def edges(self) -> Float64:
        """The edges between reachable levels: midpoints, with -inf and inf at the ends, float64
        `[reachable + 1]`. Between the two zeros the edge is zero."""
        values = self.levels[self.reachable]
        middles = (values[1:] + values[:-1]) / 2
        return np.concatenate([[-np.inf], middles, [np.inf]])


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
    levels = np.where(values == 0, values, values / top)  # a zero keeps its sign
    order = np.lexsort((~np.signbit(levels), levels))
    return Alphabet(patterns[order], levels[order], reachable[order], top)


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
