"""Ramps, glyphs and lines, which all drawing widgets are based on."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.color import ColorSystem, ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from qtui.report.pictures.glyphs import ASCII, UNICODE
from qtui.screen.depth import Depth
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.heatmap.ramps import CIVIDIS_STOPS, brightness, interpolate
from qtui.screen.widgets.line import Line, shortened
from qtui.tui.ascii_only import AsciiOnly, to_ascii

DEPTHS = list(Depth)


@pytest.mark.parametrize("depth", [Depth.TRUECOLOR, Depth.C256])
def test_magnitudes_grow_brighter_with_every_level(depth: Depth) -> None:
    for ramp in (Drawing(depth).ramp, Drawing(depth).grey_ramp):
        levels = [brightness(tuple(color.triplet)) for color in ramp.colors]
        assert levels == sorted(levels)
        assert len(set(levels)) == len(levels)


@pytest.mark.parametrize("depth", [Depth.TRUECOLOR, Depth.C256])
def test_signed_levels_are_darkest_at_zero_and_brighten_on_both_sides(depth: Depth) -> None:
    ramp = Drawing(depth).signed_ramp
    assert ramp.levels % 2 == 1
    middle = ramp.levels // 2
    levels = [brightness(tuple(color.triplet)) for color in ramp.colors]
    assert levels[: middle + 1] == sorted(levels[: middle + 1], reverse=True)
    assert levels[middle:] == sorted(levels[middle:])
    blue, orange = ramp.colors[0].triplet, ramp.colors[-1].triplet
    assert blue.blue > blue.red
    assert orange.red > orange.blue


def test_palette_colours_reach_a_256_colour_terminal_unchanged() -> None:
    for ramp in (Drawing(Depth.C256).ramp, Drawing(Depth.C256).signed_ramp):
        for color in ramp.colors:
            assert color.type is ColorType.EIGHT_BIT
            assert color.downgrade(ColorSystem.EIGHT_BIT).number == color.number


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("ascii", [False, True])
def test_every_level_has_a_glyph_whatever_the_colours(depth: Depth, ascii: bool) -> None:
    drawing = Drawing(depth, ascii=ascii)
    for ramp in (drawing.ramp, drawing.signed_ramp, drawing.grey_ramp):
        assert len(ramp.glyphs) == ramp.levels
        assert ramp.has_colors == (depth in (Depth.TRUECOLOR, Depth.C256))
        assert ramp.level(-1) == 0
        assert ramp.level(2) == ramp.levels - 1
        if ascii:
            assert ramp.glyphs.isascii()


@pytest.mark.parametrize("ascii", [False, True])
def test_signed_glyphs_tell_the_sides_apart_without_colour(ascii: bool) -> None:
    ramp = Drawing(Depth.NONE, ascii=ascii).signed_ramp
    middle = ramp.levels // 2
    assert set(ramp.glyphs[:middle]).isdisjoint(ramp.glyphs[middle:])


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_glyphs_are_one_cell_wide(glyphs) -> None:
    for value in vars(glyphs).values():
        assert all(cell_len(character) == 1 for character in value)


def test_interpolation_meets_its_stops() -> None:
    last = len(CIVIDIS_STOPS) - 1
    for index, stop in enumerate(CIVIDIS_STOPS):
        assert interpolate(CIVIDIS_STOPS, index / last) == stop


def test_ascii_keeps_the_width() -> None:
    for text in ("─│╭▸◆…×−", "模型", "plain"):
        assert to_ascii(text).isascii()
        assert len(to_ascii(text)) == cell_len(text)
    style = Style(bold=True)
    (segment,) = AsciiOnly().apply([Segment("│x", style)], Color(0, 0, 0))
    assert segment == Segment("|x", style)


def test_a_line_merges_runs_and_styles_every_cell() -> None:
    base, red = Style(bgcolor="black"), Style(color="red")
    line = Line(10, base)
    line.put(2, "ab", red)
    line.put(4, "c", red)
    line.put_right(10, "z")
    line.put(-1, "xy")
    strip = line.strip()
    assert strip.cell_length == 10
    assert [segment.text for segment in strip] == ["y ", "abc", "    z"]
    assert all(segment.style for segment in strip)
    assert all(segment.style.bgcolor == base.bgcolor for segment in strip)


def test_shortened_text_says_that_it_was_cut() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdef", 4) == "abc…"
    assert shortened("abcdef", 0) == ""
