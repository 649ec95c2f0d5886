"""From a curve to cells, with a hand-made curve whose numbers can be counted."""

from __future__ import annotations

import pytest

from qtui.screen.curve.chart import EMPTY, WHOLE, Cell, Chart, cells_of, make_chart
from qtui.screen.curve.legend import PARTS
from qtui.screen.curve.picture import AXIS, CurvePicture
from qtui.screen.depth import Depth
from qtui.screen.widgets.drawing import Drawing
from qtui_core.memory.replay.record import Component
from qtui_core.memory.replay.timeline import PLACES, Span, StackedCurve

MIB = 1 << 20


def curve(*totals: int, bands: tuple[Span, ...] | None = None) -> StackedCurve:
    """Weights of 100 MiB under activations; one point an event."""
    weights = tuple(100 * MIB for _ in totals)
    rows = [(0,) * len(totals)] * len(PARTS)
    rows[0] = weights
    rows[PLACES[Component.ACTIVATIONS.value]] = tuple(t * MIB - 100 * MIB for t in totals)
    bands = bands or (Span("forward", 0, len(totals)),)
    return StackedCurve(tuple(range(len(totals))), tuple(rows), bands)


def test_every_component_is_in_one_part() -> None:
    assert set(PLACES) == {component.value for component in Component}
    assert sum(len(part.components) for part in PARTS) == len(Component)
    assert len(PARTS) <= 7
    assert len({part.letter for part in PARTS}) == len(PARTS)


def test_no_peak_is_lost() -> None:
    """One event of a thousand holds the most; it must be visible in one of forty columns."""
    totals = [150] * 1000
    totals[637] = 900
    chart = make_chart(curve(*totals), 40)
    heights = [sum(column) for column in chart.columns]
    assert max(heights) == chart.top == 900 * MIB
    assert heights.index(900 * MIB) == chart.peak == 637 * 40 // 1000
    assert heights.count(900 * MIB) == 1


def test_fewer_points_than_columns_fill_all_of_them() -> None:
    chart = make_chart(curve(200, 300), 30)
    assert [sum(column) // MIB for column in chart.columns] == [200] * 15 + [300] * 15


def test_a_phase_of_few_events_is_seen() -> None:
    bands = (Span("forward", 0, 990), Span("loss", 990, 991), Span("backward", 991, 1000))
    chart = make_chart(curve(*[200] * 1000, bands=bands), 60)
    assert [band.name for band in chart.bands] == ["forward", "loss", "backward"]
    assert all(band.stop - band.start >= 6 for band in chart.bands)
    assert chart.bands[0].start == 0
    assert chart.bands[-1].stop == 60
    assert [b.start for b in chart.bands[1:]] == [b.stop for b in chart.bands[:-1]]


@pytest.mark.parametrize("width", [8, 9, 37, 200])
def test_many_phases_share_any_width(width: int) -> None:
    """Accumulation over 64 micro batches."""
    bands = tuple(Span("forward", 10 * at, 10 * at + 10) for at in range(64))
    chart = make_chart(curve(*[200] * 640, bands=bands), width)
    assert len(chart.columns) == width
    assert chart.bands[-1].stop == width
    assert all(sum(column) == 200 * MIB for column in chart.columns)


def test_the_curve_before_lies_phase_on_phase() -> None:
    """With twice as many events before, phases still lie over each other."""
    now = curve(*[300] * 50, *[400] * 50, bands=(Span("forward", 0, 50), Span("loss", 50, 100)))
    then = curve(*[500] * 20, *[600] * 180, bands=(Span("forward", 0, 20), Span("loss", 20, 200)))
    chart = make_chart(now, 40, before=then)
    turn = chart.bands[1].start
    assert set(chart.ghost[:turn]) == {500 * MIB}
    assert set(chart.ghost[turn:]) == {600 * MIB}
    assert chart.top == 600 * MIB


def test_a_phase_that_was_not_there_has_no_past() -> None:
    then = curve(*[500] * 10)
    now = curve(*[300] * 20, bands=(Span("forward", 0, 10), Span("backward", 10, 20)))
    chart = make_chart(now, 40, before=then)
    assert set(chart.ghost[chart.bands[1].start :]) == {0}


def test_the_memory_of_a_gpu_is_drawn_where_it_is_near() -> None:
    far = make_chart(curve(200), 20, capacity=1000 * MIB)
    assert (far.capacity, far.top) == (None, 200 * MIB)
    near = make_chart(curve(700), 20, capacity=1000 * MIB)
    assert near.capacity == 1000 * MIB
    assert near.top > 1000 * MIB
    above = make_chart(curve(1500), 20, capacity=1000 * MIB)
    assert (above.capacity, above.top) == (1000 * MIB, 1500 * MIB)


def column(**parts: int) -> list[int]:
    letters = [part.letter for part in PARTS]
    return [parts.get(letter, 0) for letter in letters]


def test_cells_of_whole_parts() -> None:
    cells = cells_of(column(W=20, A=10), 4, 40)
    assert cells == [WHOLE[0], WHOLE[0], WHOLE[4], EMPTY]


def test_a_cell_is_cut_where_a_part_ends() -> None:
    cells = cells_of(column(W=15, A=10), 4, 40)
    assert cells[:3] == [WHOLE[0], Cell(0, 4, 4), Cell(4, -1, 4)]


def test_a_little_is_still_seen() -> None:
    assert cells_of(column(W=1), 4, 4000)[0] == Cell(0, -1, 1)


def test_nothing_is_nothing() -> None:
    assert cells_of(column(), 5, 1) == [EMPTY] * 5


def test_filled_cells_rise_with_bytes() -> None:
    """The filled height, in eighths of a cell, is that of the bytes to an eighth."""
    for nbytes in range(0, 4001, 7):
        cells = cells_of(column(W=nbytes // 2, G=nbytes - nbytes // 2), 10, 4000)
        eighths = sum(8 if cell.upper >= 0 else cell.eighths for cell in cells)
        exact = 80 * nbytes / 4000
        assert abs(eighths - exact) < 1


@pytest.mark.parametrize("peak", range(24))
@pytest.mark.parametrize("columns", [8, 12, 19, 24])
def test_the_mark_of_the_peak_stands_over_it(
    monkeypatch: pytest.MonkeyPatch, columns: int, peak: int
) -> None:
    """With as much of its text as there is room for, beside it and within the picture."""
    if peak >= columns:
        return
    picture = CurvePicture(Drawing(Depth.NONE))
    monkeypatch.setattr(picture, "_style", lambda name: None)  # there is no app to ask
    empty = (0,) * len(PARTS)
    full = (17 << 30, *empty[1:])
    drawn = tuple(full if at == peak else empty for at in range(columns))
    ((at, text, _),) = picture._peak_row(Chart(drawn, (), (), 17 << 30, peak))
    mark = picture.drawing.glyphs.marker_down
    assert at + text.index(mark) == AXIS + peak
    assert at >= AXIS
    assert at + len(text) <= AXIS + columns
    assert text == mark or "17 GiB" in text
