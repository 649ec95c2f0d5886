"""OCP Microscaling: small elements under a scale that is a power of two.

Sources: OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6.3; the four rules for
the scale as torchao's `to_mx` names and computes them (torchao 0.18,
`prototype/mx_formats/mx_tensor.py`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qtui_core.quant.coding.block_coder import BlockCoder, ElementFormat, make_elements
from qtui_core.quant.coding.coder import GroupScales
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.rounding import NEAREST, SchemeRounding

FLOAT32_MANTISSA = 23
FLOAT32_BIAS = 127
#: The E8M0 code of 1, and the largest code that is a number: 2^127. 255 is NaN.
E8M0_BIAS = 127
E8M0_LARGEST = 254

Words = npt.NDArray[np.int64]


class MicroscalingCoder(BlockCoder):
    """Blocks of 32 elements of a row under a scale 2^k, k from -127 to 127, kept as the code
    k + 127 (E8M0). An element is x / 2^k, which is exact, rounded to the element format (to
    nearest even unless the scheme says otherwise) and never beyond its largest number. The last
    block of a row may be short; torchao refuses such rows.

    The exponent comes from the bits of absmax and never from a logarithm in floating point, which
    is wrong beside powers of two: `rceil` gives what the instruction `cvt.rp.satfinite.ue8m0x2`
    of NVIDIA gives. A block of zeros has code 0.

    Blocks so small that their code is 0 are rounded here by the scale that they are read with,
    2^-127. torchao rounds them by 2^-126 (by 1 under `rceil`) and reads them with 2^-127, so that
    they come back at half their size, or as zeros. NaN and infinities are left out of the scale as
    everywhere in this library; in torchao and in the specification they make the whole block NaN.

    MXINT8 has steps of 1/64 up to 1.984375 = 127/64. The code of -2 is left unused, as the
    specification permits and as its authors' emulation does, so that levels are symmetric.
    """

    scale_format = "e8m0"

    def __init__(self, element: str, rule: str, rounding: SchemeRounding = NEAREST) -> None:
        super().__init__(make_elements(element, rounding))
        self.rule = rule
        self.smallest_extent = float(self.elements.largest) * 2.0**-E8M0_BIAS

    def scales(self, extents: Float32, size: int) -> GroupScales:
        code = scale_codes(extents[0], self.rule, self.elements)
        return GroupScales(power_of_two(code), code=code)

    def inverse(self, scales: GroupScales) -> Float32:
        # The reciprocal of a power of two is one as well, if perhaps a subnormal number.
        return np.float32(1) / scales.scale


def scale_codes(absmax: Float32, rule: str, elements: ElementFormat) -> npt.NDArray[np.uint8]:
    """The E8M0 codes of blocks of these largest magnitudes, finite float32 `[blocks]`."""
    if rule == "rceil":
        exponent = _ceil_exponent(_words(absmax / elements.largest))
    else:
        words = _words(absmax)
        match rule:
            case "even":
                # Half away from zero to the mantissa of the element; what carries goes up.
                half = 1 << (FLOAT32_MANTISSA - elements.mantissa_bits - 1)
                exponent = _floor_exponent(words + half)
            case "ceil":
                exponent = _ceil_exponent(words)
            case _:
                exponent = _floor_exponent(words)
        exponent -= elements.exponent
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
