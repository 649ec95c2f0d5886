"""The rounding modes, and what each decides: whether a magnitude becomes the next larger one."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction

#: Most random bits per value: with these the array version stays within 64-bit integers.
MAX_RANDOM_BITS = 32

_HALF = Fraction(1, 2)


class Rounding(StrEnum):
    """To which of its two neighbours a value between them is rounded."""

    #: The nearer one; of two equally near, the one whose last significand bit is 0.
    NEAREST_EVEN = "nearest-even"
    #: The nearer one; of two equally near, the one farther from zero.
    NEAREST_AWAY = "nearest-away"
    #: Drop what does not fit.
    TOWARD_ZERO = "toward-zero"
    #: Toward plus infinity.
    UP = "up"
    #: Toward minus infinity.
    DOWN = "down"
    #: Away from zero with a probability equal to the part that does not fit.
    STOCHASTIC = "stochastic"


def rounds_toward_zero(rounding: Rounding, negative: bool) -> bool:
    """Whether the mode never moves a number of this sign away from zero."""
    return (
        rounding is Rounding.TOWARD_ZERO
        or (rounding is Rounding.DOWN and not negative)
        or (rounding is Rounding.UP and negative)
    )


def moves_away_from_zero(
    rounding: Rounding, fraction: Fraction, *, odd: bool, negative: bool, draw: tuple[int, int]
) -> bool:
    """Whether a magnitude that lies `fraction` of the way from one representable magnitude to the
    next (0 <= fraction < 1) becomes the next one.

    `odd` says whether the last significand bit of the lower magnitude is 1.

    STOCHASTIC adds `draw[0]`, a number of k = `draw[1]` bits, to the first k bits of the fraction
    and looks at the carry: of all 2^k patterns exactly floor(fraction · 2^k) round away. With k at
    least the number of dropped bits this is the hardware recipe "add random bits below the
    mantissa, then truncate".
    """
    if fraction == 0:
        return False
    match rounding:
        case Rounding.NEAREST_EVEN:
            return fraction > _HALF or (fraction == _HALF and odd)
        case Rounding.NEAREST_AWAY:
            return fraction >= _HALF
        case Rounding.STOCHASTIC:
            kept = (fraction.numerator << draw[1]) // fraction.denominator
            return kept + draw[0] >= 1 << draw[1]
    return not rounds_toward_zero(rounding, negative)


def check_random_bits(rounding: Rounding, random_bits: int, random_bit_count: int) -> None:
    """Raises ValueError if STOCHASTIC has no random bits, or bits outside 0 to 2^count - 1."""
    if rounding is not Rounding.STOCHASTIC:
        return
    if not 1 <= random_bit_count <= MAX_RANDOM_BITS:
        raise ValueError(
            f"stochastic rounding needs 1 to {MAX_RANDOM_BITS} random bits, not {random_bit_count}"
        )
    if not 0 <= random_bits < 1 << random_bit_count:
        raise ValueError(f"{random_bits} is not a number of {random_bit_count} bits")
