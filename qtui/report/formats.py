"""The documents of `qtui formats`: one value in every format, or the list of formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from operator import attrgetter
from typing import Any, Final

from qtui.report.document import Column, Document, Section, Table, Tone
from qtui_core.codec import Row, or_null, printed
from qtui_core.formats import Exact, FloatFormat, Format, Rounding
from qtui_core.formats.decimals import format_exact, format_rounded
from qtui_core.formats.summary import summarize
from qtui_core.formats.table import FormatOutcome, FormatRow, hex_text
from qtui_core.formats.text import Typed

_TONES: dict[FormatOutcome, Tone] = {
    FormatOutcome.OVERFLOW: "bad",
    FormatOutcome.SATURATED: "bad",
    FormatOutcome.UNDERFLOW: "bad",
    FormatOutcome.NOT_REPRESENTABLE: "dim",
}


def value_document(
    typed: Typed, rows: Sequence[FormatRow], rounding: Rounding, saturate: bool | None
) -> Document:
    """The report on a value; `rows` come from `describe_value`."""
    asked = format_exact(typed.value)
    if typed.format is not None and typed.code is not None:
        asked = f"{typed.format.title} {hex_text(typed.format, typed.code)} = {asked}"
    mode = {None: "as each format has it", True: "on", False: "off"}[saturate]
    return Document(
        title=f"{asked} in every format, rounding {rounding}, saturation {mode}",
        sections=(
            Section("Value", (_values(rows),)),
            Section("Range of the formats", (_ranges([row.format for row in rows]),)),
        ),
        conclusion=summarize(rows),
        data={
            "value": {
                "text": format_exact(typed.value, 60),
                "fraction": _fraction(typed.value),
                "float": _float(typed.value),
            },
            "rounding": str(rounding),
            "saturate": saturate,
            "formats": [printed(row, (*_form(row.format, "format."), *_ROW)) for row in rows],
        },
    )


def catalogue_document(formats: Sequence[Format]) -> Document:
    """The list of formats with their fields and limits."""
    return Document(
        title="Number formats",
        sections=(Section("Range of the formats", (_ranges(formats),)),),
        conclusion=_compare_ranges(formats),
        data={"value": None, "formats": [printed(f, _form(f)) for f in formats]},
    )


def _compare_ranges(formats: Sequence[Format]) -> str:
    small = [f for f in formats if isinstance(f, FloatFormat) and f.bits <= 16 and f.has_zero]
    if len(small) < 2:
        return "Give `qtui formats` a value to see what each of these makes of it."
    widest = max(small, key=lambda f: f.max)
    finest = min(small, key=lambda f: f.epsilon)
    if widest is finest:
        return (
            f"Of the floating-point formats of 16 bits and under here, {widest.title} both "
            f"reaches furthest (up to {format_rounded(widest.max)}) and resolves finest."
        )
    return (
        f"Of the floating-point formats of 16 bits and under here, {widest.title} reaches "
        f"furthest (up to {format_rounded(widest.max)}) and {finest.title} resolves finest "
        f"(steps of {format_rounded(finest.epsilon)} at 1): give `qtui formats` a value to see "
        f"which of the two it needs."
    )


def _values(rows: Sequence[FormatRow]) -> Table:
    return Table(
        columns=(
            Column("format", key=True),
            Column("bits s|e|m"),
            Column("hex"),
            Column("value"),
            *(Column(t, numeric=True) for t in ("below", "above", "error", "relative", "ulp")),
            Column("what happened"),
        ),
        rows=tuple(_value_cells(row) for row in rows),
        tones=tuple(_TONES.get(row.outcome, "") for row in rows),
    )


def _value_cells(row: FormatRow) -> tuple[str, ...]:
    if row.value is None:
        return (row.format.title, *("–",) * 8, str(row.outcome))
    fields, relative = (row.sign_bits, row.exponent_bits, row.mantissa_bits), row.relative_error
    return (
        row.format.title,
        "|".join(part for part in fields if part),
        row.hex,
        format_exact(row.value, 12),
        _rounded(row.below, 6),
        _rounded(row.above, 6),
        _rounded(row.error, signed=True),
        "–" if relative is None else f"{_rounded(100 * relative, signed=True)}%",
        _rounded(row.ulp),
        f"{row.outcome}{' from a tie' * _tied(row)}, {row.kind}",
    )


def _tied(row: FormatRow) -> bool:
    """Whether the value that was asked for lies in the middle of two neighbours."""
    other = row.above if (row.error or 0) < 0 else row.below
    if not row.error or other is None or not math.isfinite(other):
        return False
    return Fraction(other) - Fraction(row.given) == -row.error


def _ranges(formats: Sequence[Format]) -> Table:
    return Table(
        columns=(
            Column("format", key=True),
            Column("fields"),
            *(
                Column(title, numeric=True)
                for title in ("max", "min normal", "min subnormal", "epsilon", "digits")
            ),
            Column("special values"),
        ),
        rows=tuple(_range_cells(f) for f in formats),
    )


def _range_cells(fmt: Format) -> tuple[str, ...]:
    if isinstance(fmt, FloatFormat):
        sign = "1s " if fmt.signed else ""
        return (
            fmt.title,
            f"{sign}{fmt.exponent_bits}e {fmt.mantissa_bits}m, bias {fmt.bias}",
            format_rounded(fmt.max, 6),
            _rounded(fmt.min_normal),
            _rounded(fmt.min_subnormal),
            _rounded(fmt.epsilon),
            str(fmt.decimal_digits),
            fmt.specials.value,
        )
    return (
        fmt.title,
        f"{'1s ' if fmt.signed else ''}{fmt.bits - fmt.signed} bits",
        format_rounded(fmt.max, 6),
        "–",
        "–",
        _rounded(fmt.step),
        str(fmt.decimal_digits),
        f"from {format_rounded(fmt.min, 6)} in steps of {format_rounded(fmt.step)}",
    )


def _rounded(value: Exact | None, digits: int = 3, signed: bool = False) -> str:
    return "–" if value is None else format_rounded(value, digits, signed)


def _fraction(value: Exact | None) -> str | None:
    """The exact value as "n/d" or "n"; None if it is not a finite number."""
    if value is None or (isinstance(value, float) and value != 0):
        return None
    return str(Fraction(value))


def _float(value: Exact | None) -> float | None:
    """The nearest double; None if there is none."""
    if value is None:
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _near(path: str) -> Callable[[Any], float | None]:
    """Makes a function that reads the exact number at `path` of a row as the nearest double."""
    return lambda value: _float(attrgetter(path)(value))


def _form(fmt: Format, where: str = "") -> tuple[Row, ...]:
    """The rows that print a format as JSON; `where` is the path to it."""
    rows: tuple[Row, ...] = tuple(
        (name, where + name) for name in ("name", "title", "bits", "storage_bits")
    )
    rows += (("max", _near(f"{where}max")), ("min", _near(f"{where}min")))
    if not isinstance(fmt, FloatFormat):
        return (*rows, ("step", _near(f"{where}step")))
    return (
        *rows,
        ("exponent_bits", f"{where}exponent_bits"),
        ("mantissa_bits", f"{where}mantissa_bits"),
        ("bias", f"{where}bias"),
        ("specials", f"{where}specials.name"),
        ("min_normal", _near(f"{where}min_normal")),
        ("min_subnormal", _near(f"{where}min_subnormal")),
        ("epsilon", _near(f"{where}epsilon")),
        ("decimal_digits", f"{where}decimal_digits"),
    )


#: A value in a format, in JSON. A double cannot represent every exact value, and JSON has neither
#: infinity nor NaN; a text can.
_ROW: Final[tuple[Row, ...]] = (
    "outcome",
    "code",
    ("hex", or_null("hex")),
    "sign_bits",
    ("exponent_field_bits", "exponent_bits"),
    ("mantissa_field_bits", "mantissa_bits"),
    "kind",
    ("exponent", lambda row: row.decoded and row.decoded.exponent),
    ("significand", lambda row: row.decoded and _float(row.decoded.significand)),
    ("value", _near("value")),
    ("value_text", lambda row: None if row.value is None else format_exact(row.value, 60)),
    ("value_fraction", lambda row: _fraction(row.value)),
    ("error", _near("error")),
    ("relative_error", _near("relative_error")),
    ("ulp", _near("ulp")),
    ("below", _near("below")),
    ("above", _near("above")),
)
