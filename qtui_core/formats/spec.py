"""What a number format is: its fields, its special values, and its limits.

A *code* is the integer made of the bits of the format; the sign is the highest bit. If a format is
stored in a wider word (TF32: 19 bits in a 32-bit word), the code does not contain the padding, and
`word` adds it.
"""

from __future__ import annotations

import math
from enum import Enum
from fractions import Fraction
from functools import cached_property

from qtui_core.dataclass import dataclass
from qtui_core.formats.rounding import Rounding


class Specials(Enum):
    """Which codes are not finite numbers."""

    #: The highest exponent field is reserved: mantissa 0 is infinity, the others are NaN.
    IEEE = "IEEE 754: infinities and NaN"
    #: "Finite, NaN": only the code of all ones (per sign) is NaN, there is no infinity.
    FN = "finite and NaN, no infinity"
    #: "Finite, NaN, unsigned zero": there is no infinity, and the only NaN has the code that minus
    #: zero would have.
    FNUZ = "finite, one NaN in the place of -0, no infinity"
    #: Every code is a finite number.
    FINITE = "finite numbers only"


class Width:
    """What follows from the bits of a code."""

    bits: int
    signed: bool
    padding_bits: int = 0

    @cached_property
    def storage_bits(self) -> int:
        """Bits of the word that a code is stored in."""
        return self.bits + self.padding_bits

    @cached_property
    def code_count(self) -> int:
        return 1 << self.bits

    @cached_property
    def sign_bit(self) -> int:
        """The code with only the sign bit set, 0 for an unsigned format."""
        return 1 << (self.bits - 1) if self.signed else 0

    def word(self, code: int) -> int:
        """The stored word of a code."""
        return code << self.padding_bits


@dataclass(frozen=True)
class FloatFormat(Width):
    """A binary floating-point format: sign, exponent field, mantissa field, from high to low.

    A code with exponent field E > 0 and mantissa field M has the value
    ±(1 + M/2^mantissa_bits) · 2^(E - bias); with E = 0 there is no hidden 1 and the exponent is
    1 - bias. Raises ValueError if the fields and the special values contradict each other.
    """

    #: Its name in schemes and commands: "e4m3".
    name: str
    #: Its name in tables: "E4M3".
    title: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials
    signed: bool = True
    #: False if exponent field 0 keeps the hidden 1 (E8M0): no subnormals and no zero.
    zero_exponent_is_subnormal: bool = True
    #: Unused bits of the stored word below the mantissa (TF32: 13).
    padding_bits: int = 0
    #: How the hardware that introduced the format rounds into it.
    hardware_rounding: Rounding = Rounding.NEAREST_EVEN
    note: str = ""

    def __post_init__(self) -> None:
        if self.exponent_bits < 1 or self.mantissa_bits < 0:
            raise ValueError(f"{self.name}: needs an exponent field and no negative mantissa")
        if self.specials is Specials.IEEE and self.mantissa_bits == 0:
            raise ValueError(f"{self.name}: IEEE needs mantissa bits to tell NaN from infinity")
        if self.specials is Specials.FNUZ and not self.signed:
            raise ValueError(f"{self.name}: FNUZ puts its NaN where -0 would be; unsigned has none")
        if self.specials is Specials.FINITE and not self.signed:
            raise ValueError(f"{self.name}: unsigned formats need a NaN for negative numbers")

    # --- width

    @cached_property
    def bits(self) -> int:  # type: ignore[override]
        """Bits of a code."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    # --- which special values it has

    @cached_property
    def has_infinity(self) -> bool:
        return self.specials is Specials.IEEE

    @cached_property
    def has_nan(self) -> bool:
        return self.specials is not Specials.FINITE

    @cached_property
    def has_zero(self) -> bool:
        return self.zero_exponent_is_subnormal

    @cached_property
    def has_negative_zero(self) -> bool:
        return self.signed and self.has_zero and self.specials is not Specials.FNUZ

    @cached_property
    def saturates(self) -> bool:
        """Whether overflow becomes the largest number by default.

        False if the format has an infinity. True for FN and FNUZ, as frameworks cast to them in
        training; without saturation an overflow becomes NaN. FINITE always saturates.
        """
        return self.specials is not Specials.IEEE

    # --- codes of magnitudes: without the sign bit

    @cached_property
    def max_code(self) -> int:
        """The code of the largest number."""
        top = 1 << (self.exponent_bits + self.mantissa_bits)
        match self.specials:
            case Specials.IEEE:
                return top - (1 << self.mantissa_bits) - 1
            case Specials.FN:
                return top - 2
        return top - 1

    @cached_property
    def infinity_code(self) -> int | None:
        return self.max_code + 1 if self.has_infinity else None

    @cached_property
    def nan_code(self) -> int | None:
        """The NaN that encode writes: of several, the quiet one without payload. None if there is
        none."""
        match self.specials:
            case Specials.IEEE:
                return self.max_code + 1 + (1 << (self.mantissa_bits - 1))
            case Specials.FN:
                return self.max_code + 1
            case Specials.FNUZ:
                return self.sign_bit
        return None

    # --- limits

    @cached_property
    def min_exponent(self) -> int:
        """The exponent of the smallest number with a hidden 1, and of the subnormals."""
        return int(self.zero_exponent_is_subnormal) - self.bias

    @cached_property
    def max_exponent(self) -> int:
        """floor(log2(max))."""
        return (self.max_code >> self.mantissa_bits) - self.bias

    @cached_property
    def max(self) -> Fraction:
        """The largest finite number."""
        mantissa = self.max_code & ((1 << self.mantissa_bits) - 1)
        significand = (1 << self.mantissa_bits) + mantissa
        return significand * power_of_two(self.max_exponent - self.mantissa_bits)

    @cached_property
    def min(self) -> Fraction:
        """The lowest finite number: -max, or the smallest positive number if there is no sign."""
        return -self.max if self.signed else self.min_positive

    @cached_property
    def min_normal(self) -> Fraction:
        return power_of_two(self.min_exponent)

    @cached_property
    def min_subnormal(self) -> Fraction | None:
        """The smallest positive subnormal; None if the format has no subnormals."""
        if not self.zero_exponent_is_subnormal or self.mantissa_bits == 0:
            return None
        return power_of_two(self.min_exponent - self.mantissa_bits)

    @cached_property
    def min_positive(self) -> Fraction:
        return self.min_subnormal or self.min_normal

    @cached_property
    def epsilon(self) -> Fraction:
        """The distance from 1 to the next number above it."""
        return power_of_two(-self.mantissa_bits)

    @cached_property
    def decimal_digits(self) -> float:
        """Significant decimal digits to one decimal place: log10(2^(mantissa bits + hidden 1))."""
        return round((self.mantissa_bits + 1) * math.log10(2), 1)


@dataclass(frozen=True)
class IntFormat(Width):
    """Two's-complement (or unsigned) integers counting steps of 2^-fraction_bits.

    Overflow saturates unless told otherwise; without saturation it wraps modulo 2^bits, as a
    plain integer cast does. There is no NaN and no infinity.
    """

    name: str
    title: str
    bits: int
    signed: bool = True
    #: Binary places after the point (MXINT8: 6).
    fraction_bits: int = 0
    note: str = ""

    has_infinity = has_nan = has_negative_zero = False
    has_zero = saturates = True

    def __post_init__(self) -> None:
        if self.bits < 1 + int(self.signed):
            raise ValueError(f"{self.name}: {self.bits} bits leave no room for a number")

    @cached_property
    def step(self) -> Fraction:
        """The distance between neighbouring numbers, the same everywhere."""
        return power_of_two(-self.fraction_bits)

    @cached_property
    def max(self) -> Fraction:
        return ((1 << (self.bits - int(self.signed))) - 1) * self.step

    @cached_property
    def min(self) -> Fraction:
        return -self.sign_bit * self.step

    @cached_property
    def min_positive(self) -> Fraction:
        return self.step

    @cached_property
    def decimal_digits(self) -> float:
        """Significant decimal digits of the largest magnitude, to one place."""
        return round((self.bits - int(self.signed)) * math.log10(2), 1)


Format = FloatFormat | IntFormat


def power_of_two(exponent: int) -> Fraction:
    """2^exponent, exactly, for any sign of the exponent."""
    return scaled(1, exponent)


def scaled(number: int, exponent: int) -> Fraction:
    """number * 2^exponent, exactly, for any signs of both."""
    return Fraction(number << exponent) if exponent >= 0 else Fraction(number, 1 << -exponent)
