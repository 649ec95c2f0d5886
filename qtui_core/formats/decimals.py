"""Exact values written in decimal, cut or rounded without floating-point arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

from qtui_core.formats.scalar import Exact

#: Numbers with up to this many digits before the point are written out, longer ones with an
#: exponent.
_LONGEST_WHOLE = 17
#: An integer with fewer digits than this is not rounded: that would save little and hide much.
_LARGEST_SHORT_INTEGER = 10**6
#: An exact fraction with more bits than this is too long to read.
_LONGEST_FRACTION_BITS = 128


def format_exact(value: Exact, digits: int = 17, ellipsis: str = "…") -> str:
    """The value in decimal: in full if it has at most `digits` significant digits, else its first
    `digits` digits, cut and not rounded, with an ellipsis: "0.100000001490116…"."""
    if isinstance(value, float):
        return _special_text(value)
    if value == 0:
        return "0"
    magnitude = abs(value)
    exponent = floor_log10(magnitude)
    scaled = magnitude * Fraction(10) ** (digits - 1 - exponent)
    whole, sign = int(scaled), "-" if value < 0 else ""
    if scaled == whole:
        return sign + _written(whole, exponent, -5 <= exponent < _LONGEST_WHOLE)
    return sign + _written(whole, exponent, -5 <= exponent < digits, ellipsis)


def format_rounded(value: Exact, digits: int = 3, signed: bool = False) -> str:
    """The value rounded to `digits` significant digits, half to even, trailing zeros dropped;
    `signed` writes the plus too. For errors: "+1.49e-9", "-2.44e-5", "0". Integers under a
    million are written in full."""
    if isinstance(value, float):
        return _special_text(value)
    if value == 0:
        return "0"
    magnitude = abs(value)
    sign = "-" if value < 0 else "+" if signed else ""
    if magnitude.denominator == 1 and magnitude < _LARGEST_SHORT_INTEGER:
        return f"{sign}{magnitude}"
    exponent = floor_log10(magnitude)
    whole = round(magnitude * Fraction(10) ** (digits - 1 - exponent))
    if whole == 10**digits:
        whole, exponent = whole // 10, exponent + 1
    return sign + _written(whole, exponent, -2 <= exponent < digits)


def exact_fraction_text(value: Exact) -> str:
    """The value as a fraction: "13/128", "65504"; with a power of two if that is shorter
    ("13421773 × 2^-27"); in decimal if no fraction is short enough to read."""
    if isinstance(value, float):
        return _special_text(value)
    numerator, denominator = value.numerator, value.denominator
    power = denominator.bit_length() - 1
    if denominator == 1 and abs(numerator) >= 1 << 24:
        twos = (numerator & -numerator).bit_length() - 1
        numerator, power = numerator >> twos, -twos
    if numerator.bit_length() > _LONGEST_FRACTION_BITS:
        return format_exact(value)
    if value == numerator * Fraction(2) ** -power and not 0 <= power <= 10:
        factor = {1: "", -1: "-"}.get(numerator, f"{numerator} × ")
        return f"{factor}2^{-power}"
    return str(value) if denominator.bit_length() <= _LONGEST_FRACTION_BITS else format_exact(value)


def floor_log10(magnitude: Fraction) -> int:
    """floor(log10(magnitude)) of a positive Fraction: estimated from bit lengths, then corrected
    exactly."""
    bits = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent = math.floor(bits * math.log10(2))
    while Fraction(10) ** exponent > magnitude:
        exponent -= 1
    while Fraction(10) ** (exponent + 1) <= magnitude:
        exponent += 1
    return exponent


def _special_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "-0" if value == 0 else ("-inf" if value < 0 else "inf")


def _written(whole: int, exponent: int, positional: bool, tail: str = "") -> str:
    """The digits d1d2d3… of `whole` as the number d1.d2d3… · 10^exponent: with its point in place,
    or as "d1.d2d3e+2". Zeros at the end of exact digits are left out; a `tail` follows cut ones."""
    digits = str(whole) if tail else str(whole).rstrip("0")
    if positional and exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits + tail
    point = exponent + 1 if positional else 1
    digits = digits.ljust(point, "0")
    number = (
        f"{digits[:point]}{'.' * bool(digits[point:] or (tail and positional))}{digits[point:]}"
    )
    return f"{number}{tail}" if positional else f"{number}{tail}e{exponent:+d}"
