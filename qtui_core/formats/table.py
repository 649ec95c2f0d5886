"""One value in every format: the rows of `qtui formats` and the Formats panel."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from fractions import Fraction
from typing import SupportsFloat

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.formats.catalog import FORMATS
from qtui_core.formats.neighbours import next_code_down, next_code_up, ulp
from qtui_core.formats.rounding import Rounding
from qtui_core.formats.scalar import Decoded, Exact, Kind, decode, encode, exact, is_finite
from qtui_core.formats.spec import Format, IntFormat

#: Stochastic rounding without given random bits shows the middle one of 2^16 draws.
DEFAULT_RANDOM_BIT_COUNT = 16


class FormatOutcome(StrEnum):
    """What the format did to the value."""

    EXACT = "exact"
    ROUNDED = "rounded"
    #: A number other than zero became zero.
    UNDERFLOW = "underflow"
    #: Out of range, became the nearest end of the range.
    SATURATED = "saturated"
    #: Out of range, became infinity or NaN or wrapped round.
    OVERFLOW = "overflow"
    #: The format has no code for it: NaN without a NaN code, 0 or a negative number in E8M0.
    NOT_REPRESENTABLE = "not representable"


@dataclass(frozen=True)
class FormatRow:
    """A value in one format. If the format has no code for it, `code`, `decoded`, `value` and
    `kind` are None and the texts are empty."""

    format: Format
    #: The value that was given.
    given: Exact
    outcome: FormatOutcome
    code: int | None = None
    #: The bits of each field, high to low. Integers: the sign bit, "", the rest.
    sign_bits: str = ""
    exponent_bits: str = ""
    mantissa_bits: str = ""
    #: The stored word in hex, "0x3d".
    hex: str = ""
    decoded: Decoded | None = None
    value: Exact | None = None
    kind: Kind | None = None
    #: `value` less `given`; None unless both are finite.
    error: Fraction | None = None
    #: `error` / |`given`|; None also where `given` is 0.
    relative_error: Fraction | None = None
    #: Weight of the last mantissa bit; None for infinity and NaN.
    ulp: Fraction | None = None
    #: The neighbouring values of the format; None where there is none.
    below: Exact | None = None
    above: Exact | None = None


def describe_value(
    value: SupportsFloat,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool | None = None,
    formats: Iterable[Format] | None = None,
    random_bits: int | None = None,
    random_bit_count: int = DEFAULT_RANDOM_BIT_COUNT,
) -> tuple[FormatRow, ...]:
    """One row per format, in the order given (default: the whole catalogue).

    `saturate` None takes each format's own default. STOCHASTIC uses `random_bits`, or the middle
    draw where none is given.
    """
    given = exact(value)
    if random_bits is None:
        random_bits = 1 << (random_bit_count - 1)
    draw = (random_bits, random_bit_count) if rounding is Rounding.STOCHASTIC else (0, 0)
    rows = []
    for fmt in FORMATS.values() if formats is None else formats:
        try:
            code = encode(fmt, given, rounding, saturate, *draw)
        except UsageError:
            # That a format has no code for the value is an answer, too.
            rows.append(FormatRow(fmt, given, FormatOutcome.NOT_REPRESENTABLE))
            continue
        rows.append(describe_code(fmt, code, given))
    return tuple(rows)


def describe_code(fmt: Format, code: int, given: Exact | None = None) -> FormatRow:
    """The row of one code, compared with the value `given` (by default the code's own value).

    Raises ValueError if the code has more bits than the format.
    """
    decoded = decode(fmt, code)
    value = decoded.value
    if given is None:
        given = value
    error = relative = None
    if is_finite(given) and is_finite(value):
        error = Fraction(value) - Fraction(given)
        relative = error / abs(Fraction(given)) if given else None
    above, below = next_code_up(fmt, code), next_code_down(fmt, code)
    sign, exponent, mantissa = split_bits(fmt, code)
    return FormatRow(
        format=fmt,
        given=given,
        outcome=_outcome(fmt, given, value),
        code=code,
        sign_bits=sign,
        exponent_bits=exponent,
        mantissa_bits=mantissa,
        hex=hex_text(fmt, code),
        decoded=decoded,
        value=value,
        kind=decoded.kind,
        error=error,
        relative_error=relative,
        ulp=ulp(fmt, code),
        below=None if below is None else decode(fmt, below).value,
        above=None if above is None else decode(fmt, above).value,
    )


def hex_text(fmt: Format, code: int) -> str:
    """The stored word in hex, with as many digits as it has: "0x3d", TF32 "0x3dccc000"."""
    return f"0x{fmt.word(code):0{-(-fmt.storage_bits // 4)}x}"


def split_bits(fmt: Format, code: int) -> tuple[str, str, str]:
    """The bits of the sign, exponent and mantissa fields; "" for a field that the format does not
    have."""
    bits = f"{code:0{fmt.bits}b}"
    sign_width = int(fmt.signed)
    exponent_width = 0 if isinstance(fmt, IntFormat) else fmt.exponent_bits
    cut = sign_width + exponent_width
    return bits[:sign_width], bits[sign_width:cut], bits[cut:]


def _outcome(fmt: Format, given: Exact, value: Exact) -> FormatOutcome:
    if value == given or (isinstance(given, float) and math.isnan(given)):
        return FormatOutcome.EXACT
    if not is_finite(value):
        return (
            FormatOutcome.OVERFLOW if fmt.has_zero or given > 0 else FormatOutcome.NOT_REPRESENTABLE
        )
    if given > fmt.max or given < fmt.min:
        end = fmt.max if given > fmt.max else fmt.min
        if value != end:
            return FormatOutcome.OVERFLOW
        # A value within half a step of the end counts as rounded, not as out of range.
        step = ulp(fmt, encode(fmt, end))
        near = step is not None and is_finite(given) and abs(Fraction(given) - end) <= step / 2
        return FormatOutcome.ROUNDED if near else FormatOutcome.SATURATED
    return FormatOutcome.UNDERFLOW if value == 0 else FormatOutcome.ROUNDED
