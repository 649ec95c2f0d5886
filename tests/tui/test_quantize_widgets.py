"""The drawn widgets of the Quantize panel, without a screen where that is enough."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from every import every
from textual.app import App, ComposeResult
from textual.strip import Strip
from told_truly import faults_of

from qtui.engine.answers.tensors import TensorEntry
from qtui.report.pictures.cells import Tone
from qtui.screen.depth import Depth
from qtui.screen.tensors.list import TensorList, shorten
from qtui.screen.widgets.axis import column_labels, row_labels
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.heatmap.grid import NOTHING, HeatGrid, HeatScale
from qtui.screen.widgets.heatmap.ramps import (
    CIVIDIS_256,
    CIVIDIS_STOPS,
    EIGHT_BIT_CUBE,
    interpolate,
)
from qtui.screen.widgets.heatmap.widget import Heatmap
from qtui.screen.widgets.histogram import Histogram, HistogramData
from qtui.screen.widgets.text_picture import TextPicture
from qtui.tui.panels.quantize.maps.picture import MapPicture, MapRequest
from qtui.tui.panels.quantize.maps.sentences import map_sentence


def entry(name: str) -> TensorEntry:
    return TensorEntry(name, "F32", (2, 3), 6, 24, True, True, 2)


# Levels


def test_levels_rise_with_the_logarithm() -> None:
    ramp = Drawing(Depth.TRUECOLOR).ramp
    cells = [10.0**-e for e in range(5)]
    scale = HeatScale.of(cells)
    assert (scale.low, scale.high) == (1e-4, 1.0)
    levels = scale.levels(cells, ramp)
    steps = [a - b for a, b in pairwise(levels)]
    assert levels[0] == ramp.levels - 1
    assert levels[-1] == 1
    assert max(steps) - min(steps) <= 1  # equal factors are equal steps


def lightness(triplet: tuple[int, int, int]) -> tuple[float, float, float]:
    """Oklab (Ottosson 2020): lightness and the two opponents, green to red and blue to yellow."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
              for c in (channel / 255 for channel in triplet)]  # fmt: skip
    cones = np.cbrt(
        np.array([[0.41222147, 0.53633254, 0.05144599], [0.21190350, 0.68069955, 0.10739696],
                  [0.08830246, 0.28171884, 0.62997871]]) @ linear
    )  # fmt: skip
    lab = np.array([[0.21045426, 0.79361779, -0.00407205], [1.97799850, -2.42859221, 0.45059371],
                    [0.02590404, 0.78277177, -0.80867577]]) @ cones  # fmt: skip
    return float(lab[0]), float(lab[1]), float(lab[2])


def test_the_256_colour_ramp_rises_evenly_along_the_path_of_cividis() -> None:
    picked = [lightness(EIGHT_BIT_CUBE[number]) for number in CIVIDIS_256]
    steps = [b[0] - a[0] for a, b in pairwise(picked)]
    assert len(picked) >= 10
    assert min(steps) > 0.025
    assert max(steps) < 0.13
    path = [lightness(interpolate(CIVIDIS_STOPS, i / 200)) for i in range(201)]
    for light, a, b in picked:
        _, near_a, near_b = min(path, key=lambda point: abs(point[0] - light))
        assert math.hypot(a - near_a, b - near_b) < 0.11
        assert abs(a - near_a) < 0.06  # no pink, no teal
    yellows = [b for _, _, b in picked]
    assert yellows == sorted(yellows)  # from blue through grey to yellow, and never back


def test_zero_nan_and_infinity_have_levels_of_their_own() -> None:
    ramp = Drawing(Depth.TRUECOLOR).ramp
    cells = [0.0, math.nan, math.inf, 1.0, 0.5]
    assert HeatScale.of(cells).levels(cells, ramp)[:3] == [0, NOTHING, ramp.levels - 1]
    assert HeatScale.of([0.0, math.nan]).levels([0.0, math.nan], ramp) == [0, NOTHING]
    for log in (True, False):
        signed = HeatScale.of([-1.0, 1.0], signed=True, log=log)
        middle = Drawing(Depth.TRUECOLOR).signed_ramp.levels // 2
        levels = signed.levels([-math.inf, 0.0, math.inf], Drawing(Depth.TRUECOLOR).signed_ramp)
        assert levels == [0, middle, 2 * middle]


@pytest.mark.parametrize("depth", list(Depth))
@pytest.mark.parametrize("log", [True, False])
def test_a_signed_scale_is_the_same_on_both_sides_of_zero(depth: Depth, log: bool) -> None:
    ramp = Drawing(depth).signed_ramp
    cells = [x / 8 for x in range(-40, 41)]
    scale = HeatScale.of(cells, signed=True, log=log)
    levels = scale.levels(cells, ramp)
    middle = ramp.levels // 2
    assert levels == sorted(levels)
    assert (levels[0], levels[40], levels[-1]) == (0, middle, ramp.levels - 1)
    assert [level - middle for level in levels] == [middle - level for level in reversed(levels)]
    if log:  # whatever is not zero is told from it, with its sign
        assert levels[39] < middle < levels[41]


def test_the_signs_are_told_by_glyphs_where_colours_do_not() -> None:
    for ascii_only in (False, True):
        ramp = Drawing(Depth.NONE, ascii=ascii_only).signed_ramp
        glyphs = [ramp.glyph(level) for level in range(ramp.levels)]
        assert len(set(glyphs)) == len(glyphs)
        assert "-" in glyphs[: ramp.levels // 2]
        assert "+" in glyphs[ramp.levels // 2 + 1 :]


def test_codes_are_on_a_linear_scale() -> None:
    ramp = Drawing(Depth.TRUECOLOR).ramp
    cells = [float(code) for code in range(16)]
    levels = HeatScale.of(cells, log=False).levels(cells, ramp)
    assert (levels[0], levels[-1]) == (0, ramp.levels - 1)
    assert len(set(levels)) == 16
    assert HeatScale.of([3.0, 3.0], log=False).levels([3.0], ramp) == [ramp.levels - 1]


def test_equal_cells_are_not_painted_as_noise() -> None:
    scale = HeatScale.of([1.0, 1.0001, 0.9999])
    assert scale.high / scale.low >= 4


def test_one_tiny_cell_does_not_stretch_the_scale() -> None:
    scale = HeatScale.of([1e-30, *[1.0] * 200, *[0.1] * 200])
    assert scale.low == pytest.approx(0.1)


def test_the_peak_is_the_first_largest_cell() -> None:
    grid = HeatGrid(4, 6, 2, 3, [0.0, math.nan, 3.0, 3.0, 1.0, 0.0])
    assert grid.peak == (0, 2)
    assert grid.pool == (2, 2)
    assert [grid.first_column(j) for j in range(3)] == [0, 2, 4]
    assert HeatGrid(4, 6, 1, 2, [2.0, -3.0]).peak == (0, 1)


@pytest.mark.parametrize("window", [None, (3, 40, 7, 19), (0, 5, 0, 23)])
def test_every_element_of_a_window_is_in_one_cell(window: tuple[int, int, int, int]) -> None:
    grid = HeatGrid(50, 23, 4, 5, [0.0] * 20, window)
    top, bottom, left, right = grid.area
    for row in range(top, bottom):
        for column in range(left, right):
            i, j = grid.cell_of(row, column)
            assert grid.first_row(i) <= row < grid.first_row(i + 1)
            assert grid.first_column(j) <= column < grid.first_column(j + 1)
    assert grid.cell_of(-5, 10_000) == (0, 4)
    assert (grid.first_row(4), grid.first_column(5)) == (bottom, right)


# Axes


def test_column_labels_never_touch() -> None:
    for width in range(1, 130):
        for at in {0, width // 3, width - 1}:
            text = column_labels(width, at, at * 117, lambda x: x * 117)
            assert len(text) == width
            labels = text.split()
            assert all(label.replace(",", "").isdigit() for label in labels)
            assert "  ".join(labels) in text.replace("   ", "  ") or len(labels) > 1
            if len(f"{at * 117:,}") <= width:
                assert f"{at * 117:,}" in labels


def test_a_column_that_is_wider_than_its_label_is_named_once() -> None:
    assert column_labels(50, 0, 0, lambda x: 0).split() == ["0"]
    assert column_labels(48, 0, 0, lambda x: x // 24).split() == ["0", "1"]


def test_row_labels_are_those_of_their_lines() -> None:
    assert row_labels(11, lambda line: line * 100) == {0: "0", 5: "500", 10: "1,000"}


# Names


@pytest.mark.parametrize(
    ("name", "room", "short"),
    [
        ("lm_head.weight", 20, "lm_head.weight"),
        ("lm_head.weight", 10, "lm_head"),
        ("model.layers.3.mlp.down_proj.weight", 20, "…3.mlp.down_proj"),
        ("model.layers.3.mlp.down_proj.weight", 5, "…3…do"),
        ("model.layers.31.block_sparse_moe.experts.0.w1.weight", 32, "…31…experts.0.w1"),
        ("model.layers.31.block_sparse_moe.experts.7.w1.weight", 12, "…31…7.w1"),
        ("x" * 50, 0, ""),
    ],
)
def test_names_lose_what_tells_least(name: str, room: int, short: str) -> None:
    assert shorten(name, room, "…") == short
    assert len(short) <= room


# Widgets in an app


class Stage(App[None]):
    """One widget, filling a small screen."""

    def __init__(self, widget: Heatmap | Histogram | TensorList) -> None:
        super().__init__()
        self.widget = widget
        widget.styles.height = "1fr"

    def compose(self) -> ComposeResult:
        yield self.widget

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"quiet": "#888888", "faint": "#444444", "cursor": "#333333"}


def text_of(widget: Heatmap | Histogram | TensorList) -> list[str]:
    return [widget.render_line(y).text for y in range(widget.size.height)]


def styled(strip: Strip) -> bool:
    return all(segment.style is not None for segment in strip)


@pytest.mark.parametrize("depth", list(Depth))
async def test_every_segment_has_a_style(depth: Depth) -> None:
    """Textual's NO_COLOR filter fails on a segment without one."""
    heatmap = Heatmap(Drawing(depth))
    async with Stage(heatmap).run_test(size=(60, 16)):
        heatmap.message = "nothing yet"
        assert all(styled(heatmap.render_line(y)) for y in range(16))
        for rows, columns in [(1, 1), (7, 5), (1, 40), (27, 50)]:
            cells = [float(i % 7) for i in range(rows * columns)]
            cells[0] = math.nan
            signed = rows == 7
            scale = HeatScale.of([*cells, -3.0], signed=signed)
            heatmap.show(HeatGrid(rows * 9, columns * 9, rows, columns, cells), None, scale)
            strips = [heatmap.render_line(y) for y in range(16)]
            assert all(map(styled, strips))
            assert all(strip.cell_length == 60 for strip in strips)


@pytest.mark.parametrize("depth", [Depth.TRUECOLOR, Depth.NONE])
@pytest.mark.parametrize("shape", [(30, 50), (30, 90), (3, 5)])
async def test_the_cursor_hides_its_own_cell_only(depth: Depth, shape: tuple[int, int]) -> None:
    """Also in the corners, and where a character stands for two columns."""
    rows, columns = shape
    heatmap = Heatmap(Drawing(depth))
    cells = [float(i % 11) + 1 for i in range(rows * columns)]
    cells[-1] = math.nan

    def picture() -> list[list[tuple[str, object]]]:
        drawn, _ = heatmap.places.drawn(heatmap._grid)  # type: ignore[arg-type]
        height = -(-drawn // heatmap.places.per_line)
        strips = [heatmap.render_line(heatmap.places.area.y + y) for y in range(height)]
        return [[(char, style) for text, style, _ in strip for char in text] for strip in strips]

    async with Stage(heatmap).run_test(size=(60, 20)) as pilot:
        heatmap.show(HeatGrid(rows, columns, rows, columns, cells), (rows // 2, columns // 2))
        await pilot.pause()
        gutter = heatmap.places.gutter
        drawn_rows, drawn_columns = heatmap.places.drawn(heatmap._grid)  # type: ignore[arg-type]
        reference = picture()
        for cell in ((0, 0), (0, columns - 1), (rows - 1, 0), (rows - 1, columns - 1)):
            heatmap.point_at(cell)
            changed = {
                (y, x)
                for y, (line, other) in enumerate(zip(picture(), reference, strict=True))
                for x, (now, before) in enumerate(zip(line, other, strict=True))
                if now != before and x >= gutter
            }
            at = [cell, (rows // 2, columns // 2)]
            lines = heatmap.places.per_line
            allowed = {
                (row // lines, gutter + column)
                for row in range(drawn_rows)
                for column in range(drawn_columns)
                if (row * rows // drawn_rows, column * columns // drawn_columns) in at
            }
            assert changed <= allowed


async def test_a_small_matrix_is_drawn_in_whole_multiples() -> None:
    heatmap = Heatmap(Drawing(Depth.NONE))
    async with Stage(heatmap).run_test(size=(50, 16)):
        heatmap.show(HeatGrid(2, 4, 2, 4, [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]), (0, 1))
        picture = [line[3:].rstrip() for line in text_of(heatmap)[1:-2] if "█" in line]
        widths = {len(run) for line in picture for run in line.split()}
        assert len(widths) == 1


async def test_a_click_moves_the_cursor_and_two_choose() -> None:
    heatmap = Heatmap(Drawing(Depth.TRUECOLOR))
    chosen: list[object] = []

    class Listening(Stage):
        def on_heatmap_cell_chosen(self, message: Heatmap.CellChosen) -> None:
            chosen.append(message)

    async with Listening(heatmap).run_test(size=(60, 20)) as pilot:
        heatmap.show(HeatGrid(30, 50, 30, 50, [1.0] * 1500), (0, 0))
        left, top = heatmap.places.area.x, heatmap.places.area.y
        await pilot.click(heatmap, offset=(left + 7, top + 3))
        assert heatmap.cursor == (6, 7)  # two rows in a line
        await pilot.click(heatmap, offset=(left + 7, top + 3), times=2)
        await pilot.pause()
        assert len(chosen) == 1
        await pilot.click(heatmap, offset=(0, 0))
        assert heatmap.cursor == (6, 7)


async def test_only_lines_of_the_cursor_are_drawn_again() -> None:
    heatmap = Heatmap(Drawing(Depth.TRUECOLOR))
    async with Stage(heatmap).run_test(size=(60, 20)) as pilot:
        heatmap.show(HeatGrid(30, 50, 30, 50, [1.0] * 1500), (4, 4))
        await pilot.pause()
        drawn: list[int] = []
        original = heatmap.render_line

        def spy(y: int) -> Strip:
            drawn.append(y)
            return original(y)

        heatmap.render_line = spy  # type: ignore[method-assign]
        heatmap.action_move(0, 1)
        await pilot.pause()
        assert 0 < len(set(drawn)) <= 4
        drawn.clear()
        heatmap.action_move(10, 0)
        await pilot.pause()
        assert 0 < len(set(drawn)) <= 5


async def test_bars_are_as_high_as_their_counts() -> None:
    histogram = Histogram(Drawing(Depth.NONE))
    async with Stage(histogram).run_test(size=(12, 11)):
        histogram.logarithmic = False
        histogram.show(HistogramData(-1.0, 1.0, [0, 1, 32, 64, 64, 32, 16, 8, 0, 0]))
        columns = list(zip(*(line.ljust(12) for line in text_of(histogram)[1:9]), strict=True))
        eighths = [sum(" ▁▂▃▄▅▆▇█".index(glyph) for glyph in column) for column in columns]
        assert eighths[:10] == [0, 1, 32, 64, 64, 32, 16, 8, 0, 0]
        histogram.show(HistogramData(-1.0, 1.0, [1, 0, 1000]))  # one is little, and not nothing
        assert text_of(histogram)[8].startswith("▁ █")


async def test_ticks_stand_where_the_levels_are() -> None:
    histogram = Histogram(Drawing(Depth.NONE))
    async with Stage(histogram).run_test(size=(60, 8)):
        histogram.show(HistogramData(-2.0, 2.0, [1] * 40))
        histogram.ticks = (-3.0, -2.0, 0.0, 1.0, 2.0)
        histogram.marker = 0.5
        line = text_of(histogram)[-2]
        assert [x for x, glyph in enumerate(line) if glyph == "│"] == [0, 20, 30, 39]
        assert line.index("▲") == 25
        histogram.show(HistogramData(1.0, 1.0, [5]))  # no width to place anything in
        assert "│" not in text_of(histogram)[-2]


async def test_a_hundred_thousand_tensors_draw_only_what_is_seen() -> None:
    tensors = TensorList(Drawing(Depth.TRUECOLOR))
    async with Stage(tensors).run_test(size=(40, 10)) as pilot:
        tensors.load(entry(f"model.layers.{i}.weight") for i in range(100_000))
        tensors.focus()
        await pilot.press("end")
        await pilot.pause()
        assert "model.layers.99999" in text_of(tensors)[-1]
        tensors.set_filter("99998")
        assert [e.name for e in tensors.shown] == ["model.layers.99998.weight"]


async def test_names_cannot_move_the_cursor_of_the_terminal() -> None:
    tensors = TensorList(Drawing(Depth.TRUECOLOR))
    async with Stage(tensors).run_test(size=(60, 4)):
        tensors.load([entry("evil\x1b[2J\nname.weight")])
        text = "".join(text_of(tensors))
        assert "\x1b" not in text
        assert "\n" not in text
        assert "evil" in text


def test_every_tone_of_a_picture_has_a_style() -> None:
    bare = {tone for tone in get_args(Tone) if f"picture--{tone} {{" not in TextPicture.DEFAULT_CSS}
    assert not bare


NAN = float("nan")
#: What is unusual -> the kind of map, its pooling, its cells, what is said, what must not be.
STATES = {
    "few signs": ("signed", "max", (1.0, -1.0, 0.0), "1 of the 2 largest errors of the cells are "
                  "above zero (values made larger): too few to say", "no bias"),
    "one sign": ("signed", "mean", (0.5, 0.0), "The mean error of a cell is above zero in one "
                 "place: too few", "1 of"),
    "many signs": ("signed", "max", (1.0, -1.0) * 50, "show no bias", "have no bias"),
    "all up": ("signed", "max", (1.0,) * 50, "moves values up more often", "no bias"),
    "exact": ("signed", "max", (0.0,) * 4, "exactly on a level", "above zero"),
    "mostly zeros": ("value", "max", (0.0, 0.0, 0.0, 5.0), "At least half of the cells hold "
                     "nothing but zeros; the largest value, 5 in magnitude", "times"),
    "zeros and NaN": ("value", "max", (0.0, NAN), "All finite values shown are 0", "All values"),
    "one cell": ("value", "max", (3.0,), "", "times"),
    "one code": ("code", "nearest", (7.0,) * 5, "Code 7 of nf4 stands in the middle of every cell",
                 "codes"),
    "nearly one code": ("code", "nearest", (7.0,) * 999 + (1.0,), "the most frequent, 7, in 99% of "
                        "them: most of these elements", "100%"),
    "scales of zeros": ("scale", "max", (0.0,) * 4, "All scales of nf4 shown here are 0", "factor"),
    "a tie": ("difference", "max", (1.0, -1.0), "have the smaller error in as many cells", "50%"),
    "no difference": ("difference", "max", (0.0, 0.0), "have the same error in every cell", "dB"),
    "nothing finite": ("signed", "max", (NAN, NAN), "", "bias"),
}  # fmt: skip


def test_the_sentence_of_a_map_in_every_state() -> None:
    def check(kind: str, pooling: str, cells: tuple[float, ...], said: str, never: str) -> None:
        schemes = ("nf4", "int4") if kind == "difference" else ("nf4",)
        request = MapRequest(kind, schemes, pooling, None, 1, len(cells))
        grid = HeatGrid(1, len(cells), 1, len(cells), cells)
        places = tuple(range(len(cells)))
        found = map_sentence(MapPicture(request, grid, (0,) * len(cells), places), {})
        assert said in found
        assert bool(said) == bool(found)
        assert never not in found
        assert not faults_of(found), found

    every(STATES, check)
