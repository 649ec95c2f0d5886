"""The rows of the format table as the bit grid draws them, at any width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qtui.screen.widgets.bits import BitField, BitRow, BitsColumn
from qtui_core.dataclass import dataclass
from qtui_core.formats import Exact, IntFormat
from qtui_core.formats.decimals import format_exact, format_rounded
from qtui_core.formats.pair import relative_text
from qtui_core.formats.table import FormatOutcome, FormatRow

# The word in place of an error, for outcomes where its size does not matter.
LOST = {
    FormatOutcome.UNDERFLOW: "underflow",
    FormatOutcome.SATURATED: "saturated",
    FormatOutcome.OVERFLOW: "overflow",
    FormatOutcome.NOT_REPRESENTABLE: "no code",
}


@dataclass(frozen=True)
class GridLayout:
    """The widths of the parts of the grid, in cells."""

    name_width: int
    exponent_width: int
    bits_width: int
    columns: tuple[BitsColumn, ...]


_FP32_BITS = 4 + 11 + 2 + 23
_FP64_BITS = 4 + 14 + 2 + 52

_ERROR = BitsColumn("error", 10, right=True)
_RELATIVE = BitsColumn("relative", 10, right=True)
#: The one column of errors where there is no room for two: of all formats the same part of the
#: absolute one.
_OFF = BitsColumn("off by", 10, right=True)
_ULP = BitsColumn("ulp", 9, right=True)
_HEX = BitsColumn("hex", 18)
_CLASS = BitsColumn("class", 9)
_RANGE = (
    BitsColumn("max", 10, right=True),
    BitsColumn("min normal", 10, right=True),
    BitsColumn("subnormal", 10, right=True),
    BitsColumn("epsilon", 9, right=True),
    BitsColumn("digits", 6, right=True),
)


def grid_layout(width: int, *, ranges: bool) -> GridLayout:
    """The parts that fit: always names, bits, value and relative error; with more room the error,
    the ranges, all bits of FP64, ulp, class and hex."""
    name = 12 if width >= 76 else 9
    left = width - 2 - name - 1
    if ranges and width < 160:
        bits = _FP32_BITS if left >= _FP32_BITS + 50 else 0
        off = (_OFF,) * (left - bits >= _width(_RANGE) + _OFF.width + 2)
        return GridLayout(name, 8, bits, (*off, *_RANGE))
    value = 14
    bits = max(12, min(_FP32_BITS, left - value - 1 - _OFF.width))
    columns = [BitsColumn("value", min(value, left - bits)), _OFF]
    room = left - bits - _width(columns) + 1
    if room >= _ERROR.width + 1:
        columns[1:] = [_ERROR, _RELATIVE]
        room -= _ERROR.width + 1
    limits = _width(_RANGE)
    exponent = 8
    if room >= limits:
        columns += _RANGE
        room -= limits
    if room >= _FP64_BITS - bits:
        exponent, room, bits = 11, room - (_FP64_BITS - bits), _FP64_BITS
    errors = len(columns) - len(_RANGE) if columns[-1] is _RANGE[-1] else len(columns)
    for extra in (_ULP, _CLASS):
        if room >= extra.width + 1:
            columns.insert(errors, extra)
            room -= extra.width + 1
    if room >= _HEX.width + 1:
        columns.insert(errors, _HEX)
        room -= _HEX.width + 1
    widest = max(columns[0].width, min(columns[0].width + room, 26))
    columns[0] = BitsColumn("value", widest)
    return GridLayout(name, exponent, bits, tuple(columns))


def _width(columns: Sequence[BitsColumn]) -> int:
    """The cells that columns take, with a space before each."""
    return sum(column.width + 1 for column in columns)


def bit_row(row: FormatRow, layout: GridLayout, *, source: bool, pinned: bool) -> BitRow:
    """One line of the grid. A star marks the `source`, the format whose bits gave the value."""
    cells = tuple(_CELLS[column.title](row, column.width) for column in layout.columns)
    name = row.format.title + ("*" if source else "")
    fields = fields_of(row) if layout.bits_width else ()
    return BitRow(name, fields, cells, "P" if pinned else "")


def fields_of(row: FormatRow) -> tuple[BitField, ...]:
    """The fields of the code with their letters. Without a code there are no digits."""
    fmt = row.format
    fields: list[BitField] = []
    if fmt.signed:
        fields.append(BitField("s", row.sign_bits or "-", "sign"))
    if isinstance(fmt, IntFormat):
        fields.append(BitField("i", row.mantissa_bits or "-" * (fmt.bits - fmt.signed), "integer"))
        return tuple(fields)
    fields.append(BitField("e", row.exponent_bits or "-" * fmt.exponent_bits, "exponent"))
    if fmt.mantissa_bits:
        fields.append(BitField("m", row.mantissa_bits or "-" * fmt.mantissa_bits, "mantissa"))
    if fmt.padding_bits:
        fields.append(BitField("", "." * fmt.padding_bits, "padding"))
    return tuple(fields)


def fitted(value: Exact | None, width: int) -> str:
    """The value in at most `width` characters, with an ellipsis if digits are left out."""
    if value is None:
        return ""
    digits = min(26, width)
    text = format_exact(value, digits)
    while len(text) > width and digits > 1:
        digits -= max(1, min(len(text) - width, digits - 1))
        text = format_exact(value, digits)
    return text


def compact(value: Exact, width: int) -> str:
    """The exact value if it fits, else a rounded one: 0.015625, but 3.403e+38."""
    text = format_exact(value, width)
    if len(text) <= width and "…" not in text:
        return text
    return format_rounded(value, max(1, width - 6))


def _value(row: FormatRow, width: int) -> str:
    return "no code for it" if row.code is None else fitted(row.value, width)


def _error(row: FormatRow, _width: int) -> str:
    if row.outcome in LOST and row.code is not None:
        return LOST[row.outcome]
    return "" if row.error is None else format_rounded(row.error, 3, signed=True)


def _off(row: FormatRow, _width: int) -> str:
    if row.outcome in LOST and row.code is not None:
        return LOST[row.outcome]
    return "" if row.code is None else relative_text(row)


def _class(row: FormatRow, _width: int) -> str:
    return row.kind.value if row.kind else ""


def _ulp(row: FormatRow, width: int) -> str:
    return "" if row.ulp is None else compact(row.ulp, width)


def _limit(name: str) -> Callable[[FormatRow, int], str]:
    """Makes the cell of a limit of the format; empty for limits that integers do not have."""

    def cell(row: FormatRow, width: int) -> str:
        fmt = row.format
        if isinstance(fmt, IntFormat) and name == "epsilon":
            return compact(fmt.step, width)
        value = getattr(fmt, name, None)
        return "-" if value is None else compact(value, width)

    return cell


_CELLS: dict[str, Callable[[FormatRow, int], str]] = {
    "value": _value,
    "error": _error,
    "off by": _off,
    "relative": lambda row, _: relative_text(row),
    "ulp": _ulp,
    "hex": lambda row, _: row.hex,
    "class": _class,
    "max": _limit("max"),
    "min normal": _limit("min_normal"),
    "subnormal": _limit("min_subnormal"),
    "epsilon": _limit("epsilon"),
    "digits": lambda row, _: f"{row.format.decimal_digits:.1f}",
}


def table_text(rows: Sequence[FormatRow]) -> str:
    """The table as plain text for the clipboard: a line for each format, columns separated by
    tabs."""
    lines = ["format\tbits\thex\tvalue\terror\trelative\tulp\tclass"]
    for row in rows:
        bits = " ".join(field.bits for field in fields_of(row) if field.kind != "padding")
        value = "" if row.value is None else format_exact(row.value, 40)
        lines.append(
            "\t".join((row.format.title, bits, row.hex, value, _error(row, 0), relative_text(row)))
            + f"\t{_ulp(row, 12)}\t{_class(row, 0)}"
        )
    return "\n".join(lines)
