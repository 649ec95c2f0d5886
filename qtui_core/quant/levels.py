"""The values a group can represent, for drawing them and for computing expected errors."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from qtui_core.formats import FloatFormat, decode, get_format
from qtui_core.quant.codebook import LEVELS
from qtui_core.quant.scheme import Family, Scheme

Float64 = npt.NDArray[np.float64]


def levels(scheme: Scheme, low: float = -1.0, high: float = 1.0) -> Float64:
    """The values a group can represent whose smallest element is `low` and whose largest is
    `high`, float64, ascending, without duplicates; scales in full precision.

    With the default range these are the levels of a group of absmax 1; `signed` then takes
    +1 for the extreme element, whose side of zero has one level more. Empty for formats of
    more than 8 bits, whose levels are too many to draw.
    """
    if scheme.family is Family.CAST:
        return np.empty(0)
    if not scheme.symmetric:
        return asymmetric_levels(scheme.bits, np.array([low]), np.array([high]))[0]
    extreme = low if abs(low) > abs(high) else high
    if scheme.scale_rule != "signed":
        extreme = abs(extreme)
    return np.unique(unit_levels(scheme) * extreme)


@cache
def unit_levels(scheme: Scheme) -> Float64:
    """Levels of a symmetric scheme in units of the absmax of the group (of its extreme
    element, for `signed`), float64, ascending, zero once."""
    if scheme.family is Family.CODEBOOK:
        return _frozen(np.unique(LEVELS[scheme.format].astype(np.float64)))
    if scheme.family is Family.INTEGER:
        half = 2 ** (scheme.bits - 1)
        match scheme.scale_rule:
            case "full":
                return _frozen(np.arange(-half, half) / (half - 0.5))
            case "signed":
                return _frozen(np.arange(1 - half, half + 1) / half)
        return _frozen(np.arange(1 - half, half) / (half - 1))
    fmt = get_format(scheme.format)
    assert isinstance(fmt, FloatFormat)
    decoded = [decode(fmt, code).to_float() for code in range(fmt.code_count)]
    values = np.array(decoded)
    return _frozen(np.unique(values[np.isfinite(values)]) / float(fmt.max))


def asymmetric_levels(bits: int, low: Float64, high: Float64) -> Float64:
    """Levels of asymmetric integers for ranges `low`, `high` of any shape: one axis more, of
    2^bits. The zero point is rounded, so the ends of the range are hit to half a step."""
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    steps = 2**bits - 1
    scale = np.maximum((high - low) / steps, np.finfo(np.float64).tiny)
    zero_point = np.clip(np.rint(-low / scale), 0, steps)
    return (np.arange(steps + 1) - zero_point[..., None]) * scale[..., None]


def _frozen(values: Float64) -> Float64:
    values.flags.writeable = False
    return values
