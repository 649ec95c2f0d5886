"""Decode, encode and round one value, exactly. The tests hold array.py against it.

Finite values are Fractions, so nothing here is ever rounded twice. A float stands only for what a
Fraction cannot hold: the infinities, NaN and -0.0.

Values outside the range become the following; `saturate` is the format's default unless given:

=================  ======================  ============================================
format             saturating              not saturating
=================  ======================  ============================================
IEEE               ±max                    ±inf, or ±max where the mode rounds toward
                                           zero (IEEE 754-2019, 7.4); inf stays inf
FN, FNUZ           ±max                    NaN, or ±max where the mode rounds toward
                                           zero; inf becomes NaN
FINITE             ±max, inf too           the same: it has neither infinity nor NaN
integers           min or max, inf too     wrap modulo 2^bits; inf is an error
=================  ======================  ============================================

A value is rounded as if there were no largest exponent, and overflows if the result is too large.
In E4M3 the value 464 is half way between 448 and 480 (which would have the code of NaN) and rounds
to 448; in IEEE formats the value half way past the largest number rounds to infinity.

NaN stays NaN with its sign, always with the same code; a format without NaN raises UsageError.
E8M0 has no sign and no zero: negative numbers become NaN, positive ones below 2^-127 become 2^-127
in every mode, and 0 becomes 2^-127 when saturating and NaN when not.
"""

from __future__ import annotations

import math
from enum import StrEnum
from fractions import Fraction
from numbers import Rational
from typing import SupportsFloat

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.formats.rounding import (
    Rounding,
    check_random_bits,
    moves_away_from_zero,
    rounds_toward_zero,
)
from qtui_core.formats.spec import FloatFormat, Format, IntFormat, Specials, scaled

#: A Fraction, or one of the floats inf, -inf, nan, -0.0.
Exact = Fraction | float


class Kind(StrEnum):
    """What a code stands for."""

    ZERO = "zero"
    SUBNORMAL = "subnormal"
    NORMAL = "normal"
    INFINITY = "infinity"
    NAN = "NaN"
    INTEGER = "integer"


@dataclass(frozen=True)
class Decoded:
    """The fields and the value of one code. For integers the mantissa field is all of the code
    but the sign bit."""

    format: Format
    code: int
    #: 1 where the sign bit is set.
    sign: int
    exponent_field: int
    mantissa_field: int
    kind: Kind
    #: Unbiased; None for infinity, NaN and integers.
    exponent: int | None
    #: In [1, 2) for normal numbers, in [0, 1) for subnormal ones and zero; None where `exponent`
    #: is None.
    significand: Fraction | None
    value: Exact

    def to_float(self) -> float:
        """The value as a Python float: exact for every format here."""
        return float(self.value)


def exact(value: SupportsFloat) -> Exact:
    """Any real number (int, float, Fraction, numpy scalar) without loss."""
    if isinstance(value, Rational):
        return Fraction(value)
    number = float(value)
    if not math.isfinite(number) or (number == 0 and math.copysign(1, number) < 0):
        return number
    return Fraction(number)


def is_finite(value: Exact) -> bool:
    """True for every Fraction and for -0.0."""
    return isinstance(value, Fraction) or math.isfinite(value)


def is_negative(value: Exact) -> bool:
    """The sign bit: True for -0.0, -inf and a NaN whose sign is set."""
    return value < 0 if isinstance(value, Fraction) else math.copysign(1, value) < 0


def decode(fmt: Format, code: int) -> Decoded:
    """What `code` stands for. Raises ValueError if it has more bits than the format."""
    if not 0 <= code < fmt.code_count:
        raise ValueError(f"{code:#x} is not a code of {fmt.bits} bits")
    sign = int(bool(code & fmt.sign_bit))
    if isinstance(fmt, IntFormat):
        value = (code - (sign << fmt.bits)) * fmt.step
        low = code & ~fmt.sign_bit
        return Decoded(fmt, code, sign, 0, low, Kind.INTEGER, None, None, value)

    magnitude = code & ~fmt.sign_bit
    exponent_field = magnitude >> fmt.mantissa_bits
    mantissa_field = magnitude & ((1 << fmt.mantissa_bits) - 1)
    if magnitude > fmt.max_code or (fmt.specials is Specials.FNUZ and code == fmt.nan_code):
        kind = Kind.INFINITY if magnitude == fmt.infinity_code else Kind.NAN
        special = math.inf if kind is Kind.INFINITY else math.nan
        special = math.copysign(special, -1.0 if sign else 1.0)
        return Decoded(fmt, code, sign, exponent_field, mantissa_field, kind, None, None, special)

    hidden = not (exponent_field == 0 and fmt.zero_exponent_is_subnormal)
    exponent = exponent_field - fmt.bias if hidden else fmt.min_exponent
    # In integers: creating one Fraction is faster than multiplying several.
    steps = (int(hidden) << fmt.mantissa_bits) | mantissa_field
    significand = Fraction(steps, 1 << fmt.mantissa_bits)
    subnormal = Kind.SUBNORMAL if mantissa_field else Kind.ZERO
    kind = Kind.NORMAL if hidden else subnormal
    signed: Exact = -0.0
    if steps or not sign:
        signed = scaled(-steps if sign else steps, exponent - fmt.mantissa_bits)
    return Decoded(
        fmt, code, sign, exponent_field, mantissa_field, kind, exponent, significand, signed
    )


def encode(
    fmt: Format,
    value: SupportsFloat,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool | None = None,
    random_bits: int = 0,
    random_bit_count: int = 0,
) -> int:
    """The code that `value` rounds to. For values out of range see the top of this module.

    `random_bits` is a number of `random_bit_count` bits (1 to 32), which only
    Rounding.STOCHASTIC uses. Raises UsageError if the format has no code for the value (NaN, or an
    infinity for integers that wrap), ValueError if the random bits are missing or do not fit.
    """
    check_random_bits(rounding, random_bits, random_bit_count)
    how = rounding, fmt.saturates if saturate is None else saturate
    draw = random_bits, random_bit_count
    given = exact(value)
    if isinstance(given, float) and math.isnan(given):
        return _encode_nan(fmt, negative=is_negative(given))
    if isinstance(fmt, IntFormat):
        return _encode_int(fmt, given, *how, draw)
    return _encode_float(fmt, given, *how, draw)


def _encode_nan(fmt: Format, negative: bool) -> int:
    if isinstance(fmt, IntFormat) or fmt.nan_code is None:
        raise UsageError(f"{fmt.title} has no NaN. Replace the NaN before casting to {fmt.title}.")
    return fmt.nan_code | (fmt.sign_bit if negative else 0)


def _encode_float(
    fmt: FloatFormat, value: Exact, rounding: Rounding, saturate: bool, draw: tuple[int, int]
) -> int:
    negative = is_negative(value)
    saturate = saturate or fmt.specials is Specials.FINITE
    if value == 0:
        if fmt.has_zero:
            return fmt.sign_bit if negative and fmt.has_negative_zero else 0
        return 0 if saturate else _encode_nan(fmt, negative=False)
    if negative and not fmt.signed:
        return _encode_nan(fmt, negative=False)
    sign = fmt.sign_bit if negative else 0

    overflows_to_max = saturate
    if isinstance(value, float):  # an infinity
        code = fmt.max_code + 1
    else:
        code, fraction = unbounded_code(fmt, abs(value))
        code += moves_away_from_zero(
            rounding, fraction, odd=is_odd(fmt, code), negative=negative, draw=draw
        )
        overflows_to_max |= rounds_toward_zero(rounding, negative)

    if code > fmt.max_code:
        if overflows_to_max:
            return fmt.max_code | sign
        if fmt.infinity_code is not None:
            return fmt.infinity_code | sign
        return _encode_nan(fmt, negative)
    code = max(code, 0)  # negative in E8M0 only: its code 0 is the smallest number
    return code | sign if code or fmt.has_negative_zero else 0


def unbounded_code(fmt: FloatFormat, magnitude: Fraction) -> tuple[int, Fraction]:
    """The code of the largest number not above `magnitude` > 0, and the fraction in [0, 1) of the
    way from it to the next number at which `magnitude` lies.

    The codes of one sign count the representable magnitudes in order. The count goes on past the
    largest code as if the exponent field had no end (and below code 0 for E8M0, which has no
    zero), so an overflow is found by a comparison of codes.
    """
    exponent = floor_log2(magnitude)
    if fmt.zero_exponent_is_subnormal:
        exponent = max(exponent, fmt.min_exponent)
    steps, over = magnitude.numerator, magnitude.denominator
    shift = exponent - fmt.mantissa_bits
    if shift > 0:
        over <<= shift
    else:
        steps <<= -shift
    whole, rest = divmod(steps, over)
    # The subtraction takes the hidden 1 of `whole` out of the code. A subnormal has no hidden 1
    # and the exponent of field 1, so the same subtraction leaves field 0.
    hidden = 1 << fmt.mantissa_bits
    return ((exponent + fmt.bias) << fmt.mantissa_bits) + whole - hidden, Fraction(rest, over)


def is_odd(fmt: Format, magnitude: int) -> bool:
    """Whether the last significand bit of that magnitude (a code without its sign) is 1.

    In a format without mantissa bits this is the hidden bit: every number but zero is odd, and a
    tie between two odd ones goes to the larger (IEEE 754-2019, 4.3.1).
    """
    if isinstance(fmt, IntFormat) or fmt.mantissa_bits:
        return bool(magnitude & 1)
    return not (fmt.has_zero and magnitude == 0)


def floor_log2(magnitude: Fraction) -> int:
    """floor(log2(magnitude)) for a positive Fraction, from bit lengths: a floating-point log2 is
    wrong just below powers of two."""
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    over = magnitude.denominator
    if exponent >= 0:
        return exponent - (over << exponent > magnitude.numerator)
    return exponent - (over > magnitude.numerator << -exponent)


def _encode_int(
    fmt: IntFormat, value: Exact, rounding: Rounding, saturate: bool, draw: tuple[int, int]
) -> int:
    negative = is_negative(value)
    lowest, highest = int(fmt.min / fmt.step), int(fmt.max / fmt.step)
    if isinstance(value, float) and value != 0:  # an infinity
        if not saturate:
            raise UsageError(
                f"{fmt.title} has no infinity to wrap. Saturate, or replace the infinity first."
            )
        count = lowest if negative else highest
    else:
        steps = abs(Fraction(value)) / fmt.step
        count = steps.numerator // steps.denominator
        count += moves_away_from_zero(
            rounding, steps - count, odd=is_odd(fmt, count), negative=negative, draw=draw
        )
        count = -count if negative else count
        if saturate:
            count = min(max(count, lowest), highest)
    return count & (fmt.code_count - 1)
