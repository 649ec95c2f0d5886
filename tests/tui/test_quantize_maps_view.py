"""Views of the Quantize panel, and all that its maps can show."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from quantize_model import PROJ, SHAPE, tensors
from screens import Running, check_golden, idle, idle_when, resized, screen_text, settled, until
from textual.pilot import Pilot

from qtui.engine.requests import Injection
from qtui.report.numbers import format_value
from qtui.screen.panel.asking import AskingPhase
from qtui.tui.panels.quantize.maps.kinds import KINDS
from qtui.tui.panels.quantize.maps.zoom import moved, zoomed
from qtui.tui.panels.quantize.panel import QuantizePanel
from qtui_core.quant import Scheme, measure, quantize

A, B = "int4:group64", "nf4:block64"


@pytest.fixture(autouse=True)
def model(model: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """By a short relative name, which the header line shows."""
    monkeypatch.chdir(Path(model).parent)
    return Path(model).name


async def ready(pilot: Pilot[None]) -> QuantizePanel:
    def whole() -> bool:
        panel = cast(Any, pilot.app).panel
        return (
            panel.phase is AskingPhase.READY
            and None not in panel.shown.errors
            and panel.shown.element is not None
            and panel.shown.histogram is not None
            and not panel.qtui.engine.busy
        )

    await idle_when(pilot, whole)
    return cast(Any, pilot.app).panel


async def press(pilot: Pilot[None], *keys: str) -> QuantizePanel:
    for key in keys:
        await pilot.press(key)
        panel = await ready(pilot)
    return panel


def of_elements(kind: str) -> np.ndarray:
    """What a map shows of each element, computed from the whole tensor."""
    x = tensors()[PROJ]
    a, b = (quantize(x, Scheme.parse(text)) for text in (A, B))
    error_a, error_b = a.dequantize() - x, b.dequantize() - x
    return {
        "error": np.abs(error_a),
        "signed": error_a,
        "value": x,
        "scale": np.repeat(a.scales, 64, axis=1)[:, : SHAPE[1]],
        "code": a.codes.astype(np.float32),
        "difference": np.abs(error_a) - np.abs(error_b),
    }[kind]


def check_cells(panel: QuantizePanel) -> None:
    """Every cell has the number of the element it points at, and that lies in the cell."""
    for picture in panel.body.maps.pictures:
        values, grid = of_elements(picture.request.kind), picture.grid
        for i in range(grid.grid_rows):
            for j in range(grid.grid_columns):
                row, column = picture.element_at(i, j)
                assert grid.cell_of(row, column) == (i, j)
                cell = grid.cells[i * grid.grid_columns + j]
                assert cell == pytest.approx(values[row, column], rel=1e-5, abs=1e-9)


async def test_every_kind_of_map(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize", color="16") as pilot:
        panel = await ready(pilot)
        maps = panel.body.maps
        maps.pooling = "max"
        for kind in KINDS:
            assert maps.kind is kind
            assert maps.pictures[0].request.kind == kind.name
            check_cells(panel)
            assert kind.title in screen_text(pilot.app)
            assert panel.sentence
            await press(pilot, "m")
        assert maps.kind is KINDS[0]
        await press(pilot, "M")
        assert maps.kind is KINDS[-1]
        assert "nf4:block64) is 2.2 dB better" in panel.sentence


async def test_a_kind_that_a_format_has_not_is_said_and_the_way_back_works(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await press(pilot, "m", "m", "m")
        await pilot.press("s", *"bf16", "enter")
        await until(pilot, lambda: "cast without a scale" in panel.sentence)
        await pilot.press("M")
        await until(pilot, lambda: panel.phase is AskingPhase.READY)
        assert panel.body.maps.pictures[0].request.kind == "value"


async def test_pooling_turns_and_the_title_names_it(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize", color="16") as pilot:
        panel = await ready(pilot)
        peaks = {}
        for pooling in ("max", "mean", "rms", "nearest"):
            assert f"|error|, {pooling} over" in screen_text(pilot.app)
            peaks[pooling] = max(panel.body.maps.pictures[0].grid.cells)
            await press(pilot, "Z")
        assert peaks["max"] > peaks["rms"] > peaks["mean"]
        await press(pilot, "Z", "Z", "m")  # a root mean square has no sign
        assert panel.body.maps.pictures[0].request.pooling == "max"
        await press(pilot, "m", "m", "m")
        await pilot.press("Z")
        await until(pilot, lambda: "only name levels" in panel.sentence)


async def test_zooming_keeps_the_element_and_moving_pans(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize", color="16") as pilot:
        panel = await ready(pilot)
        maps = panel.body.maps
        maps.heatmap.focus()
        element = maps.pictures[0].element_at(*maps.heatmap.cursor)
        for height, width in ((48, 80), (24, 40), (12, 20), (8, 10), (8, 8), (8, 8)):
            await press(pilot, "plus")
            grid = maps.pictures[0].grid
            assert (grid.height, grid.width) == (height, width)
            top, bottom, left, right = grid.area
            assert top <= element[0] < bottom
            assert left <= element[1] < right
            assert maps.heatmap.cursor == grid.cell_of(*element)
            check_cells(panel)
        assert (panel.shown.element.row, panel.shown.element.column) == element  # type: ignore[union-attr]
        assert f"{top}-{bottom - 1}" in screen_text(pilot.app)
        before = maps.pictures[0].grid.area
        await press(pilot, "L")  # far right
        assert maps.pictures[0].grid.area[2] == before[2] + 2
        await pilot.press(*["left"] * 9)  # over the edge
        await ready(pilot)
        assert maps.pictures[0].grid.area[2] < before[2] + 2
        await press(pilot, "minus")
        assert maps.pictures[0].grid.height == 16
        await press(pilot, "0")
        assert maps.window is None
        assert maps.pictures[0].grid.area == (0, 96, 0, 160)
        await press(pilot, "plus", "t", "down", "enter")  # another tensor is shown whole
        assert maps.window is None


def test_windows_stay_in_the_matrix_and_hold_the_element() -> None:
    for at in ((0, 0), (95, 159), (50, 3)):
        area = 0, 96, 0, 160
        for factor in (0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 2, 2, 2, 2, 2, 2):
            area = zoomed(area, SHAPE, at, factor)
            assert 0 <= area[0] <= at[0] < area[1] <= 96
            assert 0 <= area[2] <= at[1] < area[3] <= 160
        assert area == (0, 96, 0, 160)
    assert zoomed((0, 1, 0, 5), (1, 5), (0, 2), 0.5) == (0, 1, 0, 5)  # smaller than the least
    assert moved((10, 20, 0, 8), SHAPE, 500, -3) == (86, 96, 0, 8)


@pytest.mark.parametrize(("size", "count"), [((80, 24), 2), ((120, 40), 2), ((200, 50), 3)])
async def test_two_schemes_side_by_side(
    running: Running, model: str, size: tuple[int, int], count: int
) -> None:
    async with running(size, model=model, start_panel="quantize", color="16") as pilot:
        panel = await press(pilot, "b")
        await idle(pilot)
        await ready(pilot)
        maps = panel.body.maps
        assert len(maps.pictures) == count
        # The largest error of a format with uneven levels would make it look worse than it is.
        assert [p.request.pooling for p in maps.pictures] == ["mean"] * count
        worse, better = (np.mean(p.grid.cells) for p in maps.pictures[:2])
        assert worse > better
        check_golden(f"quantize_side_{size[0]}x{size[1]}", screen_text(pilot.app))
        await press(pilot, "Z", "Z", "Z")
        assert [p.request.pooling for p in maps.pictures] == ["max"] * count
        assert [p.request.schemes for p in maps.pictures][:2] == [(A,), (B,)]
        assert maps.heatmap.scale == maps.second.scale
        check_cells_of_side(panel)
        assert not panel.body.table.display
        text = screen_text(pilot.app)
        assert f"A {A}, 14.4 dB" in text
        assert f"B {B}, 16.6 dB" in text
        maps.heatmap.focus()
        await press(pilot, "left", "up")
        assert maps.second.cursor == maps.heatmap.cursor
        if count == 3:
            assert maps.third.cursor == maps.heatmap.cursor
        await press(pilot, "plus")
        assert len({p.grid.area for p in maps.pictures}) == 1
        await press(pilot, "b")
        assert len(maps.pictures) == 1
        assert panel.body.table.display


def check_cells_of_side(panel: QuantizePanel) -> None:
    x = tensors()[PROJ]
    for picture, text in zip(panel.body.maps.pictures[:2], (A, B), strict=True):
        error = np.abs(quantize(x, Scheme.parse(text)).dequantize() - x)
        assert max(picture.grid.cells) == error.max()
        row, column = picture.element_at(*picture.grid.peak)
        assert error[row, column] == error.max()


@pytest.mark.parametrize(
    ("name", "size", "color", "ascii_only", "keys"),
    [
        ("signed_zoomed_80x24", (80, 24), "none", False, ["m", "plus"]),
        ("value_ascii_80x24", (80, 24), "none", True, ["m", "m"]),
        ("scale_120x40", (120, 40), "16", False, ["m", "m", "m"]),
        ("difference_120x40", (120, 40), "none", True, ["M"]),
    ],
)
async def test_maps_look_as_they_did(
    running: Running, model: str, name: str, size: tuple[int, int], color: str,
    ascii_only: bool, keys: list[str],
) -> None:  # fmt: skip
    options = {"color": color, "ascii": ascii_only, "start_panel": "quantize"}
    async with running(size, model=model, **options) as pilot:
        await ready(pilot)  # the first map places the cursor, which stays where it is
        await press(pilot, *keys)
        text = screen_text(pilot.app)
        if ascii_only:
            assert text.isascii()
        check_golden(f"quantize_{name}", text)


async def test_the_worst_tensors_by_key(running: Running, model: str) -> None:
    found = {
        name: measure(x, Scheme.parse(A)).sqnr_db
        for name, x in tensors().items()
        if x.ndim == 2 and "odd" not in name
    }
    ranked = sorted(found, key=lambda name: found[name] or 0)
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        await pilot.press("w")
        await until(pilot, lambda: panel.body.side.ranked_by == A)
        await ready(pilot)
        seen = [panel.shown.entry.name]  # type: ignore[union-attr]
        for _ in ranked[1:]:
            await press(pilot, "w")
            seen.append(panel.shown.entry.name)  # type: ignore[union-attr]
        assert [name for name in seen if name in found] == [n for n in ranked if n in seen]
        assert seen[0] == ranked[0]
        assert "worst" in screen_text(pilot.app)
        await press(pilot, "W")
        assert panel.shown.entry.name == seen[-2]  # type: ignore[union-attr]


async def test_the_line_below_the_tensors_is_never_cut(running: Running, model: str) -> None:
    async with running((100, 30), model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        side = panel.body.side
        for width in (100, 116, 160):
            await resized(pilot, (width, 30))
            for key in ("T", "T", "T", "w"):
                await pilot.press(key)
                await until(pilot, lambda: not panel.ranking.running)
                await ready(pilot)
                said = str(side.count.render()).strip()
                assert len(said) <= side.count.content_size.width
                assert said.endswith(("model", "name", "first", "dB"))


async def test_export_writes_the_cells_and_overwrites_nothing(
    running: Running, model: str, tmp_path: Path
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await press(pilot, "plus")
        for _ in range(3):
            await pilot.press("e")
            await pilot.pause()
        picture = panel.body.maps.pictures[0]
    tables = sorted(tmp_path.glob("qtui-quantize-*.csv"))
    assert len(tables) == len(list(tmp_path.glob("qtui-quantize-*.svg"))) == 3
    values = of_elements("error")
    with tables[0].open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(picture.grid.cells)
    for line in lines:
        rows = slice(int(line["first_row"]), int(line["last_row"]) + 1)
        columns = slice(int(line["first_column"]), int(line["last_column"]) + 1)
        assert float(line["value"]) == pytest.approx(values[rows, columns].max(), rel=1e-6)
        assert (line["map"], line["schemes"], line["pooling"]) == ("error", A, "max")
    data = json.loads(sorted(tmp_path.glob("qtui-quantize-*.json"))[0].read_text())
    assert data["maps"]["pictures"][0]["cells"] == [float(line["value"]) for line in lines]


async def test_views_turn_and_the_subject_is_named(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        titles = []
        for _ in panel.views:
            titles.append(panel.view.TITLE)
            await pilot.press("v")
            await until(pilot, lambda: panel.phase in (AskingPhase.READY, AskingPhase.FAILED))
            await settled(pilot)
        assert titles == ["Maps", "Outliers", "Activations", "Layers", "Model"]
        assert panel.view is panel.body.maps
        panel.look_at(inject=Injection(17, 12.0))
        await idle(pilot)
        await ready(pilot)
        assert "outlier 12 injected at column 17" in screen_text(pilot.app)
        x = tensors()[PROJ].copy()
        x[:, 17] = 12.0
        assert panel.shown.errors[0].sqnr_db == measure(x, Scheme.parse(A)).sqnr_db  # type: ignore[union-attr]
        assert panel.export_data()["inject"] == {"row": None, "column": 17, "value": 12.0}  # type: ignore[index]
        await press(pilot, "x")
        assert panel.shown.inject is None
        assert "injected" not in screen_text(pilot.app)
        panel.look_at(source="input")
        await until(pilot, lambda: "was captured" in panel.sentence)
        assert "input of model.layers.0.mlp.down_proj" in screen_text(pilot.app)
        panel.look_at(source="weight")
        await idle(pilot)
        await ready(pilot)


@pytest.mark.parametrize("width", [80, 120])
async def test_knobs_of_every_part_and_a_bar_that_never_overflows(
    running: Running, model: str, width: int
) -> None:
    texts = [
        "int4:tile128x128:asym:zpfloat:stochastic7:outliers6.5", "nf4:block64:dq128",
        "mxfp6-e3m2:rceil:stochastic", "int8:token:full:stochastic:outliers6.0", "nvfp4", "bf16",
        "ternary:group64", "e4m3:tile128x128:stochastic",
    ]  # fmt: skip
    async with running((width, 24), model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        bar = panel.body.bar
        for text in texts:
            panel.take_scheme(Scheme.parse(text))
            await settled(pilot)
            spans = bar._spans(0)
            assert sum(len(part) for part, *_ in spans) <= bar.content_size.width
            values = {knob.value for _, style, knob in spans if knob and style == "value"}
            assert text.split(":")[0] in values
            for part in ("stochastic", "float", "6.5", "128", "rceil"):
                if part in text.replace("zpfloat", "float"):
                    assert part in values
        panel.take_scheme(Scheme.parse("int8:row"))
        for key, expected in (
            ("R", "int8:row:stochastic"), ("a", "int8:row:asym:stochastic"),
            ("A", "int8:row:asym:zpfloat:stochastic"),
        ):  # fmt: skip
            await press(pilot, key)
            assert str(panel.shown.scheme) == expected
        panel.take_scheme(Scheme.parse("mxfp4"))
        for expected in ("mxfp4:ceil", "mxfp4:even", "mxfp4:rceil", "mxfp4"):
            await press(pilot, "C")
            assert str(panel.shown.scheme) == expected
        panel.take_scheme(Scheme.parse("nf4:dq"))
        await press(pilot, "right_curly_bracket")
        assert str(panel.shown.scheme) == "nf4:block64:dq512"
        panel.take_scheme(Scheme.parse("int8:row"))
        await press(pilot, "O")
        assert "outliers" in str(panel.shown.scheme)


@pytest.mark.parametrize(("kind", "other"), [("scale", B), ("code", B), ("code", f"{A}:asym")])
async def test_two_maps_have_a_bar_each_where_they_have_no_unit_in_common(
    running: Running, model: str, kind: str, other: str
) -> None:
    """absmax of NF4 and absmax/7 of INT4; code 3 with and without a zero point."""
    async with running((120, 40), model=model, start_panel="quantize", color="16") as pilot:
        panel = await ready(pilot)
        panel.shown.schemes[1] = Scheme.parse(other)
        panel.body.maps.kind = next(each for each in KINDS if each.name == kind)
        panel = await press(pilot, "b")
        maps = panel.body.maps
        assert [p.request.schemes for p in maps.pictures] == [(A,), (other,)]
        ends = [format_value(f(p.grid.cells), 2) for p in maps.pictures for f in (min, max)]
        line = next(each for each in screen_text(pilot.app).splitlines() if f"A {A}" in each)
        of_a, of_b = line.split(f"A {A}")[1].split(f"B {other}")
        assert all(end in text for end, text in zip(ends, (of_a, of_a, of_b, of_b), strict=True))
