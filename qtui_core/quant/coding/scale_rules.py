"""What each scale rule makes of the largest element of a group.

A rule of `SCALE_RULES` has its numbers here and nowhere else: of integers the codes and the steps
(`INTEGER_RANGES`); of powers of two the code in float32 (`scale_codes`), and where it goes up
(`turns_up_at`), which levels and expectations are computed from.

Source of the rules for powers of two: torchao's `to_mx` (torchao 0.18,
`prototype/mx_formats/mx_tensor.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.segments.elements import Float32

FLOAT32_MANTISSA = 23
FLOAT32_BIAS = 127
#: The E8M0 code of 1, and the largest code that is a number: 2^127. 255 is NaN.
E8M0_BIAS = 127
E8M0_LARGEST = 254

Words = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IntegerRange:
    """Codes `lowest` to `highest` of symmetric integers. The scale of a group is its extent over
    `steps`: the absmax, or the extreme element with its sign where `steps` is below zero."""

    lowest: int
    highest: int
    steps: float


#: By rule, from half the number of codes, 2^(bits - 1).
INTEGER_RANGES: dict[str, Callable[[int], IntegerRange]] = {
    "absmax": lambda half: IntegerRange(1 - half, half - 1, half - 1),
    "full": lambda half: IntegerRange(-half, half - 1, half - 0.5),
    "signed": lambda half: IntegerRange(-half, half - 1, -half),
}


def integer_range(rule: str, bits: int) -> IntegerRange:
    """The codes of symmetric integers of so many bits under a rule."""
    return INTEGER_RANGES[rule](2 ** (bits - 1))


def turns_up_at(rule: str, largest: float, mantissa_bits: int) -> tuple[float, bool]:
    """Where in an octave of the absmax the power of two goes up by one: from a fraction in
    [0.5, 1], as `math.frexp` has it, and whether it does at that fraction already. `largest` is
    the largest number of the element format, and has so many `mantissa_bits`."""
    match rule:
        case "rceil":
            return math.frexp(largest)[0], False
        case "ceil":
            return 0.5, False
        case "even":
            # Half a step of the mantissa below the next power of two.
            return 1 - 2.0 ** -(mantissa_bits + 2), True
    return 1.0, False


def scale_codes(
    absmax: Float32, rule: str, largest: np.float32, mantissa_bits: int
) -> npt.NDArray[np.uint8]:
    """The E8M0 codes of blocks of these largest magnitudes, finite float32 `[blocks]`. `largest`
    is the largest number of the element format, and has so many `mantissa_bits`."""
    if rule == "rceil":
        exponent = _ceil_exponent(_words(absmax / largest))
    else:
        words = _words(absmax)
        match rule:
            case "even":
                # Half away from zero to the mantissa of the element; what carries goes up.
                half = 1 << (FLOAT32_MANTISSA - mantissa_bits - 1)
                exponent = _floor_exponent(words + half)
            case "ceil":
                exponent = _ceil_exponent(words)
            case _:
                exponent = _floor_exponent(words)
        exponent -= math.frexp(largest)[1] - 1
    return np.clip(exponent + E8M0_BIAS, 0, E8M0_LARGEST).astype(np.uint8)


def power_of_two(codes: npt.NDArray[np.uint8]) -> Float32:
    """What E8M0 codes below 255 stand for, 2^(code - 127), float32."""
    return np.ldexp(np.float32(1), codes.astype(np.int32) - E8M0_BIAS).astype(np.float32)


def _words(values: Float32) -> Words:
    return np.ascontiguousarray(values, np.float32).view(np.int32).astype(np.int64)


def _floor_exponent(words: Words) -> Words:
    """floor(log2) of float32 words; -127 for zero and subnormal numbers."""
    return (words >> FLOAT32_MANTISSA) - FLOAT32_BIAS


def _ceil_exponent(words: Words) -> Words:
    """ceil(log2) of float32 words; -127 for zero and numbers up to 2^-127."""
    mantissa = words & ((1 << FLOAT32_MANTISSA) - 1)
    subnormal = words < 1 << FLOAT32_MANTISSA
    beyond = mantissa > np.where(subnormal, 1 << (FLOAT32_MANTISSA - 1), 0)
    return _floor_exponent(words) + beyond
