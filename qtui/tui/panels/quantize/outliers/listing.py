"""The left of the Outliers view as lines: the furthest elements, and the columns."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.report.numbers import format_decibels, format_value, plural
from qtui.tui.panels.quantize.outliers.data import Attribution, Kept, OutlierNumbers
from qtui.tui.panels.quantize.outliers.lines import Text, TextLine
from qtui.tui.widgets.drawing import Glyphs
from qtui.tui.widgets.line import shortened


def listing_lines(
    width: int,
    height: int,
    glyphs: Glyphs,
    numbers: OutlierNumbers | None,
    attribution: Attribution | None,
) -> Sequence[TextLine]:
    """Elements in the upper part, columns below; each list ends where the room does."""
    if numbers is None:
        return ()
    lines = element_lines(numbers, max(3, height // 2 - 1), width, glyphs)
    lines.append(())
    room = height - len(lines)
    lines += column_lines(numbers, attribution, room, width, glyphs)
    return lines[:height]


def element_lines(
    numbers: OutlierNumbers, height: int, width: int, glyphs: Glyphs
) -> list[TextLine]:
    """The elements beyond six sigma, the furthest first."""
    if not numbers.count:
        return [[("no element beyond 6 sigma", "heading")]]
    # A tensor of one row has no columns apart from its elements.
    where = f", in {plural(numbers.columns_hit, 'column')}" if numbers.columns_hit else ""
    title = f"{numbers.count:,} beyond 6 sigma{where}"
    lines: list[TextLine] = [
        [(shortened(title, width, glyphs.ellipsis), "heading")],
        [(f"{'value':>9}{'sigmas':>7}{'row':>8}{'column':>8}", "label")],
    ]
    for outlier in numbers.top[: height - 2]:
        marked = outlier.column in numbers.outlier_columns
        lines.append(
            [
                (f"{format_value(outlier.value, 4):>9}", "value"),
                (f"{outlier.sigmas:>7,.1f}", "value"),
                (f"{outlier.row:>8,}{outlier.column:>8,}", "value"),
                (f" {glyphs.outlier}" if marked else "", "warning"),
            ]
        )
    return lines


def column_lines(
    numbers: OutlierNumbers,
    attribution: Attribution | None,
    height: int,
    width: int,
    glyphs: Glyphs,
) -> list[TextLine]:
    """The columns that are large or full of error: what of the squared error is in them, and
    what of it would be gone with them in 16 bits."""
    total = f"{numbers.column_total:,}"
    if attribution is None:
        return [[(f"columns of {total}", "heading")]]
    title = shortened(f"error of {attribution.scheme} by column", width, glyphs.ellipsis)
    lines: list[TextLine] = [
        [(title, "heading")],
        [(f"{'column':>8}{'size':>7}{'own':>7}{'caused':>8}", "label")],
    ]
    if not attribution.tried:
        return [lines[0], [("there is none", "label")]]
    rest = height - len(lines)
    bar = width - 33
    together = attribution.together
    show_all = together is not None and len(together.columns) > 1 and rest > 2
    for kept in attribution.tried[: max(0, rest - 2 * show_all)]:
        lines.append(_kept_line(kept, f"{kept.columns[0]:,}", numbers, bar, glyphs))
    if show_all and together is not None:
        lines.append(_kept_line(together, f"all {len(together.columns)}", numbers, bar, glyphs))
        lines.append(
            [
                (f"  kept in 16 bits {glyphs.arrow} ", "label"),
                (f"{format_decibels(together.sqnr_db)} dB", "strong"),
            ]
        )
    return lines


def _kept_line(
    kept: Kept, name: str, numbers: OutlierNumbers, bar: int, glyphs: Glyphs
) -> TextLine:
    outlier = all(column in numbers.outlier_columns for column in kept.columns)
    size = ""
    if len(kept.columns) == 1 and kept.absmax_ratio is not None:
        size = f"{kept.absmax_ratio:.3g}{glyphs.times}"
    filled = round(max(0.0, min(1.0, kept.caused_share)) * bar) if bar > 0 else 0
    line: list[Text] = [
        (f"{name:>8}{size:>7}", "value"),
        (f"{percent(kept.own_share):>7}", "label"),
        (f"{percent(kept.caused_share):>8}", "value"),
        (f" {glyphs.outlier}" if outlier else "  ", "warning"),
    ]
    return [*line, (" " + glyphs.full * filled, "bar")]


def percent(share: float) -> str:
    """A share of the whole, with a digit below ten per cent."""
    value = 100 * share
    if abs(value) < 0.05:
        return "0 %"
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:.0f} %"
