"""The numbers at the right: both schemes side by side, the tensor, the element under the cursor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from qtui.engine.answers.tensors import Element, TensorNumbers
from qtui.report.numbers import format_decibels, format_value
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, right
from qtui.tui.panels.quantize.shown import QuantizeShown
from qtui_core.answers import ErrorReport
from qtui_core.dataclass import dataclass
from qtui_core.quantities import format_bytes

NOTHING = "–"
#: Cells of a column of values.
COLUMN: Final = 10


@dataclass(frozen=True)
class Row:
    """One line: a label with one value, or with one for each scheme. Without values it is a
    heading."""

    label: str
    values: tuple[str, ...] = ()
    tone: Tone = "value"


def number_lines(rows: Sequence[Row], canvas: Canvas) -> list[TextLine]:
    """The rows as lines with values at the right. Rows that do not fit are left out."""
    return [_number_line(row, canvas) for row in rows[: canvas.height]]


def _number_line(row: Row, canvas: Canvas) -> TextLine:
    width, ellipsis = canvas.width, canvas.glyphs.ellipsis
    heading = row.tone == "heading"
    if heading and not row.values:
        return [Put(0, shortened(row.label, width, ellipsis), "strong")]
    line = [Put(0, row.label, "quiet" if heading else "label")]
    end = width
    for value in reversed(row.values):
        alone = len(row.values) == 1
        room = min(end if alone else COLUMN, end - (len(row.label) + 1 if alone else 0))
        tone: Tone = "strong" if heading else row.tone
        line.append(right(end, shortened(value, max(0, room), ellipsis), tone))
        end -= COLUMN
    return line


def scheme_rows(
    numbers: Sequence[ErrorReport | None], active: int, *, brief: bool = False
) -> list[Row]:
    """The bits and errors of the schemes, beside those on a Gaussian tensor. A star marks the
    active scheme."""

    def row(label: str, show: Callable[[ErrorReport], str], tone: Tone = "value") -> Row:
        return Row(label, tuple(NOTHING if n is None else show(n) for n in numbers), tone)

    letters = ("AB"[index] + ("*" if index == active else "") for index in range(len(numbers)))
    rows = [
        Row("scheme", tuple(letters), "heading"),
        row("bits/param", lambda n: f"{n.bits_per_parameter:.4g}"),
        row("bytes", lambda n: format_bytes(n.bytes)),
        row("SQNR dB", lambda n: format_decibels(n.sqnr_db)),
        row("  Gaussian", lambda n: format_decibels(n.gaussian_sqnr_db), "quiet"),
        row("relative MSE", lambda n: format_value(n.relative_mse, 3)),
        row("  Gaussian", lambda n: format_value(n.gaussian_relative_mse, 3), "quiet"),
        row("max error", lambda n: format_value(n.max_abs_error, 3)),
    ]
    if any(n is not None and n.saturated for n in numbers):
        rows.append(row("saturated", lambda n: f"{n.saturated:,}", "warning"))
    if any(n is not None and n.outlier_columns for n in numbers):
        rows.append(row("columns in fp16", lambda n: f"{n.outlier_columns:,}"))
    if not brief:
        return rows
    # A brief column keeps warnings about values that the SQNR leaves out.
    return [r for at, r in enumerate(rows) if at in (0, 1, 3, 4, 7) or r.tone == "warning"]


def tensor_rows(numbers: TensorNumbers | None, *, brief: bool = False) -> list[Row]:
    """The statistics of the tensor's values."""
    if numbers is None:
        return [Row("values", tone="heading")]
    n, outliers = numbers.statistics, numbers.outliers
    heading = Row(f"all {n.count:,} values" if n.count > 1 else "one value", tone="heading")
    strange = n.nan or n.inf
    tone: Tone = "warning" if outliers.count else "value"
    rows = [
        heading,
        Row("smallest", (format_value(n.min, 4),)),
        Row("largest", (format_value(n.max, 4),)),
        Row("std", (format_value(n.std, 4),)),
        Row("kurtosis, normal 3", (format_value(n.kurtosis, 3),)),
        Row("beyond 6 sigma", (f"{outliers.count:,}",), tone),
        Row(
            "NaN, infinite",
            (f"{n.nan:,}, {n.inf:,}" if strange else "none",),
            "warning" if strange else "value",
        ),
    ]
    if brief:
        return [heading, *rows[3:]]
    if outliers.columns:
        most = outliers.columns[0]
        words = f"{most.column:,} ({most.count:,})"
        rows.insert(6, Row("  most in column", (words,), "warning"))
    return rows


def element_rows(element: Element | None, *, brief: bool = False) -> list[Row]:
    """The element under the cursor and the group that shares its scale."""
    if element is None:
        return [Row("element", tone="heading")]
    e = element
    rows = [
        Row(f"element ({e.row:,}, {e.column:,})", tone="heading"),
        Row("value", (format_value(e.value, 7),)),
        Row("quantized", (format_value(e.quantized, 7),)),
        Row("error", ("none" if e.error == 0 else f"{e.error:+.3g}",)),
    ]
    if not math.isfinite(e.value):
        rows[-1] = Row("not finite", ("not in scale",), "warning")
    if e.scale is not None:
        rows.append(Row("scale S", (format_value(e.scale, 5),)))
    if e.zero_point is not None:
        rows.append(Row("zero point Z", (format_value(e.zero_point, 5),)))
    if e.where and not brief:
        rows.append(Row("of", (e.where,), "quiet"))
    return rows


def all_rows(shown: QuantizeShown, brief: bool) -> tuple[Row, ...]:
    """All rows: schemes, element, statistics; `brief` has fewer, for a low screen."""
    numbers = shown.errors or [None] * len(shown.schemes)
    blank = [] if brief else [Row("")]
    return (
        *scheme_rows(numbers, shown.active, brief=brief),
        *blank,
        *element_rows(shown.element, brief=brief),
        *blank,
        *tensor_rows(shown.numbers, brief=brief),
    )
