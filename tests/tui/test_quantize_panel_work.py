"""The Quantize panel at work, with the real engine and a real model on disk."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from quantize_model import PROJ, tensors
from screens import Running, idle, idle_when, screen_text, settled, until
from textual import events
from textual.pilot import Pilot
from textual.widgets import Static

from qtui.engine.client import EngineState
from qtui.screen.messages import SendValue
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.tensors.list import TensorOrder
from qtui.tui.panels.quantize.panel import QuantizePanel
from qtui_core.quant import Scheme, measure, quantize


def panel_of(pilot: Pilot[None]) -> QuantizePanel:
    return cast(Any, pilot.app).panel


async def ready(pilot: Pilot[None]) -> QuantizePanel:
    """Wait until everything is read and drawn."""

    def whole() -> bool:
        panel = panel_of(pilot)
        return (
            panel.phase is AskingPhase.READY
            and None not in panel.shown.errors
            and panel.shown.element is not None
        )

    await idle_when(pilot, whole)
    return panel_of(pilot)


async def press(pilot: Pilot[None], *keys: str) -> QuantizePanel:
    """Press keys and wait for what they ask for."""
    await pilot.press(*keys)
    return await ready(pilot)


async def test_opens_on_the_first_inner_weight(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        text = screen_text(pilot.app)
    assert panel.shown.entry is not None
    assert panel.shown.entry.name == PROJ
    x = tensors()[PROJ]
    for scheme, errors in zip(("int4", "nf4"), panel.shown.errors, strict=True):
        report = measure(x, Scheme.parse(scheme))
        assert errors is not None
        assert errors.sqnr_db == report.sqnr_db
        assert f"{report.sqnr_db:.1f}" in text
    assert "all 15,360 values" in text
    assert "LlamaForCausalLM" in text  # in the header line
    assert panel.sentence.startswith("int4:group64")


async def test_the_cursor_starts_on_the_largest_error_and_moves(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        x = tensors()[PROJ]
        back = quantize(x, Scheme.parse("int4")).dequantize()
        error = np.abs(back - x)
        element = panel.shown.element
        assert element is not None
        assert error[element.row, element.column] == error.max()
        assert element.value == x[element.row, element.column]
        assert element.quantized == back[element.row, element.column]
        panel.body.heatmap.focus()
        before = panel.body.heatmap.cursor
        keys = ["up" if before[0] else "down", "left" if before[1] else "right"]
        await press(pilot, *keys)
        await until(pilot, lambda: panel.shown.element != element)
        moved = panel.shown.element
        assert moved is not None
        grid = panel.shown.map
        assert grid is not None
        assert (moved.row, moved.column) == grid.element_at(*panel.body.heatmap.cursor)
        assert moved.value == x[moved.row, moved.column]
        assert f"element ({moved.row}, {moved.column})" in screen_text(pilot.app)
        await press(pilot, "asterisk")
        assert panel.body.heatmap.cursor == before


async def test_enter_sends_the_exact_element_to_formats(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        sent: list[SendValue] = []
        original = panel.post_message

        def spy(message: Any) -> bool:
            if isinstance(message, SendValue):
                sent.append(message)
            return original(message)

        panel.post_message = spy  # type: ignore[method-assign]
        panel.body.heatmap.focus()
        await pilot.press("enter")
        await until(pilot, lambda: panel_of(pilot).PANEL_ID == "formats")
        element = panel.shown.element
        assert element is not None
        (message,) = sent
        assert message.value == Fraction(element.value)
        assert message.origin == f"{PROJ} at ({element.row}, {element.column})"


async def test_knobs_turn_by_keys(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)

        def text() -> str:
            return str(panel.shown.scheme)

        for key, expected in [
            ("right_square_bracket", "int4:group128"), ("left_square_bracket", "int4:group64"),
            ("a", "int4:group64:asym"), ("C", "int4:group64:full"), ("C", "int4:group64:signed"),
            ("right_parenthesis", "int4:block64:signed"),
            ("left_parenthesis", "int4:group64:signed"),
        ]:  # fmt: skip
            await press(pilot, key)
            assert text() == expected
        report = measure(tensors()[PROJ], Scheme.parse("int4:group64:signed"))
        errors = panel.shown.errors[0]
        assert errors is not None
        assert errors.sqnr_db == report.sqnr_db


async def test_the_other_scheme_is_a_key_away_and_keeps_the_place(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        cursor = panel.body.heatmap.cursor
        await press(pilot, "X")
        assert str(panel.shown.scheme) == "nf4:block64"
        assert panel.body.heatmap.cursor == cursor
        await press(pilot, "D")
        assert str(panel.shown.scheme) == "nf4:block64:dq"
        assert len(panel.body.histogram.ticks) == 16
        await press(pilot, "X")
        assert str(panel.shown.scheme) == "int4:group64"


async def test_knobs_turn_by_click(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        bar = panel.body.bar
        line = screen_text(pilot.app).splitlines()[bar.region.y]
        assert await pilot.click(bar, offset=(line.index("symmetric") - bar.region.x, 0))
        await until(pilot, lambda: str(panel.shown.scheme) == "int4:group64:asym")
        await ready(pilot)
        await pilot.click(bar, offset=(line.index("64") - bar.region.x, 0), shift=True)
        await until(pilot, lambda: str(panel.shown.scheme) == "int4:group32:asym")
        await ready(pilot)
        await pilot.click(bar, offset=(4, 1))  # the line of scheme B
        await until(pilot, lambda: panel.shown.active == 1)


async def test_an_impossible_turn_says_why_and_changes_nothing(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        await press(pilot, "D")
        assert "dq is for nf4 and fp4" in panel.sentence
        assert "dq is for nf4 and fp4" in screen_text(pilot.app)
        assert str(panel.shown.scheme) == "int4:group64"
        assert panel.phase is AskingPhase.READY
        # it is not talked over by work that ends later, and goes with the next key
        for key in ("X", "right_parenthesis"):
            await pilot.press(key)
        await ready(pilot)
        assert "nf4 cannot be scaled" in panel.sentence
        await press(pilot, "X")
        assert panel.sentence.startswith("int4:group64")


async def test_a_scheme_can_be_typed(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        await pilot.press("s", *"int9", "enter")
        await settled(pilot)
        assert "Unknown format 'int9'" in screen_text(pilot.app)
        assert pilot.app.screen.is_modal  # to be corrected
        await pilot.press("home", "shift+end", *"e4m3:row", "enter")
        await until(pilot, lambda: str(panel.shown.scheme) == "e4m3:row")
        await ready(pilot)
        before = panel.sentence
        await pilot.press("s", *"nf4", "escape")
        await ready(pilot)
        assert (str(panel.shown.scheme), panel.sentence) == ("e4m3:row", before)
        await pilot.press("f", *"nf4", "enter")
        await until(pilot, lambda: str(panel.shown.scheme) == "nf4:block64")
        await pilot.press("t", *"odd.z", "enter")
        await until(pilot, lambda: panel.shown.entry.name == "odd.zeros")


async def test_a_filter_takes_scattered_letters_and_escape_clears_it(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        names = lambda: [e.name for e in panel.body.side.list.shown]  # noqa: E731
        await pilot.press("slash", *"Layers.1 proj")
        ups = ["model.layers.1.mlp.down_proj.weight", "model.layers.1.mlp.up_proj.weight"]
        assert names() == ups
        await press(pilot, "enter", "down")
        assert panel.shown.entry is not None
        assert panel.shown.entry.name == "model.layers.1.mlp.up_proj.weight"
        assert names() == ups
        await press(pilot, "escape")  # the filter that was taken
        assert len(names()) == len(tensors())
        assert panel.shown.entry.name == "model.layers.1.mlp.up_proj.weight"
        await pilot.press("slash", *"l1up")  # as `t` takes them
        assert names() == ["model.layers.1.mlp.up_proj.weight"]
        await pilot.press("escape")
        assert len(names()) == len(tensors())
        assert panel.body.side.list.current == panel.shown.entry
        await pilot.press("enter")
        assert pilot.app.focused is panel.body.heatmap
        await pilot.press("escape")
        assert pilot.app.focused is panel.body.side.list
        await pilot.press("slash", *"nowhere")
        assert names() == []
        assert "no name has nowhere" in screen_text(pilot.app)
        shown = panel.shown.entry
        await pilot.press("enter", "down", "enter", "escape")
        assert panel.phase is AskingPhase.READY
        assert panel.body.side.list.current is shown is panel.shown.entry


async def test_a_change_of_a_scheme_is_undone_and_made_again(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        written = lambda: [str(each) for each in panel.shown.schemes]  # noqa: E731
        first = written()
        await press(pilot, "u")  # nothing was changed yet
        assert written() == first
        await press(pilot, "a")
        await press(pilot, "X", "f", *"e4m3", "enter")
        await ready(pilot)
        changed = written()
        assert changed == ["int4:group64:asym", "e4m3:block64"]
        await press(pilot, "u")
        assert written() == ["int4:group64:asym", first[1]]
        await press(pilot, "u")
        assert written() == first
        assert panel.shown.active == 0
        await press(pilot, "U", "U")
        await ready(pilot)
        assert written() == changed
        assert str(panel.shown.errors[1].scheme) == "e4m3:block64"


def marked_and_shown(pilot: Pilot[None]) -> tuple[str, str]:
    """The tensor that the list marks and the one that everything else is of."""
    panel = panel_of(pilot)
    marked = panel.body.side.list.current
    assert marked is not None
    assert panel.shown.entry is not None
    assert panel.body.title_line.subject == panel.shown.entry.name
    return marked.name, panel.shown.entry.name


@pytest.mark.parametrize("leave", ["enter", "tab"])
async def test_the_marked_match_is_opened(running: Running, model: str, leave: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        await pilot.press("slash", *"up_proj", leave)
        await idle(pilot)
        await ready(pilot)
        assert marked_and_shown(pilot) == ("model.layers.1.mlp.up_proj.weight",) * 2
        assert "all 2,560 values" in screen_text(pilot.app)
        await pilot.press("slash", "escape")  # the filter goes, the tensor stays
        assert len(panel.body.side.list.shown) == len(tensors())
        assert marked_and_shown(pilot) == ("model.layers.1.mlp.up_proj.weight",) * 2


async def test_escape_leaves_the_filter_for_the_tensor_that_is_shown(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        for text in ("holes", "nowhere"):
            await pilot.press("slash", *text)
            await idle(pilot)
            assert panel.shown.entry is not None
            assert panel.shown.entry.name == PROJ  # typing only marks
            await pilot.press("escape")
            await idle(pilot)
            assert marked_and_shown(pilot) == (PROJ, PROJ)
            assert panel.phase is AskingPhase.READY


async def test_keys_that_come_in_one_burst(running: Running, model: str) -> None:
    """As over a slow line: none of the text is a key of the list."""
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        for key in ("slash", *"zeros", "enter"):
            event = events.Key(key, key if len(key) == 1 else "/" if key == "slash" else None)
            event.set_sender(pilot.app)
            pilot.app.post_message(event)
        await until(pilot, lambda: panel.body.title_line.subject == "odd.zeros")
        assert panel.body.side.list.order is TensorOrder.MODEL
        await ready(pilot)
        assert marked_and_shown(pilot) == ("odd.zeros", "odd.zeros")


async def test_the_help_shows_every_key_with_its_whole_id(running: Running, model: str) -> None:
    async with running((100, 50), model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        for widget in (panel.body.side.list, panel.body.heatmap):
            widget.focus()
            await pilot.press("question_mark")
            await settled(pilot)
            keys = pilot.app.screen.query_one("#help-keys", Static)
            lines = [line for line in str(keys.content).splitlines() if line.strip()]
            assert len(lines) > 30
            assert max(map(len, lines)) <= keys.parent.content_size.width
            ids = {"quantize.granularity_back", "app.focus_previous", "app.export"}
            assert ids <= set(str(keys.content).split())
            await pilot.press("escape")


async def test_order_by_worst_error(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        side = panel.body.side
        await pilot.press("T", "T")
        assert side.list.order is TensorOrder.WORST
        expected = {
            name: measure(x, Scheme.parse("int4")).sqnr_db
            for name, x in tensors().items()
            if x.ndim == 2 and x.size
        }
        await until(pilot, lambda: set(side._sqnr) == set(expected))
        await settled(pilot)
        known = [e.name for e in side.list.shown if expected.get(e.name) is not None]
        assert known == sorted(known, key=lambda name: cast(float, expected[name]))
        assert side.list.current == panel.shown.entry
        assert f"{expected[PROJ]:.1f} dB" in screen_text(pilot.app)
        await pilot.press("T")
        assert side.list.order is TensorOrder.MODEL


async def test_tensors_that_are_odd(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)

        async def look_at(name: str) -> str:
            panel.body.side.list.select(name)
            await idle(pilot)
            assert panel.phase is not AskingPhase.WORKING
            return screen_text(pilot.app)

        assert "This tensor is empty" in await look_at("odd.empty")
        assert panel.phase is AskingPhase.FAILED
        text = await look_at("odd.holes")
        assert "1, 1" in next(line for line in text.splitlines() if "NaN, infinite" in line)
        assert "NaN or infinite" in panel.sentence
        text = await look_at("odd.zeros")
        assert "all 0" in text
        assert "Every element is zero" in panel.sentence
        assert "element (0, 0)" in await look_at("odd.scalar")
        text = await look_at("model.layers.0.norm.weight")
        assert "all 96 values" in text


async def test_counts_log_or_plain(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        await ready(pilot)
        assert "values, log count" in screen_text(pilot.app)
        await pilot.press("F")
        await settled(pilot)
        assert "values, count" in screen_text(pilot.app)


async def test_copy_and_export_hold_the_numbers(
    running: Running, model: str, tmp_path: Path
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        text = panel.copy_text()
        data = panel.export_data()
    assert text is not None
    assert data is not None
    assert PROJ in text
    assert panel.sentence in text
    report = measure(tensors()[PROJ], Scheme.parse("int4"))
    assert data["schemes"][0]["sqnr_db"] == report.sqnr_db
    assert max(data["maps"]["pictures"][0]["cells"]) == pytest.approx(report.max_abs_error)


async def test_the_map_is_read_again_for_another_size(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        small = panel.shown.map
        await pilot.resize_terminal(200, 50)
        await until(pilot, lambda: panel.shown.map is not small)
        await ready(pilot)
        assert small is not None
        assert panel.shown.map is not None
        assert panel.shown.map.grid.grid_columns > small.grid.grid_columns


async def test_the_engine_starts_with_the_panel_and_not_before(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="formats") as pilot:
        app = cast(Any, pilot.app)
        assert app.engine.state is EngineState.IDLE
        await pilot.press("2")
        await ready(pilot)
        assert app.engine.state is EngineState.RUNNING
