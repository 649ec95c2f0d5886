"""What lies around a code: the numbers next to it, the spacing, the reals that round to it."""

from __future__ import annotations

import math
from fractions import Fraction

from qtui_core.dataclass import dataclass
from qtui_core.formats.rounding import Rounding, rounds_toward_zero
from qtui_core.formats.scalar import Exact, Kind, decode, is_odd
from qtui_core.formats.spec import FloatFormat, Format, IntFormat, Specials, power_of_two


@dataclass(frozen=True)
class Interval:
    """An interval of the real line. A closed infinite end includes that infinity."""

    lower: Exact
    upper: Exact
    lower_closed: bool
    upper_closed: bool

    @property
    def is_empty(self) -> bool:
        return self.lower == self.upper and not (self.lower_closed and self.upper_closed)

    def __contains__(self, value: Exact) -> bool:
        above = value > self.lower or (self.lower_closed and value == self.lower)
        below = value < self.upper or (self.upper_closed and value == self.upper)
        return above and below

    def mirrored(self) -> Interval:
        return Interval(-self.upper, -self.lower, self.upper_closed, self.lower_closed)


#: The interval of a code that no real number rounds to.
EMPTY = Interval(Fraction(0), Fraction(0), False, False)


def next_code_up(fmt: Format, code: int) -> int | None:
    """The code of the next larger value; None above the largest and for NaN.

    An infinity counts as a value; both zeros are followed by the smallest positive number.
    """
    return _next_code(fmt, code, up=True)


def next_code_down(fmt: Format, code: int) -> int | None:
    """The code of the next smaller value; None below the lowest and for NaN."""
    return _next_code(fmt, code, up=False)


def _next_code(fmt: Format, code: int, up: bool) -> int | None:
    decoded = decode(fmt, code)
    if isinstance(fmt, IntFormat):
        if decoded.value == (fmt.max if up else fmt.min):
            return None
        return (code + (1 if up else -1)) & (fmt.code_count - 1)
    if decoded.kind is Kind.NAN:
        return None
    magnitude = code & ~fmt.sign_bit
    negative = bool(decoded.sign)
    if negative != up:  # away from zero
        last = fmt.max_code + int(fmt.has_infinity)
        return code + 1 if magnitude < last else None
    if magnitude == 0:  # across zero
        return 1 | (0 if up else fmt.sign_bit) if fmt.signed else None
    return code - 1 if magnitude > 1 or not negative or fmt.has_negative_zero else 0


def ulp(fmt: Format, code: int) -> Fraction | None:
    """The weight of the last mantissa bit of the code: the distance to the next number away from
    zero, were there no largest number. None for infinity and NaN."""
    if isinstance(fmt, IntFormat):
        return fmt.step
    decoded = decode(fmt, code)
    if decoded.exponent is None:
        return None
    return power_of_two(decoded.exponent - fmt.mantissa_bits)


def rounding_interval(
    fmt: Format,
    code: int,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool | None = None,
) -> Interval:
    """The real numbers that `encode` turns into this code; for STOCHASTIC those that it may turn
    into it.

    Empty if there are none, and for a NaN code that more than one interval leads to (FNUZ, E8M0).
    The real 0 belongs to +0, so the interval of -0 has negative numbers only. For integers that
    do not saturate, only numbers inside the range are given, not those that wrap to this code.
    """
    if saturate is None:
        saturate = fmt.saturates
    decoded = decode(fmt, code)
    negative = bool(decoded.sign)
    if isinstance(fmt, IntFormat):
        magnitude = abs(int(decoded.value / fmt.step))
        last = int(abs(fmt.min if negative else fmt.max) / fmt.step)
    else:
        magnitude = code & ~fmt.sign_bit
        last = fmt.max_code
        if decoded.kind in (Kind.INFINITY, Kind.NAN):
            overflow_code = magnitude == last + 1 and fmt.signed
            return _overflow(fmt, last, rounding, saturate, negative) if overflow_code else EMPTY
        saturate = saturate or fmt.specials is Specials.FINITE

    interval = _magnitudes(fmt, magnitude, last, rounding, saturate, negative)
    if magnitude == 0 and fmt.sign_bit and not fmt.has_negative_zero:
        low_side = _magnitudes(fmt, 0, last, rounding, saturate, negative=True)
        if not low_side.is_empty:
            low_side = low_side.mirrored()
            return Interval(
                low_side.lower, interval.upper, low_side.lower_closed, interval.upper_closed
            )
    return interval.mirrored() if negative else interval


def _magnitudes(
    fmt: Format, magnitude: int, last: int, rounding: Rounding, saturate: bool, negative: bool
) -> Interval:
    """The magnitudes of one sign that round to magnitude number `magnitude`."""
    lower: Exact
    upper: Exact
    if magnitude:
        lower, lower_closed = _boundary(fmt, magnitude, rounding, negative, stochastic_from=-1)
    else:
        # The real 0 is positive. In a format without a zero, all below its first number, down to 0,
        # rounds to code 0.
        lower, lower_closed = Fraction(0), not negative if fmt.has_zero else saturate
    clamped = rounds_toward_zero(rounding, negative) and isinstance(fmt, FloatFormat)
    if magnitude < last or not (saturate or clamped):
        upper, upper_open = _boundary(fmt, magnitude + 1, rounding, negative, stochastic_from=0)
        upper_closed = not upper_open and rounding is not Rounding.STOCHASTIC
    else:
        upper, upper_closed = math.inf, saturate
    return Interval(lower, upper, lower_closed, upper_closed)


def _overflow(
    fmt: FloatFormat, last: int, rounding: Rounding, saturate: bool, negative: bool
) -> Interval:
    """The real numbers beyond the range, which become infinity, or NaN in FN formats."""
    if saturate:
        return EMPTY
    if rounds_toward_zero(rounding, negative):
        interval = Interval(math.inf, math.inf, True, True)
    else:
        lower, closed = _boundary(fmt, last + 1, rounding, negative, stochastic_from=-1)
        interval = Interval(lower, math.inf, closed, True)
    return interval.mirrored() if negative else interval


def _boundary(
    fmt: Format, magnitude: int, rounding: Rounding, negative: bool, stochastic_from: int
) -> tuple[Fraction, bool]:
    """The boundary between what rounds to magnitude number `magnitude` - 1 (the lower) and to
    `magnitude` (the upper), and whether the boundary itself rounds to the upper.

    For STOCHASTIC everything between the two may become either. `stochastic_from` -1 gives where
    the interval of the upper begins, at the lower; 0 gives where that of the lower ends, at the
    upper. The boundary itself is excluded."""
    below = _magnitude_value(fmt, magnitude - 1)
    above = _magnitude_value(fmt, magnitude)
    match rounding:
        case Rounding.NEAREST_EVEN:
            odd_below = is_odd(fmt, magnitude - 1)
            return (below + above) / 2, odd_below
        case Rounding.NEAREST_AWAY:
            return (below + above) / 2, True
        case Rounding.STOCHASTIC:
            return (below if stochastic_from else above), False
    if rounds_toward_zero(rounding, negative):
        return above, True
    return below, False


def _magnitude_value(fmt: Format, magnitude: int) -> Fraction:
    """The value of the n-th magnitude; past the largest the count goes on as if there were no
    end."""
    if isinstance(fmt, IntFormat):
        return magnitude * fmt.step
    field, mantissa = divmod(magnitude, 1 << fmt.mantissa_bits)
    hidden = not (field == 0 and fmt.zero_exponent_is_subnormal)
    exponent = field - fmt.bias if hidden else fmt.min_exponent
    return (int(hidden) + mantissa * fmt.epsilon) * power_of_two(exponent)
