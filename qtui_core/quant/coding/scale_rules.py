"""The scale that each scale rule computes from the largest element of a group.

The numbers of a rule of `SCALE_RULES` are defined only here: for integers the codes and steps
(`INTEGER_RANGES`); for power-of-two scales the code of a float32 absmax (`scale_codes`), and the
absmax at which the scale doubles (`turns_up_at`), from which levels and expected errors are
computed.

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
    `steps`. The extent is the absmax; if `steps` is negative, the extreme element with its sign."""

    lowest: int
    highest: int
    steps: float


#: By rule: a function of half the number of codes, 2^(bits - 1).
INTEGER_RANGES: dict[str, Callable[[int], IntegerRange]] = {
    "absmax": lambda half: IntegerRange(1 - half, half - 1, half - 1),
    "full": lambda half: IntegerRange(-half, half - 1, half - 0.5),
    "signed": lambda half: IntegerRange(-half, half - 1, -half),
}


def integer_range(rule: str, bits: int) -> IntegerRange:
    """The codes of symmetric integers of `bits` bits under a rule."""
    return INTEGER_RANGES[rule](2 ** (bits - 1))


def turns_up_at(rule: str, largest: float, mantissa_bits: int) -> tuple[float, bool]:
    """Where in an octave of the absmax the power-of-two scale doubles: (the fraction in [0.5, 1],
    as `math.frexp` returns it; whether it has doubled at that fraction itself). `largest` is the
    largest number of the element format, and `mantissa_bits` its mantissa bits."""
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
