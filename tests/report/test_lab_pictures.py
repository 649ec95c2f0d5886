"""The pictures of experiments, compared with the data that they draw."""

from __future__ import annotations

import random
from dataclasses import replace
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
from lab_findings import BARS, CHART, DENSITY, FRONTIER, HEAT, HISTOGRAM, PICTURES

from qtui.report.pictures.axes import axis_of
from qtui.report.pictures.cells import HUES, plain_lines
from qtui.report.pictures.drawing import picture_lines
from qtui.report.pictures.glyphs import Brush
from qtui.report.pictures.heat_rows import scale_sides
from qtui.report.pictures.scene import beyond, scene_of
from qtui.report.pictures.svg import picture_svg, standalone
from qtui_core.lab.results import Heat, LabBar, LabBars, LabChart, LabLine, MatrixProduct, Point

SIZES = ((40, 10), (56, 14), (100, 20), (180, 50))


def drawn(picture: object, width: int, height: int, **how: object) -> list[str]:
    return plain_lines(picture_lines(picture, width, height, Brush(ascii=True), **how))  # type: ignore[arg-type]


def test_every_picture_fits_into_its_cells_in_every_size() -> None:
    for picture in PICTURES:
        for width, height in SIZES:
            for brush in (Brush(), Brush(ascii=True), Brush(shaded=False)):
                lines = picture_lines(picture, width, height, brush)
                assert all(len(line) <= width for line in plain_lines(lines))
                assert len(lines) <= max(height, 14), (picture.title, width, height)


def test_every_picture_is_an_svg_file() -> None:
    for picture in PICTURES:
        root = ElementTree.fromstring(standalone(picture_svg(picture)))
        assert root.tag.endswith("svg")
        assert "var(" not in standalone(picture_svg(picture))
        text = " ".join(root.itertext())
        assert picture.title in text


def test_a_line_is_drawn_where_its_numbers_are() -> None:
    """A straight line: each column of cells has it in the row that arithmetic says."""
    chart = LabChart("t", "x", "y", (LabLine("up", tuple(map(float, range(101)))),))
    rows = drawn(chart, 60, 24)
    left = rows[2].index("|") + 1
    plane = [row[left:] for row in rows[2 : rows.index(next(r for r in rows if "---" in r))]]
    height, width = len(plane), 58 - left
    seen = 0
    for y, row in enumerate(plane):
        for x, sign in enumerate(row):
            if sign == "a":
                share = 0.04 / 1.08 + (x + 0.5) / width / 1.08
                assert abs((height - y - 0.5) / height - share) < 2 / height
                seen += 1
    assert seen >= width - 2


def test_axes_hold_their_values_and_their_marks_are_true() -> None:
    dice = random.Random(3)
    for log in (False, True):
        for _ in range(300):
            ends = [dice.choice((1, -1) if not log else (1,)) * 10 ** dice.uniform(-9, 9)
                    for _ in range(2)]  # fmt: skip
            axis = axis_of("", ends, log=log)
            for value in ends:
                place = axis.place(value)
                assert place is not None
                assert -1e-6 <= place <= 1 + 1e-6
            for place, text in axis.marks:
                found = axis.place(float(text))
                assert found is not None
                assert abs(found - place) < 1e-4
    assert axis_of("", [], log=True).place(-1.0) is None
    assert axis_of("", [5.0]).place(5.0) == 0.5


def test_a_few_whole_numbers_are_the_marks_and_their_points_have_letters() -> None:
    chart = LabChart(
        "loss by width", "bits", "nats", (LabLine("QAT", (0.9, 0.82, 0.81, 0.8), (2, 3, 4, 8)),)
    )
    assert [text for _, text in scene_of(chart).x.marks] == ["2", "3", "4", "8"]
    plane = "".join(row.partition("|")[2].partition(" A QAT")[0] for row in drawn(chart, 100, 20))
    assert plane.count("A") == 4


def test_the_last_of_a_few_numbers_is_beside_a_low_picture_too() -> None:
    for name in ("bits", "tokens of a batch"):
        line = LabLine("gap", (0.3, 0.1, 0.0), (2.0, 3.0, 8.0))
        rows = drawn(LabChart("t", name, "y", (line,)), 54, 14)
        numbers = next(row for row in rows if " 3 " in row).split()
        assert [text for text in numbers if text.isdigit()] == ["2", "3", "8"]
        assert any(name in row for row in rows)


def test_many_points_have_letters_in_place_of_names_that_cover_each_other() -> None:
    few = tuple(Point(f"rule {n}", 0.1 * n, 0.01 * n) for n in range(5))
    many = (*few, Point("rule 5", 0.0, 0.0))
    text = "\n".join(drawn(replace(FRONTIER, points=few), 60, 20))
    assert text.count("@") == 5
    rows = drawn(replace(FRONTIER, points=many), 60, 20)
    legend = "\n".join(rows[-3:])
    assert all(f"{letter} rule {n}" in legend for n, letter in enumerate("BCDEFG"))
    plane = "\n".join(row.partition("|")[2] for row in rows)
    assert all(plane.count(letter) == 1 for letter in "BCDEFG")  # also where two lie together


def test_a_point_that_stands_back_is_small_and_hollow() -> None:
    few = tuple(Point(f"rule {n}", 0.1 * n, 0.01 * n, faint=n > 2) for n in range(5))
    bright = tuple(replace(point, faint=False) for point in few)
    plane, other = ("\n".join(drawn(replace(FRONTIER, points=p), 60, 20)) for p in (few, bright))
    assert (plane.count("@"), plane.count("o") - other.count("o")) == (3, 2)
    many = (*few, Point("rule 5", 0.0, 0.0))
    rows = drawn(replace(FRONTIER, points=many), 60, 20)
    legend = "\n".join(rows[-3:])
    assert all(f"{letter} rule {n}" in legend for n, letter in enumerate("BCDefG"))
    svg = picture_svg(replace(FRONTIER, points=many))
    assert svg.count('fill="none" stroke="var(--warn)"') == 2


def test_the_name_and_the_end_of_every_line_are_whole_at_every_size() -> None:
    for count, name in ((3, "int8 weights nearest"), (17, "fp8"), (5, "x" * 40)):
        lines = tuple(LabLine(f"{name} {n}", (0.0, 0.25 + n)) for n in range(count))
        for width, height in ((54, 16), (78, 22), (88, 24), (160, 50)):
            text = "\n".join(drawn(LabChart("t", "step", "y", lines), width, height))
            for n in range(count):
                assert f"{chr(65 + n)} {name} {n}  {0.25 + n:.3g}" in text, (width, height, n)


def test_a_title_without_room_ends_in_an_ellipsis() -> None:
    for picture in PICTURES:
        row = drawn(picture, 24, 14)[0]
        assert row == (picture.title if len(picture.title) <= 24 else picture.title[:23] + "~")


def test_what_a_format_loses_is_what_casting_loses() -> None:
    """From the exponents alone: the shares are those of ml_dtypes' own rounding of the values."""
    values = np.float32(2.0) ** np.random.default_rng(0).uniform(-30, 20, 20_000).astype("float32")
    first = -40
    counts = np.bincount(np.floor(np.log2(values)).astype(int) - first, minlength=64).tolist()
    formats = {"float8_e4m3fn": (-9, 448.0), "float8_e5m2": (-16, 57344.0)}
    for name, (low, most) in formats.items():
        zero, over = beyond(first, counts, low, float(np.log2(most)))
        cast = values.astype(getattr(ml_dtypes, name)).astype("float32")
        assert zero == float(np.mean(cast == 0))
        # Of the power of two that the largest number lies in, the exponent does not say.
        power = 2.0 ** np.ceil(np.log2(most))
        assert over == float(np.mean(values >= power))


def test_the_scale_slides_the_bars_and_changes_what_is_lost() -> None:
    plain, scaled = scene_of(HISTOGRAM), scene_of(replace(HISTOGRAM, shift=8.0))
    bars = [part for part in picture_svg(HISTOGRAM).split("<") if 'height="10' in part]
    assert bars
    assert not any(hue in part for part in bars for hue in HUES)  # a format is no series
    assert scaled.spans[1].notes != plain.spans[1].notes
    assert "2^8" in scaled.title
    zero = sum(HISTOGRAM.series[0][1][:10]) / sum(HISTOGRAM.series[0][1])
    assert plain.spans[1].notes == (f"{zero:.2%} to 0",)


def test_an_earlier_run_is_dotted_in_the_colour_of_its_line() -> None:
    earlier = replace(CHART, lines=(LabLine("nearest", (0.0, 0.02, 0.03)), CHART.lines[1]))
    other = replace(earlier, lines=(*earlier.lines, LabLine("int8", (0.0, 0.01))))
    lines = scene_of(CHART, other).lines
    assert [(line.name, line.faint, line.echo) for line in lines] == [
        ("nearest", False, -1), ("fp32", True, -1), ("nearest before", True, 0),
        ("int8 before", True, -1),
    ]  # fmt: skip
    rows = drawn(CHART, 100, 20, behind=other)
    assert any(".. the run before" in row for row in rows)
    assert any("D int8 before" in row for row in rows)
    assert not any("nearest before" in row for row in rows)
    # Its highest point, 0.03, is the top of the picture now, and dots are there.
    assert "." in next(row for row in rows if "0.03|" in row).partition("|")[2]
    assert any("the run before" in row for row in drawn(FRONTIER, 100, 20, behind=FRONTIER))
    svg = picture_svg(CHART, other)
    assert "dashed: the run before" in svg
    assert svg.count("stroke-dasharray") == 3


def test_the_floor_is_shaded_where_a_difference_says_nothing() -> None:
    scene = scene_of(CHART)
    assert scene.floor is not None
    assert scene.y.place(0.001) == scene.floor[1]
    assert scene.y.place(-0.001) == scene.floor[0]
    assert any("no difference" in row for row in drawn(CHART, 100, 20))


def test_what_is_below_the_threshold_is_paler() -> None:
    """The threshold rises from the bottom to the middle: at x its height is x / 2."""
    lines = picture_lines(DENSITY, 60, 20, Brush(shaded=False))
    plane = [line for line in lines if any(p.tone.startswith(("heat", "grey")) for p in line)]
    left = min(p.column for line in plane for p in line if p.tone.startswith(("heat", "grey")))
    width, seen = 59 - left, set()
    for up, line in enumerate(reversed(plane)):
        for painted in line:
            if not painted.tone.startswith(("heat", "grey")):
                continue
            for column in range(painted.column, painted.column + len(painted.text)):
                share, border = (up + 0.5) / len(plane), (column - left + 0.5) / width / 2
                if abs(share - border) > 0.05:
                    kind = "grey" if share < border else "heat"
                    assert painted.tone.startswith(kind)
                    seen.add(kind)
    assert seen == {"grey", "heat"}


def test_the_numbers_of_a_heat_are_written() -> None:
    text = "\n".join(drawn(HEAT, 80, 20))
    for value in ("0.005", "0.008", "0.009"):
        assert value in text


def test_a_number_of_a_heat_is_never_cut_to_another_one() -> None:
    dice = random.Random(1)
    for width in (20, 34, 54):
        row = tuple(10 ** dice.uniform(-4, 0) for _ in range(8))
        found = Heat("t", ("row",), tuple("abcdefgh"), (row,), log=True)
        cells = drawn(found, width, 8)[2].split()[1:]
        numbers = [float(cell) for cell in cells if cell[-1].isdigit()]
        assert len(numbers) >= (8 if width == 54 else 0)
        for number in numbers:
            assert min(abs(number / value - 1) for value in row) < 0.5


def test_scales_stand_at_the_axis_along_which_they_differ() -> None:
    """X and G have a scale a token, W one an output. Y sums inputs, dX outputs, dW tokens: what is
    summed stands between the two matrices."""
    product = MatrixProduct("G'", "X", "outputs", "tokens", "inputs")
    found = replace(
        HEAT, columns=("Y", "dX", "dW"), values=((0.1,) * 3,) * 3, rows=("row", "tensor", "none"),
        products=(*HEAT.products, product), scale_axes=(*HEAT.scale_axes, None),
    )  # fmt: skip
    assert [scale_sides(found, 0, at).sides for at in range(3)] == [
        (True, False, False, True), (True, False, True, False), (False, True, True, False),
    ]  # fmt: skip
    for width, number in ((54, ""), (100, "0.1 . ")):
        rows = drawn(found, width, 20, scales=True)
        said = [" ".join(row.split()) for row in rows[2:5]]
        cells = (("# X W'#", "# G : W", "G':: X"), ("one scale",) * 3, ("no scale",) * 3)
        for row, name, each in zip(said, found.rows, cells, strict=True):
            assert row == " ".join([name, *(number + cell for cell in each)])
        assert "multiply the result once" in " ".join(rows)
    tight = [" ".join(row.split()) for row in drawn(found, 36, 20, scales=True)]
    assert "row outer both inner" in tight
    svg = picture_svg(found)
    assert svg.count(f'fill="{HUES[1]}" fill-opacity="0.900"') == 3  # outer sides
    assert svg.count('fill="var(--soft)" fill-opacity="0.900"') == 3  # at the summed axis
    assert (svg.count("one scale"), svg.count("no scale")) == (3, 3)


def test_bars_are_as_long_as_their_values_each_group_on_its_own_scale() -> None:
    dice = random.Random(5)
    for _ in range(50):
        groups = tuple(
            (f"{bits} bits", tuple(LabBar(name, dice.uniform(0, 10.0**-bits)) for name in "abc"))
            for bits in (1, 2, 3)
        )
        rows = drawn(LabBars("t", "nats", groups), 100, 20)
        for number, (name, bars) in enumerate(groups):
            assert rows[1 + 4 * number].startswith(name)
            lengths = [row.count("#") for row in rows[2 + 4 * number : 5 + 4 * number]]
            most = max(bar.value for bar in bars)
            for bar, length in zip(bars, lengths, strict=True):
                assert abs(length - max(lengths) * bar.value / most) <= 1
                assert f"{bar.value:+.3g}" in rows[2 + 4 * number + bars.index(bar)]


def test_bars_below_zero_go_to_the_left_and_seeds_are_a_spread() -> None:
    rows = drawn(BARS, 100, 20)
    assert rows[1] == "2 bits  recovers 31%"
    two, four = rows[2:4], rows[5:7]
    zero = two[0].index("#")
    assert four[0].index("#") == zero
    assert four[1].index("#") < zero
    assert four[1].rindex("#") == zero - 1
    spread = two[1]
    full, some, one = (spread.count(sign) for sign in "#*.")
    room = two[0].count("#") / 0.13
    assert abs(full - 0.08 * room) <= 1
    assert abs(some - 0.01 * room) <= 1
    assert abs(one - spread.count("0.") - 0.01 * room) <= 3
    assert spread.endswith("+0.09 [+0.08, +0.1]")
    for sign in (1, -1):  # seeds on both sides of zero: no side is reached by all of them
        both = LabBar("a", sign * 0.4, *sorted((-0.2 * sign, 1.0 * sign)))
        (row,) = drawn(LabBars("t", "nats", (("g", (both,)),)), 100, 20)[2:3]
        bar = row.split("[")[0].rpartition(f"{sign * 0.4:+.3g}")[0].split()[-1]
        room = len(bar) / 1.2
        assert bar.strip(".") == "*" * bar.count("*")
        assert abs(bar.count("*") - 0.4 * room) <= 1
        ends = [bar.index("*"), len(bar) - 1 - bar.rindex("*")][::sign]
        assert abs(ends[0] - 0.2 * room) <= 1
        assert abs(ends[1] - 0.6 * room) <= 1


def test_bars_without_room_are_counted_and_those_of_an_earlier_run_are_marked() -> None:
    many = LabBars("t", "nats", tuple((f"{n} bits", (LabBar("a", 1.0),) * 3) for n in range(6)))
    rows = drawn(many, 60, 12)
    assert len(rows) == 11
    assert rows[-1] == "and 3 more: the table has them"
    assert [row[:6] for row in rows[1:10:3]] == ["0 bits", "1 bits", "2 bits"]
    earlier = LabBars("t", "nats", (("2 bits", (LabBar("QAT", 0.13),)),))
    rows = drawn(BARS, 80, 20, behind=earlier)
    assert rows[-1] == "@ the run before"
    assert [row.count("@") for row in rows[1:-1]] == [0, 0, 1, 0, 0, 0]
    assert picture_svg(BARS, earlier).count("<circle") == 2
