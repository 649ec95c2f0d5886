"""What lies around a code: the numbers next to it, the spacing, the reals that round to it."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.formats.rounding import MAX_RANDOM_BITS, Rounding
from qtui_core.formats.scalar import Exact, Kind, decode, encode, is_finite
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
    points = _turning_points(fmt, code, fmt.saturates if saturate is None else saturate)
    most = (1 << MAX_RANDOM_BITS) - 1
    draws = [0, most] if rounding is Rounding.STOCHASTIC else [0]

    def leads_here(number: Exact) -> bool:
        try:
            return code in [
                encode(fmt, number, rounding, saturate, draw, MAX_RANDOM_BITS) for draw in draws
            ]
        except UsageError:  # it has no code
            return False

    # Between two points nothing changes: points at even places, one number between them at odd.
    places = points[:1]
    for lower, upper in pairwise(points):
        places += [_between(lower, upper), upper]
    inside = [place for place, number in enumerate(places) if leads_here(number)]
    if not inside:
        return EMPTY
    first, last = inside[0], inside[-1]
    return Interval(places[first - first % 2], places[last + last % 2], not first % 2, not last % 2)


def _between(lower: Exact, upper: Exact) -> Fraction:
    if not is_finite(lower):
        return Fraction(upper) - 1
    return Fraction(lower) + 1 if not is_finite(upper) else (Fraction(lower) + Fraction(upper)) / 2


def _turning_points(fmt: Format, code: int, saturate: bool) -> list[Exact]:
    """Ascending numbers where the code that numbers round to may change, around those of `code`."""
    decoded, step = decode(fmt, code), ulp(fmt, code)
    ends: list[Exact] = [-math.inf, math.inf]
    if step is None:  # what overflows to an infinity or a NaN
        if not fmt.signed or (isinstance(fmt, FloatFormat) and fmt.specials is Specials.FNUZ):
            return []
        last, away = (fmt.min, -1) if decoded.sign else (fmt.max, 1)
        step = ulp(fmt, encode(fmt, last))
        assert step is not None
        around, ends = [last, last + away * step], [away * math.inf]
    else:
        value = Fraction(decoded.value)
        around = [value, *([Fraction(0)] if value else [])]
        for neighbour, beyond in (
            (next_code_down(fmt, code), -step),
            (next_code_up(fmt, code), step),
        ):
            number = math.inf if neighbour is None else decode(fmt, neighbour).value
            around.append(Fraction(number) if is_finite(number) else value + beyond)
        if isinstance(fmt, IntFormat) and not saturate:
            ends = []
    middles = [(one + other) / 2 for one, other in pairwise(sorted(around))]
    return sorted({*around, *middles, *ends})
