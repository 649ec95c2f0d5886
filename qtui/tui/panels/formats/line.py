"""The numbers of several formats around a value: the data of the panel's number line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise, repeat

from qtui.screen.widgets.number_line import FULL, CellSpan, FormatTrack, Ruler
from qtui_core.dataclass import dataclass
from qtui_core.formats import FORMATS, Exact, FloatFormat, Format, Interval, decode, encode, ulp
from qtui_core.formats.decimals import format_exact, format_rounded
from qtui_core.formats.rounding import Rounding
from qtui_core.formats.scalar import is_finite, unbounded_code
from qtui_core.formats.table import FormatRow

# Unzoomed, the line shows about this many steps of the chosen format.
STEPS_SHOWN = 12
ZOOM_RANGE = range(-6, 13)

# The formats drawn below the chosen one, as many as fit; after these come the others.
FIRST_COMPANIONS = ("fp32", "bf16", "fp16", "e4m3", "e5m2", "e2m1", "int8", "tf32", "e3m2", "e2m3")


@dataclass(frozen=True)
class LineWindow:
    """A part of the real line in `cells` equal cells of width `step`. `centre` lies in the middle
    of cell `middle`; there the numbers of the chosen format are `spacing` apart."""

    centre: Fraction
    spacing: Fraction
    step: Fraction
    cells: int

    @property
    def middle(self) -> int:
        return self.cells // 2

    def edge(self, cell: int) -> Fraction:
        """The lower end of a cell. A cell contains its upper end but not its lower."""
        return self.centre + (cell - self.middle - Fraction(1, 2)) * self.step

    def cell_of(self, value: Fraction) -> int | None:
        """The cell that contains a value; None outside the window."""
        cell = math.ceil((value - self.edge(0)) / self.step) - 1
        return cell if 0 <= cell < self.cells else None


def window_around(fmt: Format, value: Exact, cells: int, zoom: int) -> LineWindow:
    """About STEPS_SHOWN steps of `fmt` around `value`, times 2^zoom.

    If the value is outside the range of `fmt`, the line is centred on the end of the range.
    """
    inside = min(max(value, fmt.min), fmt.max)
    nearest = decode(fmt, encode(fmt, inside, Rounding.NEAREST_EVEN, saturate=True))
    centre = Fraction(nearest.value)
    spacing = ulp(fmt, nearest.code)
    assert spacing is not None
    if is_finite(value) and abs(Fraction(value) - centre) <= spacing:
        centre = Fraction(value)
    # A power of two, so that the numbers of formats with more mantissa bits also fit the cells.
    wanted = max(1, cells // STEPS_SHOWN)
    cells_a_step = 1 << ((wanted + wanted // 2).bit_length() - 1)
    return LineWindow(centre, spacing, spacing * Fraction(2) ** zoom / cells_a_step, cells)


def numbers_up_to(fmt: Format, value: Fraction) -> int:
    """The index of the largest finite number of `fmt` that is <= `value`. Zero has index 0, and the
    next larger number has the next index, so that a difference of indices counts numbers."""
    if not isinstance(fmt, FloatFormat):
        steps = value / fmt.step
        count = steps.numerator // steps.denominator
        return min(max(count, int(fmt.min / fmt.step) - 1), int(fmt.max / fmt.step))
    lowest = -(fmt.max_code + 1) if fmt.signed else (0 if fmt.has_zero else -1)
    if value == 0:
        return 0 if fmt.has_zero else -1
    code, fraction = unbounded_code(fmt, abs(value))
    if value > 0:
        return min(max(code, 0 if fmt.has_zero else -1), fmt.max_code)
    return max(lowest, -code - (1 if fraction else 0))


def number_at(fmt: Format, index: int) -> Fraction:
    """The number with an index of `numbers_up_to`."""
    code = index if index >= 0 else fmt.sign_bit | -index
    if not isinstance(fmt, FloatFormat):
        code = index & (fmt.code_count - 1)
    return Fraction(decode(fmt, code).value)


def count_by_cell(fmt: Format, window: LineWindow) -> tuple[int, ...]:
    """The count of numbers of `fmt` in each cell; a count of FULL may stand for more."""
    cells = window.cells
    first, last = numbers_up_to(fmt, window.edge(0)), numbers_up_to(fmt, window.edge(cells))
    if last - first <= cells // 4:  # few: placing each is faster than counting up to every edge
        counts = [0] * cells
        for index in range(first + 1, last + 1):
            cell = window.cell_of(number_at(fmt, index))
            assert cell is not None
            counts[cell] += 1
        return tuple(counts)
    # Numbers are further apart away from zero, so an end of the window has the fewest in a cell.
    low, high = numbers_up_to(fmt, window.edge(1)), numbers_up_to(fmt, window.edge(cells - 1))
    if min(low - first, last - high) >= FULL:
        return (FULL,) * cells
    edges = accumulate(repeat(window.step, cells), initial=window.edge(0))
    indices = [numbers_up_to(fmt, edge) for edge in edges]
    return tuple(b - a for a, b in pairwise(indices))


def track(fmt: Format, window: LineWindow, represented: Exact | None) -> FormatTrack:
    """The track of a format: the count of its numbers in each cell, and the cell of the
    represented value."""
    counts = count_by_cell(fmt, window)
    at = None
    if represented is not None and is_finite(represented):
        at = window.cell_of(Fraction(represented))
    note = ""
    if not any(counts):
        nearest = "has no code for it" if represented is None else "makes it "
        note = nearest + ("" if represented is None else format_rounded(represented, 4))
    return FormatTrack(fmt.title, counts, at, note)


def companions(chosen: Format, pinned: Format | None, count: int) -> list[Format]:
    """The formats drawn under the chosen one; the pinned one is the first of them."""
    first = FIRST_COMPANIONS if pinned is None else (pinned.name, *FIRST_COMPANIONS)
    names = dict.fromkeys((*first, *FORMATS))
    return [FORMATS[name] for name in names if name != chosen.name][: max(0, count)]


def ruler(
    chosen: Format,
    value: Exact,
    represented: Exact | None,
    interval: Interval | None,
    others: Sequence[tuple[Format, Exact | None]],
    *,
    cells: int,
    zoom: int,
    pinned: FormatRow | None = None,
) -> Ruler | None:
    """The number line around `value`; None for NaN. What `pinned` makes of the value is marked on
    the track of the chosen format."""
    if isinstance(value, float) and math.isnan(value):
        return None
    window = window_around(chosen, value, cells, zoom)
    tracks = [track(chosen, window, represented)]
    tracks += [track(fmt, window, shown) for fmt, shown in others]
    title = f"a step of {chosen.title} is {format_exact(window.spacing, 6)}"
    pinned_at = None
    if pinned is not None and pinned.format is not chosen:
        if pinned.value is not None and is_finite(pinned.value):
            pinned_at = window.cell_of(Fraction(pinned.value))
        title += f" · P is {pinned.format.title}"
        if pinned_at is None:
            became = "no code" if pinned.value is None else format_rounded(pinned.value, 4)
            title += f", {became}"
    return Ruler(
        title=title,
        tracks=tuple(tracks),
        value_at=window.cell_of(Fraction(value)) if is_finite(value) else None,
        span=_span(window, interval),
        left=format_rounded(window.edge(0), 4),
        right=format_rounded(window.edge(window.cells), 4),
        pinned_at=pinned_at,
    )


def _span(window: LineWindow, interval: Interval | None) -> CellSpan | None:
    if interval is None or interval.is_empty:
        return None
    low, high = window.edge(0), window.edge(window.cells)
    if interval.upper <= low or interval.lower >= high:
        return None
    start = window.cell_of(Fraction(interval.lower)) if interval.lower > low else None
    end = window.cell_of(Fraction(interval.upper)) if interval.upper <= high else None
    return CellSpan(start, end, interval.lower_closed, interval.upper_closed)
