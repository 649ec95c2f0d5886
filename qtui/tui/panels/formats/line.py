"""Which numbers of which formats lie around a value: the data of the panel's number line."""

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

# Unzoomed, the line shows about this many steps of the chosen format.
STEPS_SHOWN = 12
ZOOM_RANGE = range(-6, 13)

# What the chosen format is compared with, as far as there is room; then the others.
FIRST_COMPANIONS = ("fp32", "bf16", "fp16", "e4m3", "e5m2", "e2m1", "int8", "tf32", "e3m2", "e2m3")


@dataclass(frozen=True)
class LineWindow:
    """A stretch of the real line cut into `cells` equal cells of `step`; `centre` lies in the
    middle of cell `middle`, where the chosen format's numbers are `spacing` apart."""

    centre: Fraction
    spacing: Fraction
    step: Fraction
    cells: int

    @property
    def middle(self) -> int:
        return self.cells // 2

    def edge(self, cell: int) -> Fraction:
        """The lower end of a cell, not part of it; the upper end is."""
        return self.centre + (cell - self.middle - Fraction(1, 2)) * self.step

    def cell_of(self, value: Fraction) -> int | None:
        """The cell a value falls into, None outside."""
        cell = math.ceil((value - self.edge(0)) / self.step) - 1
        return cell if 0 <= cell < self.cells else None


def window_around(fmt: Format, value: Exact, cells: int, zoom: int) -> LineWindow:
    """About STEPS_SHOWN steps of `fmt` around `value`, times 2^zoom.

    Where the value is out of the format's range, the line is centred on the end of the range.
    """
    inside = min(max(value, fmt.min), fmt.max)
    nearest = decode(fmt, encode(fmt, inside, Rounding.NEAREST_EVEN, saturate=True))
    centre = Fraction(nearest.value)
    spacing = ulp(fmt, nearest.code)
    assert spacing is not None
    if is_finite(value) and abs(Fraction(value) - centre) <= spacing:
        centre = Fraction(value)
    # A power of two, so that formats with more mantissa bits fall on cells evenly too.
    wanted = max(1, cells // STEPS_SHOWN)
    cells_a_step = 1 << ((wanted + wanted // 2).bit_length() - 1)
    return LineWindow(centre, spacing, spacing * Fraction(2) ** zoom / cells_a_step, cells)


def numbers_up_to(fmt: Format, value: Fraction) -> int:
    """An index of the largest finite number of `fmt` that is <= `value`: they are counted from
    zero up and down, so a difference of two indices is how many numbers lie between."""
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
    """The number that `numbers_up_to` counts as `index`; both zeros are index 0."""
    code = index if index >= 0 else fmt.sign_bit | -index
    if not isinstance(fmt, FloatFormat):
        code = index & (fmt.code_count - 1)
    return Fraction(decode(fmt, code).value)


def count_by_cell(fmt: Format, window: LineWindow) -> tuple[int, ...]:
    """How many numbers of `fmt` each cell holds; cells with FULL or more may all say FULL."""
    cells = window.cells
    first, last = numbers_up_to(fmt, window.edge(0)), numbers_up_to(fmt, window.edge(cells))
    if last - first <= cells // 4:  # few: cheaper to place each than to ask every edge
        counts = [0] * cells
        for index in range(first + 1, last + 1):
            cell = window.cell_of(number_at(fmt, index))
            assert cell is not None
            counts[cell] += 1
        return tuple(counts)
    # Numbers thin out away from zero, so the ends of the window are its thinnest cells.
    low, high = numbers_up_to(fmt, window.edge(1)), numbers_up_to(fmt, window.edge(cells - 1))
    if min(low - first, last - high) >= FULL:
        return (FULL,) * cells
    edges = accumulate(repeat(window.step, cells), initial=window.edge(0))
    indices = [numbers_up_to(fmt, edge) for edge in edges]
    return tuple(b - a for a, b in pairwise(indices))


def track(fmt: Format, window: LineWindow, represented: Exact | None) -> FormatTrack:
    """How many numbers of `fmt` each cell holds, and where the represented value is."""
    counts = count_by_cell(fmt, window)
    at = None
    if represented is not None and is_finite(represented):
        at = window.cell_of(Fraction(represented))
    note = ""
    if not any(counts):
        nearest = "has no code for it" if represented is None else "makes it "
        note = nearest + ("" if represented is None else format_rounded(represented, 4))
    return FormatTrack(fmt.title, counts, at, note)


def companions(chosen: Format, count: int) -> list[Format]:
    """The formats drawn under the chosen one."""
    names = [*FIRST_COMPANIONS, *(name for name in FORMATS if name not in FIRST_COMPANIONS)]
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
) -> Ruler | None:
    """The line around `value`; None for NaN, which is nowhere on it."""
    if isinstance(value, float) and math.isnan(value):
        return None
    window = window_around(chosen, value, cells, zoom)
    tracks = [track(chosen, window, represented)]
    tracks += [track(fmt, window, shown) for fmt, shown in others]
    title = f"a step of {chosen.title} is {format_exact(window.spacing, 6)}"
    return Ruler(
        title=title,
        tracks=tuple(tracks),
        value_at=window.cell_of(Fraction(value)) if is_finite(value) else None,
        span=_span(window, interval),
        left=format_rounded(window.edge(0), 4),
        right=format_rounded(window.edge(window.cells), 4),
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
