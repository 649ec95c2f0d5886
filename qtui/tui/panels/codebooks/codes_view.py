"""How often each scheme uses each code, as a histogram, with the bits and errors below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from qtui.engine.answers.codes import MOST_BARS, Bar, CodeColumn
from qtui.report.numbers import format_decibels
from qtui.report.pictures.glyphs import Glyphs
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, right
from qtui.tui.panels.codebooks.shown import CodebooksShown
from qtui.tui.panels.codebooks.view import CodebooksView
from qtui_core.dataclass import dataclass
from qtui_core.quantities import format_count

LABELS = 11
GAP = 1
NOTHING = "–"
#: Differences that count as none: in bits per parameter, and in dB.
SAME_BITS = 0.02
SAME_DB = 0.05
#: Lines for the code under the cursor, below the numbers.
DETAIL = 1
#: Below this height only these rows of numbers are shown: entropy, unused codes, bits per
#: parameter, SQNR, and its distance to the best.
SHORT, BRIEF = 15, (0, 2, 3, 5, 7)
EIGHTHS = 8
#: The least cells of a horizontal bar, and of a column that has one.
LEAST_BAR = 6
BARRED = 8 + LEAST_BAR + 6
#: Cells of a count, and the least height of vertical bars above a table.
COUNT, LEAST_STANDING = 7, 6


class CodesView(CodebooksView):
    """How often each scheme uses its codes."""

    TITLE = "Codes"
    HELP = """\
**Codes**: how often each code is used, in ascending order of the levels. Dots, or lines across the
bars, mark how often a Gaussian tensor of this shape would use it. If the *entropy* is below the
bits of a code, some codes are rare. *never* marks codes that no element can get: the second zero of
FP4, the lowest code of restricted integers.

"""

    def draw(self, shown: CodebooksShown, canvas: Canvas) -> list[TextLine]:
        """A column for each scheme: as many as fit, including the chosen one."""
        first, count = _visible(shown, canvas.width)
        columns = shown.columns[first : first + count]
        if not columns:
            return []
        width = (canvas.width - LABELS + GAP) // count
        starts = [LABELS + at * width for at in range(count)]
        chosen = min(shown.chosen, len(shown.columns) - 1) - first
        side = SideBySide(
            columns, starts, width - GAP, first, (chosen, _cursor(shown)), canvas.glyphs
        )
        lines: list[list[Put]] = [_names(side)]
        numbers = _numbers(shown, side)
        if canvas.height < SHORT:
            numbers = [numbers[at] for at in BRIEF]
        room = canvas.height - 1 - len(numbers) - DETAIL
        tabled = room >= MOST_BARS + LEAST_STANDING + 1
        barred = not tabled and room >= MOST_BARS and side.inner >= BARRED
        rows = _rows(side, barred) if tabled or barred else []
        if not barred:
            lines += _standing(side, max(2, room - 1 - len(rows)))
        lines += [*rows, *numbers, _detail(shown, canvas)]
        more = len(shown.columns) - count
        if more:
            lines[0].insert(0, Put(0, f"+{more} more", "quiet"))
        return [*lines]


@dataclass(frozen=True)
class SideBySide:
    """The layout of the schemes that are drawn.

    Attributes:
        starts: the first cell of each column.
        inner: the width of every column in cells.
        first: the index of the first drawn column among all.
        cursor: the column, as an index of `columns`, and the bar under the cursor.
    """

    columns: Sequence[CodeColumn]
    starts: Sequence[int]
    inner: int
    first: int
    cursor: tuple[int, int]
    glyphs: Glyphs


def _visible(shown: CodebooksShown, width: int) -> tuple[int, int]:
    """The index of the first column that is drawn, and the number of columns."""
    count = max(1, min(len(shown.columns), (width - LABELS + GAP) // (MOST_BARS + GAP)))
    chosen = min(shown.chosen, max(0, len(shown.columns) - 1))
    first = min(max(0, chosen - count + 1), max(0, len(shown.columns) - count))
    return first, count


def _cursor(shown: CodebooksShown) -> int:
    column = shown.column
    return 0 if column is None else min(shown.code, len(column.bars) - 1)


def _largest(bars: Sequence[Bar]) -> float:
    return max((max(bar.share, bar.expected or 0.0) for bar in bars), default=0.0) or 1.0


def _names(side: SideBySide) -> list[Put]:
    line = []
    for at, column in enumerate(side.columns):
        here = at == side.cursor[0]
        text = side.glyphs.pointer * here + column.name
        text = shortened(text, side.inner, side.glyphs.ellipsis)
        line.append(Put(side.starts[at], text, "heading" if here else "value"))
    return line


def _rows(side: SideBySide, barred: bool) -> list[list[Put]]:
    """A line for each code, with a horizontal bar if `barred`."""
    top = max(_largest(each.bars) for each in side.columns) if barred else None
    return [
        [
            put
            for at, each in enumerate(side.columns)
            if row < len(each.bars)
            for put in _row_bar(side, each.bars[row], (at, row), top)
        ]
        for row in range(max(len(each.bars) for each in side.columns))
    ]


def _row_bar(side: SideBySide, bar: Bar, place: tuple[int, int], top: float | None) -> list[Put]:
    """The line of a code: its level, and its share of the elements with their number if that fits.
    Unless `top` is None also a bar, with a mark where a Gaussian tensor's bar would end."""
    at, row = place
    start, inner = side.starts[at], side.inner
    puts = [Put(start, f"{_level_text(bar):>7}", "cursor" if place == side.cursor else "label")]
    share = f"{100 * bar.share:.1f}%"
    counted = inner >= (8 + 6 if top is None else BARRED) + COUNT
    if counted:
        share = f"{format_count(bar.count).replace(' ', '')} {share:>6}"
    room = inner - 8 - 6 - (COUNT if counted else 0)
    if top is not None:
        length = round(bar.share / top * room)
        length = max(length, 1) if bar.count else 0
        puts.append(Put(start + 8, side.glyphs.full * length, "bar"))
        if bar.expected is not None:
            end = min(room - 1, round(bar.expected / top * room))
            puts.append(Put(start + 8 + end, side.glyphs.vertical, "expected"))
    nothing = "never" if bar.never else "unused"
    tone: Tone = "value" if bar.count else "quiet" if bar.never else "warning"
    pick = (side.first + at, row)
    puts.append(right(start + inner, share if bar.count else nothing, tone, pick))
    return puts


def _level_text(bar: Bar) -> str:
    level = bar.levels[0]
    if not math.isfinite(level):
        return "NaN" if math.isnan(level) else "inf"
    if level == 0:
        return "-0" if math.copysign(1, level) < 0 else "0"
    return f"{level:+.3f}"


def _standing(side: SideBySide, height: int) -> list[list[Put]]:
    """Vertical bars, with dots where a Gaussian tensor's bars would end. A click above a bar also
    chooses it."""
    glyphs = side.glyphs
    lines: list[list[Put]] = [[] for _ in range(height + 1)]
    for at, drawn in enumerate(side.columns):
        each = drawn.bars
        wide = max(1, min(3, side.inner // max(1, len(each))))
        top = _largest(each)
        for place, bar in enumerate(each):
            column = side.starts[at] + place * wide
            eighths = round(bar.share / top * height * EIGHTHS)
            eighths = max(1, eighths) if bar.count else 0
            for y in range(height):
                fill = max(0, min(EIGHTHS, eighths - (height - 1 - y) * EIGHTHS))
                text = (glyphs.eighths[fill] if fill else " ") * wide
                lines[y].append(Put(column, text, "bar", (side.first + at, place)))
            if bar.expected is not None:
                y = height - 1 - min(height - 1, int(bar.expected / top * height))
                if eighths <= (height - 1 - y) * EIGHTHS:
                    lines[y].append(Put(column, glyphs.dot * wide, "expected"))
            mark, tone = _foot(bar, (at, place) == side.cursor, glyphs)
            lines[height].append(Put(column, mark * wide, tone, (side.first + at, place)))
    lines[0].insert(0, Put(0, "codes", "label"))
    if any(bar.expected is not None for each in side.columns for bar in each.bars):
        lines[1].insert(0, Put(0, f"{glyphs.dot} Gaussian", "expected"))
    lines[height].insert(0, Put(0, "ascending", "quiet"))
    return lines


def _foot(bar: Bar, here: bool, glyphs: Glyphs) -> tuple[str, Tone]:
    """The sign below a bar: the cursor, a ring for an unused code, a blank for a code that no
    element can get."""
    if here:
        return glyphs.marker, "cursor"
    if bar.count:
        return glyphs.baseline, "quiet"
    return (" ", "quiet") if bar.never else (glyphs.off, "warning")


def _numbers(shown: CodebooksShown, side: SideBySide) -> list[list[Put]]:
    best = max((c.error.sqnr_db or -math.inf for c in shown.columns), default=0.0)
    first = shown.columns[0].error.bits_per_parameter

    def row(
        label: str, text: Callable[[CodeColumn], str], tone: Callable[[CodeColumn], Tone]
    ) -> list[Put]:
        puts = [Put(0, label, "label")]
        for start, column in zip(side.starts, side.columns, strict=True):
            puts.append(Put(start, shortened(text(column), side.inner), tone(column)))
        return puts

    def plain(tone: Tone = "value") -> Callable[[CodeColumn], Tone]:
        return lambda _: tone

    def is_best(column: CodeColumn) -> bool:
        return column.error.sqnr_db is not None and best - column.error.sqnr_db < SAME_DB

    def behind(column: CodeColumn) -> str:
        if not column.total:
            return NOTHING  # no element is a finite number
        if column.error.sqnr_db is None:
            return "no error"
        return "best" if is_best(column) else f"{column.error.sqnr_db - best:.1f} dB"

    def is_equal(column: CodeColumn) -> bool:
        return abs(column.error.bits_per_parameter - first) <= SAME_BITS

    return [
        row("entropy", lambda c: f"{_optional(c.entropy_bits)} of {c.scheme.bits} bits", plain()),
        row("  Gaussian", lambda c: _optional(c.expected_entropy_bits), plain("quiet")),
        row("unused", _unused_text, lambda c: "warning" if c.unused else "value"),
        row("bits/param", lambda c: f"{c.error.bits_per_parameter:.4f}", plain()),
        row(
            "  to first",
            lambda c: "equal" if is_equal(c) else f"{c.error.bits_per_parameter - first:+.4f}",
            lambda c: "value" if is_equal(c) else "warning",
        ),
        row("SQNR dB", lambda c: format_decibels(c.error.sqnr_db), plain()),
        row("  Gaussian", lambda c: format_decibels(c.error.gaussian_sqnr_db), plain("quiet")),
        row("to best", behind, lambda c: "best" if is_best(c) else "value"),
    ]


def _unused_text(column: CodeColumn) -> str:
    """The number of unused codes, and separately of those that no element can get."""
    never = len(column.unreachable)
    text = str(len(column.unused)) if column.unused else "none"
    return f"{text}, {never} never" if never else text


def _optional(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _detail(shown: CodebooksShown, canvas: Canvas) -> list[Put]:
    """The code under the cursor, in words."""
    column = shown.column
    if column is None or not column.bars:
        return []
    return [Put(0, shortened(code_text(column, _cursor(shown)), canvas.width), "value")]


def code_text(column: CodeColumn, index: int) -> str:
    """A sentence about a bar, which is a code or a run of codes: bit pattern, level, number of
    elements, and the share of a Gaussian tensor."""
    bar = column.bars[index]
    if len(bar.codes) == 1:
        what = f"code {bar.codes[0]:0{column.scheme.bits}b}, level {_level_text(bar)}"
    else:
        finite = [level for level in bar.levels if math.isfinite(level)]
        span = f"{finite[0]:+.3f} to {finite[-1]:+.3f}" if finite else "NaN or infinite"
        what = f"{len(bar.codes)} codes, levels {span}"
    text = f"{column.name} {what}: {bar.count:,} elements, {100 * bar.share:.2f}%"
    if bar.never:
        return f"{text}: no element can get it"
    if bar.expected is not None:
        text += f" (Gaussian {100 * bar.expected:.2f}%)"
    return text
