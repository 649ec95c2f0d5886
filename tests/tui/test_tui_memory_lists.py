"""Lists with a chosen line, and a field with typed text, when their contents change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from memory_estimator import HandMade
from screens import Running, screen_text, settled, until
from test_tui_memory_layout import estimator, ready, show  # noqa: F401 (a fixture)

from qtui.engine.estimator.answers import Assessment
from qtui.report.pictures.glyphs import UNICODE
from qtui.screen.plan.shown import Shown
from qtui.screen.widgets.text_picture import Canvas
from qtui.tui.panels.memory.savings_view import SavingsView
from qtui_core.memory.advice.fit import Advice
from qtui_core.memory.plan.run_plan import RunPlan


async def test_a_list_of_savings_that_becomes_shorter(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await show(pilot, "Savings")
        estimator.advised = 1
        await pilot.press("down", "enter")
        await ready(pilot)
        assert panel.shown.plan.lora_rank == 8
        await pilot.press("enter")
        await ready(pilot)
        assert panel.shown.plan.loss == "tiled"
        estimator.advised = 0
        await pilot.press("plus", "enter", "down", "enter")
        await ready(pilot)
        assert "no single change of the plan saves" in screen_text(pilot.app)


def test_a_change_is_cut_only_where_there_is_no_room() -> None:
    long = "--method qlora --autocast --quant nf4-dq --kbit-prep all --checkpointing"
    advice = Advice(long, RunPlan(), 1 << 30, "adapters in place of weights", "backward", {})
    around = Assessment((advice,), (), (), "", (), {})
    shown = Shown("m", answer=cast(Any, object()), around=around)
    shown.answered = shown.asked
    for width, whole in ((160, True), (90, False)):
        line = SavingsView(cast(Any, None)).draw(shown, Canvas(width, 20, UNICODE))[1]
        assert (long in [put.text for put in line]) == whole
        assert max(put.column + len(put.text) for put in line) <= width


async def test_what_was_not_weighed_is_not_said_to_save_nothing(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    estimator.advised, estimator.weighed = 0, False
    async with running((120, 40), start_panel="memory") as pilot:
        await ready(pilot)
        assert "not weighed" in screen_text(pilot.app)
        await show(pilot, "Savings")
        text = screen_text(pilot.app)
        assert "savings are not known: a trace covers one plan" in text
        assert "no single change" not in text


async def test_the_chosen_gpu_stays_under_the_cursor(running: Running) -> None:
    """It moves to the top, where the others of the list move down."""
    async with running(start_panel="memory") as pilot:
        panel = await show(pilot, "GPUs")
        await pilot.press("down", "enter")
        await ready(pilot)
        chosen = panel.shown.gpu
        assert chosen is not None
        assert chosen.label == "A100 SXM4 80GB"
        assert panel.shown.line == 0


async def test_a_click_on_another_field_ends_the_typing(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        await pilot.press("enter", "4")
        assert panel.body.typing
        line = panel.body.form._lines.index(2)  # the sequence
        await pilot.click(panel.body.form, offset=(4, line))
        await settled(pilot)
        assert not panel.body.typing
        assert not panel.body.field.region
        assert panel.shown.knob == 2
        assert panel.shown.plan.batch == 1


async def test_a_value_that_cannot_be_stays_to_be_corrected(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        for typed, told in (
            ("0", "The batch is between 1 and"),
            ("9" * 13, "A number of 13 digits is more"),
            ("-3", "'-3' is no whole number"),
        ):
            await pilot.press("enter" if not panel.body.typing else "ctrl+u", *typed, "enter")
            await settled(pilot)
            assert told in panel.sentence
            assert panel.body.typing
            assert panel.body.field.value.endswith(typed)
        await pilot.press("escape")
        await settled(pilot)
        assert panel.shown.plan.batch == 1
        assert panel.view.TITLE == "Step"
        await until(pilot, lambda: panel.body.form.has_focus)


async def test_a_form_says_that_it_goes_on(running: Running) -> None:
    async with running((80, 24), start_panel="memory") as pilot:
        panel = await ready(pilot)
        form, glyphs = panel.body.form, pilot.app.drawing.glyphs
        last = len(form._lines) - 1

        def ends() -> tuple[bool, bool]:
            return (
                form.render_line(0).text.endswith(glyphs.marker),
                form.render_line(last).text.endswith(glyphs.marker_down),
            )

        assert ends() == (False, True)
        await pilot.press(*["down"] * 12)
        await settled(pilot)
        assert ends() == (True, True)
        await pilot.press("G")
        await settled(pilot)
        assert panel.shown.knob == len(form._fields) - 1
        assert ends() == (True, False)
        await pilot.resize_terminal(120, 50)
        await settled(pilot)
        assert form._hidden == (0, 0)


async def test_a_form_draws_what_changed(running: Running) -> None:
    """And nothing else: what is on the screen is as if all had been drawn."""
    async with running((100, 30), start_panel="memory") as pilot:
        panel = await ready(pilot)
        for keys in (["down"] * 3, ["right"], ["down"] * 20, ["up"] * 22, ["right"] * 3, ["left"]):
            await pilot.press(*keys)
            await ready(pilot)
            seen = screen_text(pilot.app)
            panel.body.form.refresh()
            await settled(pilot)
            assert screen_text(pilot.app) == seen


async def test_a_map_says_what_fits_when_all_of_it_is_known(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await show(pilot, "Map")
        cells = dict(panel.shown.cells)
        assert "the longest sequence that fits" in panel.sentence
        for place in ((64, 32768), (1, 256), (8, 2048)):
            panel.shown.cells = {k: v for k, v in cells.items() if k != place}
            panel.draw()
            assert panel.sentence == "Computing which cells fit RTX 4090."
        panel.shown.cells = {**cells, (8, 2048): replace(cells[8, 2048], verdict=None)}
        panel.draw()
        assert panel.sentence == "Computing which cells fit RTX 4090."
