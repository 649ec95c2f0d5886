"""The Layers view: cells of tensors that were read and of those that were not, and its sentence."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
from every import over
from quantize_model import PROJ, write_model
from screens import Running, goldens, idle, resized, screen_text, settled, until
from told_truly import faults_of

from qtui.report.pictures.glyphs import Brush
from qtui.tui.panels.quantize.layers.grid import layer_grid
from qtui.tui.panels.quantize.layers.picture import grid_columns, grid_lines, unread
from qtui.tui.panels.quantize.layers.sentences import layers_sentence
from qtui.tui.panels.quantize.layers.view import LayersView
from qtui.tui.panels.quantize.panel import QuantizePanel

KINDS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")


def dense(layers: int) -> list[str]:
    inside = [f"model.layers.{n}.{kind}.weight" for n in range(layers) for kind in KINDS]
    return ["model.embed_tokens.weight", *inside]


def sparse(layers: int, experts: int) -> list[str]:
    return [
        f"model.layers.{n}.mlp.experts.{e}.{kind}.weight"
        for n in range(layers) for e in range(experts) for kind in ("up_proj", "down_proj")
    ]  # fmt: skip


@over(
    ("names", "columns", "rows", "shape", "a_cell", "pooled"),
    [
        (dense(4), 50, 20, (5, 4), 1, ""),
        (dense(300), 50, 20, (5, 50), 6, "a cell is the worst of 6 layers"),
        (sparse(48, 128), 50, 20, (2, 48), 1, "a cell is the worst of all experts"),
        (sparse(61, 256), 50, 20, (2, 31), 2, "a cell is the worst of 2 layers and all experts"),
        (dense(40), 50, 3, (3, 40), 1, "a cell is the worst of 3 kinds in the last row"),
        (["lm_head.weight"], 50, 20, (1, 1), 1, ""),
        ([], 50, 20, (0, 0), 1, ""),
    ],
)
def test_every_tensor_is_in_one_cell(names, columns, rows, shape, a_cell, pooled) -> None:
    numbers = {name: float(at) for at, name in enumerate(names) if at % 3}
    grid = layer_grid(names, numbers, columns, rows)
    cells = [cell for _, row in grid.rows for cell in row if cell is not None]
    assert (len(grid.rows), max((len(row) for _, row in grid.rows), default=0)) == shape
    assert (grid.a_cell, grid.pooled) == (a_cell, pooled)
    assert sorted(name for cell in cells for name in cell.names) == sorted(names)
    for cell in cells:
        read = [numbers[name] for name in cell.names if name in numbers]
        assert cell.read == len(read)
        # Nothing is said of what was not read.
        assert cell.sqnr_db == (min(read) if read else None)
        assert bool(cell.worst) == bool(read)
        place = grid.find(cell.chosen)
        assert place is not None
        assert grid.rows[place[0]][1][place[1]] is cell


@pytest.mark.parametrize("brush", [Brush(), Brush(shaded=False), Brush(ascii=True)])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_read_and_unread_cells_differ_in_glyphs_too(brush: Brush, width: int) -> None:
    names = dense(90)
    numbers: dict[str, float | None] = dict.fromkeys(names[: len(names) // 2], 20.0)
    numbers[names[5]], numbers[names[9]], numbers[names[13]] = 3.0, -math.inf, None
    numbers[names[17]] = math.nan
    grid = layer_grid(names, numbers, grid_columns(width), 20)
    lines = grid_lines(grid, width, None, (3.0, 20.0), brush)
    picks = {put.pick: put.text.strip() for line in lines for put in line if put.pick is not None}
    for (y, x), text in picks.items():
        cell = grid.rows[y][1][x]
        assert (text == unread(brush)) == (cell.read == 0)
        assert (text == "!") == (cell.sqnr_db == -math.inf)
        assert (text == "x") == (cell.sqnr_db is not None and math.isnan(cell.sqnr_db))
    assert all(put.column + len(put.text) <= width for line in lines for put in line)


WORST = {"model.layers.0.a.weight": 10.0, "model.layers.0.b.weight": 20.0,
         "model.layers.1.a.weight": 19.0, "model.layers.1.b.weight": 21.0}  # fmt: skip


@over(
    ("count", "numbers", "running", "sampled", "sentence"),
    [
        (0, {}, False, False, "No tensor of m can be quantized: there is nothing to read here."),
        (7, {}, False, False, "None of 7 tensors is read under int4 yet: r reads them."),
        (1, {}, True, False, "Reading 1 tensor under int4: none is done yet."),
        (4, WORST, False, False, "a of layer 0 hurts most under int4: 10.0 dB, 9.5 dB below the "
         "median of 19.5; a is the worst in every one of 2 layers. Enter shows its maps."),
        (4, WORST, False, True, "a of layer 0 hurts most under int4: 10.0 dB, 9.5 dB below the "
         "median of 19.5; a is the worst in every one of 2 layers. Enter shows its maps. Large "
         "tensors were read in samples of their rows."),
        (9, WORST, True, False, "a of layer 0 hurts most under int4: 10.0 dB, 9.5 dB below the "
         "median of 19.5; a is the worst in every one of 2 layers. Enter shows its maps. So far 4 "
         "of 9 tensors read."),
        (9, {"lm_head.weight": 12.0}, False, False, "lm_head has 12.0 dB under int4. Only 1 of 9 "
         "tensors read: r reads them all."),
        (2, {"lm_head.weight": 12.0, "x": None}, False, False, "lm_head has 12.0 dB under int4, "
         "the only one with an error."),
        (2, {"x": None, "y": None}, False, False, "int4 keeps every tensor that was read exactly."),
        (2, {"x": math.nan, "y": None}, False, False, "int4 keeps every tensor that was read "
         "exactly but 1 tensor without a finite value."),
        (1, {"x": math.nan}, False, False, "No tensor that was read has a finite value: there is "
         "nothing to round."),
        (2, {"x": math.nan, "y": 12.0}, False, False, "y has 12.0 dB under int4, the only one with "
         "an error."),
        (2, {"x": 12.0, "y": 12.0}, False, False, "No tensor stands out under int4: the worst has "
         "12.0 dB, as half of them do."),
        (2, {"x": -math.inf, "y": 12.0}, False, False, "x loses values under int4: they become "
         "infinite or NaN."),
        (3, {"x": -math.inf, "y": 12.0, "z": -math.inf}, False, False, "2 tensors lose values "
         "under int4, x first: they become infinite or NaN."),
    ],
)  # fmt: skip
def test_the_sentence(count, numbers, running, sampled, sentence) -> None:
    said = layers_sentence("m", "int4", count, numbers, running=running, sampled=sampled)
    assert said == sentence
    assert not faults_of(said.replace("NaN", "lost"))


async def test_the_cells_are_read_chosen_and_kept(running: Running, tmp_path: Path) -> None:
    model = write_model(tmp_path / "small")
    async with running(model=model, size=(120, 40)) as pilot:
        await pilot.press("2")
        await idle(pilot)
        panel = pilot.app.query_one(QuantizePanel)
        view = panel.view_of(LayersView)
        panel.show_view(view)
        await idle(pilot)
        assert "None of 6 tensors is read" in panel.sentence
        assert set(view._sqnr_db) == set()
        await pilot.press("r")
        await until(pilot, lambda: not panel.ranking.running and len(view._sqnr_db) == 6)
        await settled(pilot)
        text = screen_text(pilot.app)
        assert "6 of 6 tensors read" in text
        assert "hurts most under int4:group64" in panel.sentence
        grid = view._grid
        y, x = grid.find(PROJ)
        assert grid.rows[y][1][x].sqnr_db == pytest.approx(14.4, abs=0.1)
        await pilot.press("right")
        await settled(pilot)
        assert panel.shown.entry.name == "model.layers.1.mlp.down_proj.weight"
        await pilot.press("left", "enter")
        await settled(pilot)
        assert panel.view is panel.body.maps
        assert panel.shown.entry.name == PROJ
        panel.show_view(view)
        await pilot.press("right_square_bracket")  # another scheme: nothing is known of it
        await idle(pilot)
        assert "None of 6 tensors is read under" in panel.sentence


def _read(panel: QuantizePanel) -> bool:
    return not panel.ranking.running and len(panel.ranking.read_now) == 6


@pytest.mark.slow
async def test_the_layers_screen(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "small")
    monkeypatch.chdir(tmp_path)
    with goldens() as check:
        for name, options in (("", {}), ("ascii_", {"ascii": True, "color": "none"})):
            async with running(model="small", size=(80, 24), **options) as pilot:
                await pilot.press("2")
                await idle(pilot)
                panel = pilot.app.query_one(QuantizePanel)
                panel.show_view(panel.view_of(LayersView))
                await pilot.press("r")
                await until(pilot, partial(_read, panel))
                pilot.app.set_device("no GPU")
                for size in ((80, 24), (120, 40)):
                    await resized(pilot, size)
                    await idle(pilot)
                    check(f"quantize_layers_{name}{size[0]}x{size[1]}", screen_text(pilot.app))


@pytest.mark.parametrize("colours", [True, False], ids=["colours", "shades"])
@pytest.mark.parametrize("width", [100, 44])
def test_the_cursor_keeps_the_colour_and_noise_does_not_fill_the_scale(width, colours) -> None:
    """The worst cell looks the same under the cursor, but for a pointer; 0.1 dB is no difference
    of colours, and the legend has the colours of the cells."""
    names = dense(8)
    noise = {name: 18.5 + 0.1 * (at % 2) for at, name in enumerate(names)}
    grid = layer_grid(names, noise, 50, 20)
    brush, scale = Brush(shaded=not colours), (18.5, 18.6)
    plain, marked = (grid_lines(grid, width, at, scale, brush) for at in (None, (1, 0)))
    here, there = ([p for p in lines[2] if p.pick == (1, 0)] for lines in (plain, marked))
    if colours:
        assert [p.tone for p in here] == [p.tone for p in there]
    legend = plain[-2]
    assert (legend[0].text, legend[9].text) == ("17.6 dB", "18.6 dB")
    if colours:
        levels = [
            int(str(p.tone).removeprefix("heat"))
            for line in (*plain[1:-3], legend[1:9])
            for p in line
            if str(p.tone).startswith("heat")
        ]
        cells, of_legend = levels[:-8], levels[-8:]
        assert max(cells) - min(cells) < (max(of_legend) - min(of_legend)) / 8
        assert {p.text for p in legend[1:9]} == {" "}
    if width == 100:
        assert {p.text.strip() for p in here} == {"18.5"}
