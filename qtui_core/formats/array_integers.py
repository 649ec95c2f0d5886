"""Integer formats on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qtui_core.errors import UsageError
from qtui_core.formats.rounding import Casting, Rounding
from qtui_core.formats.spec import IntFormat


def encode_integers(
    fmt: IntFormat,
    values: NDArray[Any],
    codes: NDArray[Any],
    random_bits: NDArray[Any] | None,
    how: Casting,
) -> None:
    """Writes the codes of `values` (1-D, float32 or float64, no NaN) into `codes`.

    Raises UsageError for infinities where the format wraps.
    """
    if fmt.bits > 24:  # float32 holds integers only to 2^24
        values = values.astype(np.float64, copy=False)
    if not how.saturate:
        if np.isinf(values).any():
            raise UsageError(
                f"{fmt.title} has no infinity to wrap. Saturate, or replace the infinity first."
            )
        # fmod is exact, keeps the sign and removes whole multiples of the range: the fraction
        # that is rounded stays the same.
        values = np.fmod(values, float(fmt.code_count * fmt.step)).astype(values.dtype)
    with np.errstate(over="ignore"):  # what overflows to infinity saturates all the same
        steps = np.ldexp(values, fmt.fraction_bits) if fmt.fraction_bits else values
    counts = _round(steps, how, random_bits)
    if how.saturate:
        counts = np.clip(counts, int(fmt.min / fmt.step), int(fmt.max / fmt.step))
    integers: NDArray[Any] = counts.astype(np.int32 if fmt.bits <= 24 else np.int64)
    codes[...] = (integers & (fmt.code_count - 1)).astype(codes.dtype)


def _round(steps: NDArray[Any], how: Casting, random_bits: NDArray[Any] | None) -> NDArray[Any]:
    match how.rounding:
        case Rounding.NEAREST_EVEN:
            return np.rint(steps)
        case Rounding.TOWARD_ZERO:
            return np.trunc(steps)
        case Rounding.UP:
            return np.ceil(steps)
        case Rounding.DOWN:
            return np.floor(steps)
    whole = np.trunc(steps)
    with np.errstate(invalid="ignore"):  # inf - inf: an infinity has nothing to round
        # The difference is exact. Adding one half instead would round just below a tie.
        fraction = np.abs(steps - whole)
    if how.rounding is Rounding.NEAREST_AWAY:
        away = fraction >= 0.5
    else:
        assert random_bits is not None, "encode_array draws before it gets here"
        kept = np.floor(np.ldexp(fraction.astype(np.float64), how.random_bit_count))
        away = kept + random_bits >= float(1 << how.random_bit_count)
    return np.where(away, whole + np.copysign(whole.dtype.type(1), steps), whole)


def decode_integers(fmt: IntFormat, codes: NDArray[Any]) -> NDArray[np.float64]:
    """float64 in the shape of `codes`: the value of each code."""
    wide = codes.astype(np.int64)
    counts = (wide ^ fmt.sign_bit) - fmt.sign_bit  # spreads the sign bit
    return np.ldexp(counts.astype(np.float64), -fmt.fraction_bits)
