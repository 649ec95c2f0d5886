"""The left side of the Outliers view as lines: the largest outliers, and the columns."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.engine.answers.outliers import ErrorByColumn, KeptColumns, OutlierNumbers
from qtui.report.numbers import format_decibels, format_value
from qtui.report.pictures.glyphs import Glyphs
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Toned, TonedLine
from qtui.tui.panels.quantize.outliers.detection import beyond_text
from qtui_core.quantities import plural


def listing_lines(
    width: int,
    height: int,
    glyphs: Glyphs,
    numbers: OutlierNumbers | None,
    attribution: ErrorByColumn | None,
) -> Sequence[TonedLine]:
    """The detected outliers in the upper part, and the columns below, as many as fit."""
    if numbers is None:
        return ()
    lines = element_lines(numbers, max(3, height // 2), width, glyphs)
    lines.append(())
    room = height - len(lines)
    lines += column_lines(numbers, attribution, room, width, glyphs)
    return lines[:height]


def element_lines(
    numbers: OutlierNumbers, height: int, width: int, glyphs: Glyphs
) -> list[TonedLine]:
    """The detected elements, the furthest from the mean first, or columns, the largest first."""
    lines = _heading(numbers, width, glyphs)
    if numbers.detection == "column":
        return [*lines, *_largest_lines(numbers, height - len(lines), glyphs)]
    if not numbers.count:
        return lines
    lines.append([(f"{'value':>9}{'sigmas':>7}{'row':>8}{'column':>8}", "label")])
    for outlier in numbers.top[: max(0, height - len(lines))]:
        row = f"{outlier.row:,}" if outlier.row < 1_000_000 else str(outlier.row)
        lines.append(
            [
                (f"{format_value(outlier.value, 4):>9}", "value"),
                (f"{_sigmas(outlier.sigmas):>7}", "value"),
                (f"{row:>8}{outlier.column:>8,}", "value"),
                (f" {glyphs.outlier}" if outlier.outlier else "", "warning"),
            ]
        )
    return lines


def _sigmas(many: float) -> str:
    """A number of sigmas in at most six characters."""
    if many < 1_000:
        return f"{many:.1f}"
    return f"{many:,.0f}" if many < 99_999 else f"{many:.0e}"


def _heading(numbers: OutlierNumbers, width: int, glyphs: Glyphs) -> list[TonedLine]:
    """The limit in words, and the number of outliers."""
    by, limit, many = numbers.detection, numbers.limit, numbers.outlier_column_count
    beyond, times = beyond_text(by, limit), glyphs.times
    if by == "column" and many:
        of = f"{many:,} of {numbers.column_total:,}"
        titles = [f"{of} columns {beyond}", f"{of} over {limit:g}{times} the median"]
    elif by != "column" and numbers.count:
        # A tensor of one row has no columns apart from its elements.
        columns = plural(numbers.columns_hit, "column")
        where = (f", in {columns}", f", {columns}", "") if numbers.columns_hit else ("",)
        titles = [f"{numbers.count:,} {beyond}{place}" for place in where]
    else:
        nothing, largest = nothing_found(numbers)
        return [
            [(shortened(nothing, width, glyphs.ellipsis), "title")],
            [(shortened(largest, width, glyphs.ellipsis), "label")],
        ]
    share = f"{100 * numbers.share:.2g}%"
    columns = f", {plural(many, 'outlier column')}" if numbers.columns_hit else ""
    shares = [f"{share}{whole}{columns}" for whole in (" of the elements", " of all", "")]
    mark = f" {glyphs.outlier}" if many else ""
    return [
        [(_fitting(titles, width, glyphs), "title")],
        [(_fitting(shares, width - len(mark), glyphs), "label"), (mark, "warning")],
    ]


def _fitting(texts: Sequence[str], width: int, glyphs: Glyphs) -> str:
    """The first text that fits, else the last one, shortened."""
    found = next((text for text in texts if len(text) <= width), texts[-1])
    return shortened(found, width, glyphs.ellipsis)


def _largest_lines(numbers: OutlierNumbers, height: int, glyphs: Glyphs) -> list[TonedLine]:
    """The largest columns: their largest magnitude and root mean square, and the ratios of these
    to the median column's."""

    def times(ratio: float | None) -> str:
        return "" if ratio is None else times_text(ratio, glyphs)

    lines: list[TonedLine] = [[(f"{'column':>8}{'absmax':>9}{'size':>8}{'rms':>8}", "label")]]
    for column in numbers.largest:
        lines.append(
            [
                (f"{column.column:>8,}{format_value(column.absmax, 4):>9}", "value"),
                (f"{times(column.absmax_ratio):>8}{times(column.rms_ratio):>8}", "value"),
                (f" {glyphs.outlier}" if column.outlier else "", "warning"),
            ]
        )
    return lines[: max(0, height)]


def column_lines(
    numbers: OutlierNumbers,
    attribution: ErrorByColumn | None,
    height: int,
    width: int,
    glyphs: Glyphs,
) -> list[TonedLine]:
    """The columns that are large or have much error: the share of the squared error inside each,
    and the share that would vanish if it were kept in 16 bits."""
    total = f"{numbers.column_total:,}"
    if attribution is None:
        return [[(f"columns of {total}", "title")]]
    title = shortened(f"error of {attribution.scheme} by column", width, glyphs.ellipsis)
    lines: list[TonedLine] = [
        [(title, "title")],
        [(f"{'column':>8}{'size':>7}{'own':>7}{'caused':>8}", "label")],
    ]
    if not attribution.tried:
        return [lines[0], [("there is no error", "label")]]
    rest = height - len(lines)
    bar = width - 33
    together = attribution.together
    show_all = together is not None and attribution.together_count > 1 and rest > 2
    for kept in attribution.tried[: max(0, rest - 2 * show_all)]:
        lines.append(_kept_line(kept, f"{kept.columns[0]:,}", bar, glyphs))
    if show_all and together is not None:
        lines.append(_kept_line(together, f"all {attribution.together_count:,}", bar, glyphs))
        left = "no error"
        if together.sqnr_db is not None:
            left = f"{format_decibels(together.sqnr_db)} dB"
        lines.append([(f"  kept in 16 bits {glyphs.arrow} ", "label"), (left, "strong")])
    return lines


def _kept_line(kept: KeptColumns, name: str, bar: int, glyphs: Glyphs) -> TonedLine:
    size = ""
    if len(kept.columns) == 1 and kept.absmax_ratio is not None:
        size = times_text(kept.absmax_ratio, glyphs)
    filled = round(max(0.0, min(1.0, kept.caused_share)) * bar) if bar > 0 else 0
    line: list[Toned] = [
        (f"{name:>8}{size:>7}", "value"),
        (f"{percent(kept.own_share):>7}", "label"),
        (f"{percent(kept.caused_share):>8}", "value"),
        (f" {glyphs.outlier}" if kept.outlier else "  ", "warning"),
    ]
    return [*line, (" " + glyphs.full * filled, "bar")]


def nothing_found(numbers: OutlierNumbers) -> tuple[str, str]:
    """Two texts: that nothing is beyond the limit, and how close the largest comes."""
    beyond = beyond_text(numbers.detection, numbers.limit)
    if numbers.std is None:
        return f"no element {beyond}", "no element is a finite number"
    if numbers.detection == "threshold":
        return f"no element {beyond}", f"the largest is {format_value(numbers.absmax)}"
    if numbers.detection == "sigma":
        if numbers.furthest_sigmas is None:
            return f"no element {beyond}", "all elements are the same"
        return f"no element {beyond}", f"the largest is {numbers.furthest_sigmas:.2g} sigma"
    largest = numbers.largest_ratio
    if largest is None:
        return f"no column {beyond}", "the median column is zero"
    if largest > numbers.limit:
        rows = plural(numbers.row_total, "row")
        return f"no column {beyond}", f"{rows}: too few to tell"
    return f"no column {beyond}", f"the largest is {largest:.3g} times"


def times_text(ratio: float, glyphs: Glyphs) -> str:
    """A ratio in at most six characters, such as "4.2×"."""
    if ratio < 999.5:
        return f"{ratio:.3g}{glyphs.times}"
    return f"{ratio:.0f}{glyphs.times}" if ratio < 99_999.5 else f"{ratio:.0e}{glyphs.times}"


def percent(share: float) -> str:
    """A share in per cent, with one decimal place below 10 %."""
    value = 100 * share
    if abs(value) < 0.05:
        return "0%"
    if 99.5 <= value < 100:
        return "99%"  # all of it is nothing but all of it
    return f"{value:.1f}%" if abs(value) < 9.95 else f"{value:.0f}%"
