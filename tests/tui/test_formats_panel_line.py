"""The number line, compared with every number of the formats, counted one by one."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtui.screen.widgets.number_line import FULL, density_level
from qtui.tui.panels.formats.line import (
    LineWindow,
    count_by_cell,
    number_at,
    numbers_up_to,
    ruler,
    window_around,
)
from qtui_core.formats import (
    E4M3,
    FORMATS,
    FP32,
    Rounding,
    decode,
    next_code_up,
    rounding_interval,
)

SMALL = [fmt for fmt in FORMATS.values() if fmt.bits <= 8]


def finite_values(fmt) -> list[Fraction]:
    values = set()
    for code in range(fmt.code_count):
        value = decode(fmt, code).value
        if not isinstance(value, float) or value == 0:
            values.add(Fraction(value))
    return sorted(values)


@pytest.mark.parametrize("fmt", SMALL, ids=lambda f: f.name)
def test_indices_count_the_numbers(fmt) -> None:
    values = finite_values(fmt)
    indices = [numbers_up_to(fmt, value) for value in values]
    assert indices == list(range(indices[0], indices[0] + len(values)))
    assert [number_at(fmt, index) for index in indices] == values
    for low, high in pairwise(values):
        assert numbers_up_to(fmt, (low + high) / 2) == numbers_up_to(fmt, low)
    assert numbers_up_to(fmt, values[-1] * 1000 + 1) == indices[-1]
    assert numbers_up_to(fmt, values[0] - 1000) == indices[0] - 1


@given(
    st.sampled_from(SMALL),
    st.fractions(-500, 500),
    st.integers(-12, 8),
    st.integers(8, 150),
)
def test_cells_hold_what_counting_finds(fmt, centre: Fraction, exponent: int, cells: int) -> None:
    window = LineWindow(centre, Fraction(1), Fraction(2) ** exponent, cells)
    counted = [0] * cells
    for value in finite_values(fmt):
        cell = window.cell_of(value)
        if cell is not None:
            assert window.edge(cell) < value <= window.edge(cell + 1)
            counted[cell] += 1
    shown = count_by_cell(fmt, window)
    assert [min(a, FULL) for a in shown] == [min(b, FULL) for b in counted]


@pytest.mark.parametrize("fmt", list(FORMATS.values()), ids=lambda f: f.name)
@pytest.mark.parametrize(
    "value",
    [Fraction(1, 10), Fraction(0), Fraction(10**9), Fraction(-7, 3), math.inf, -math.inf, -0.0],
    ids=str,
)
def test_every_format_can_be_the_ruler_of_every_value(fmt, value) -> None:
    others = [(other, Fraction(1)) for other in FORMATS.values()]
    drawn = ruler(fmt, value, None, None, others, cells=60, zoom=0)
    assert len(drawn.tracks) == 1 + len(FORMATS)
    assert {len(track.counts) for track in drawn.tracks} == {60}


def test_nan_has_no_place_on_the_line() -> None:
    assert ruler(E4M3, math.nan, None, None, [], cells=60, zoom=0) is None


def test_numbers_of_the_chosen_format_are_evenly_spaced_in_their_binade() -> None:
    window = window_around(E4M3, Fraction(1.5), 96, 0)
    counts = count_by_cell(E4M3, window)
    assert counts[window.middle] == 1
    assert sum(counts[window.middle - 31 : window.middle + 32]) == 7
    assert count_by_cell(FP32, window) == (FULL,) * 96


def test_the_span_is_the_rounding_interval() -> None:
    code = 0x1D
    represented = decode(E4M3, code).value
    interval = rounding_interval(E4M3, code, Rounding.NEAREST_EVEN)
    drawn = ruler(E4M3, Fraction(1, 10), represented, interval, [], cells=96, zoom=0)
    at = drawn.tracks[0].at
    above = decode(E4M3, next_code_up(E4M3, code)).value
    gap = (above - represented) / window_around(E4M3, Fraction(1, 10), 96, 0).step
    assert drawn.span.end - drawn.span.start == pytest.approx(gap, abs=1)
    assert drawn.span.start <= drawn.value_at <= drawn.span.end
    assert drawn.span.start < at < drawn.span.end
    assert not drawn.span.start_closed  # odd code: ties go to the even neighbours
    assert not drawn.span.end_closed


def test_density_grows_with_every_doubling() -> None:
    assert [density_level(n) for n in (2, 3, 4, 8, 16, 32, 64, 127)] == [1, 1, 2, 3, 4, 5, 6, 6]
    assert density_level(FULL) == density_level(10**9) == 7
