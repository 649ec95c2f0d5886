"""The keys of the shell: panels, help, palette, quit; and that every key can be rebound."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any, cast

import pytest
from every import collected
from quantize_model import write_model
from screens import Running, resized, screen_text, settled, until
from textual import events
from textual.binding import Binding
from textual.dom import DOMNode
from textual.geometry import Size
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input
from textual.widgets._toast import Toast

import qtui.tui
from qtui.screen.panel.asking import AskingPanel
from qtui.screen.picker.screen import PickerScreen
from qtui.tui.app import QtuiApp
from qtui.tui.config import Settings, load_config
from qtui.tui.header import TabBar
from qtui.tui.key_footer import KeyFooter
from qtui.tui.keymap import APP_BINDINGS, SCREEN_BINDINGS, checked_keymap, known_ids, own_bindings
from qtui.tui.panels import PANELS
from qtui.tui.picking.command import commands
from qtui.tui.screens import HelpScreen
from qtui_core.errors import UsageError


def every_class() -> set[type[DOMNode]]:
    """Every widget, screen and app class defined in qtui.tui."""
    found: set[type[DOMNode]] = set()
    for module in pkgutil.walk_packages(qtui.tui.__path__, "qtui.tui."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, DOMNode):
                found.add(value)
    return {cls for cls in found if cls.__module__.startswith("qtui.tui")}


def test_every_binding_has_an_id_a_tooltip_and_a_description() -> None:
    bindings = [b for cls in every_class() for b in own_bindings(cls)]
    assert len(bindings) > 40
    for binding in bindings:
        assert isinstance(binding, Binding)
        assert binding.id, binding
        assert binding.tooltip, binding
        assert binding.description, binding


def test_every_binding_of_a_panel_or_its_widgets_is_known_to_the_configuration() -> None:
    dialogs = {"help", "leave"}
    ids = {b.id for cls in every_class() for b in own_bindings(cls)}
    missing = {i for i in ids if i and i.partition(".")[0] not in dialogs} - known_ids()
    assert not missing


def test_one_id_means_one_action() -> None:
    actions: dict[str, set[str]] = {}
    for binding in Binding.make_bindings([*APP_BINDINGS, *SCREEN_BINDINGS]):
        actions.setdefault(binding.id or "", set()).add(binding.action)
    assert all(len(found) == 1 for found in actions.values())


async def test_digits_switch_panels(running: Running) -> None:
    async with running() as pilot:
        await pilot.press("6")
        await settled(pilot)
        assert pilot.app.panel.PANEL_ID == "numerics"
        assert pilot.app.screen.query_one(TabBar).active == "numerics"
        await pilot.press("1")
        await settled(pilot)
        assert pilot.app.panel.PANEL_ID == "formats"


async def test_digits_typed_into_a_field_stay_there(running: Running) -> None:
    async with running() as pilot:
        await pilot.press("i", "4", "2")
        await settled(pilot)
        assert pilot.app.panel.PANEL_ID == "formats"
        assert pilot.app.query_one("#formats-value", Input).value == "42"


async def test_a_click_on_a_tab_shows_its_panel(running: Running) -> None:
    async with running() as pilot:
        line = screen_text(pilot.app).splitlines()[1]
        await pilot.click("#tabs", offset=(line.index("Memory"), 0))
        await settled(pilot)
        assert pilot.app.panel.PANEL_ID == "memory"


async def test_help_names_the_panel_and_its_keys_and_closes(running: Running) -> None:
    async with running(size=(120, 60)) as pilot:
        for key in ("question_mark", "f1"):
            await pilot.press(key)
            await settled(pilot)
            assert isinstance(pilot.app.screen, HelpScreen)
            text = screen_text(pilot.app)
            assert "1 Formats" in text
            assert "formats.flip" in text
            await pilot.press("escape")
            await settled(pilot)
            assert not isinstance(pilot.app.screen, HelpScreen)


async def test_footer_offers_the_keys_that_work_now(running: Running) -> None:
    async with running(size=(160, 40)) as pilot:
        footer = pilot.app.screen.query_one(KeyFooter)
        offered = {hint.description for hint in (*footer.hints, *footer.always)}
        assert {"Flip", "Type", "Copy", "Palette", "Help", "Quit"} <= offered
        assert "Draw" not in offered  # only with stochastic rounding
        await pilot.press("i")
        await settled(pilot)
        typing = {hint.description for hint in footer.hints}
        assert "Back" in typing
        assert "Flip" not in typing


async def test_a_click_in_the_footer_presses_the_key(running: Running) -> None:
    async with running() as pilot:
        line = screen_text(pilot.app).splitlines()[-1]
        await pilot.click("#keys", offset=(line.index("? "), 0))
        await settled(pilot)
        assert isinstance(pilot.app.screen, HelpScreen)


async def test_a_click_on_a_message_that_is_gone(running: Running) -> None:
    """The picture on the screen still has it: Textual ended there."""
    async with running() as pilot:
        pilot.app.notify("soon gone")
        await settled(pilot)
        toast = pilot.app.screen.query_one(Toast)
        x, y = toast.region.offset
        held = toast.parent
        toast._parent = None
        down = events.MouseDown(None, x, y, 0, 0, 1, False, False, False, x, y)
        await pilot.app.on_event(down)
        toast._parent = held
        assert pilot.app._exception is None


async def test_palette_lists_noun_and_verb_and_only_what_works(running: Running) -> None:
    async with running() as pilot:
        titles = [entry.title for entry in commands(cast(QtuiApp, pilot.app))]
        assert len(titles) == len(set(titles))
        for title in titles:
            noun, colon, verb = title.partition(": ")
            assert colon
            assert noun.islower()
            assert verb[0].isupper()
        assert "panel: Show Memory" in titles
        assert "panel: Show Formats" not in titles  # it is shown
        assert "theme: Switch to qtui-light" in titles
        assert "theme: Switch to qtui-dark" not in titles
        assert "value: Set to the largest number of E4M3" in titles
        assert "formats: Draw" not in titles
        assert "app: Quit" in titles


async def test_palette_opens_and_runs_a_command(running: Running) -> None:
    async with running() as pilot:
        await pilot.press("ctrl+p")
        await settled(pilot)
        await pilot.press(*"qtui-light")
        await until(pilot, lambda: "Switch to qtui-light" in screen_text(pilot.app))
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.theme == "qtui-light")


async def test_q_quits(running: Running) -> None:
    async with running() as pilot:
        await pilot.press("q")
        await settled(pilot)
        assert pilot.app._exit


async def test_keys_are_rebound_by_id(running: Running) -> None:
    config = Settings(keys={"formats.flip": "x", "app.panel_memory": "m"})
    async with running(config=config) as pilot:
        before = pilot.app.panel.state
        await pilot.press("space")
        assert pilot.app.panel.state == before
        await pilot.press("x")
        assert pilot.app.panel.state != before
        await pilot.press("m")
        await settled(pilot)
        assert pilot.app.panel.PANEL_ID == "memory"


def test_an_unknown_id_is_refused_with_the_nearest_one() -> None:
    from qtui.tui.app import QtuiApp

    with pytest.raises(UsageError, match=r"formats\.flipp.*formats\.flip"):
        QtuiApp(config=Settings(keys={"formats.flipp": "x"}))


async def open_by_keys(pilot: Pilot[None], model: str) -> None:
    await pilot.press("ctrl+o")
    await settled(pilot)
    assert isinstance(pilot.app.screen, PickerScreen)
    pilot.app.screen.query_one(Input).value = model
    await pilot.press("enter")


async def test_another_model_can_be_opened(running: Running, tmp_path: Path) -> None:
    model = write_model(tmp_path / "small")
    async with running(start_panel="memory") as pilot:
        await open_by_keys(pilot, model)
        await until(pilot, lambda: pilot.app.model == model)
        await settled(pilot)
        first = screen_text(pilot.app).splitlines()[0]
        assert "small" in first
        assert "54.9 K parameters" in first


@pytest.mark.parametrize("start_panel", ["formats", "quantize"])
async def test_a_model_that_fails_leaves_the_open_one_alone(
    running: Running, tmp_path: Path, start_panel: str
) -> None:
    model = write_model(tmp_path / "small")
    options = {"model": model, "start_panel": start_panel, "look_ahead": True}
    async with running(size=(160, 40), **options) as pilot:
        await until(pilot, lambda: "54.9 K" in screen_text(pilot.app))
        await settled(pilot)
        opened: list[str] = []
        pilot.app.panel.open_model = opened.append
        (tmp_path / "nope").mkdir()
        await open_by_keys(pilot, str(tmp_path / "nope"))
        await until(pilot, lambda: "stays open" in screen_text(pilot.app))
        assert pilot.app.model == model
        assert not opened
        first = screen_text(pilot.app).splitlines()[0]
        assert "54.9 K parameters" in first
        assert "nope" not in first


async def test_a_first_model_that_fails_is_said_on_any_panel(
    running: Running, tmp_path: Path
) -> None:
    async with running(model=str(tmp_path / "nope"), look_ahead=True) as pilot:
        await until(
            pilot, lambda: "could not be opened" in screen_text(pilot.app).splitlines()[0], 20
        )
        assert "nope" in pilot.app.model_failure
        assert not pilot.app.model_opened
        model = write_model(tmp_path / "small")
        await open_by_keys(pilot, model)
        await until(pilot, lambda: pilot.app.model_opened)
        await settled(pilot)
        assert "could not" not in screen_text(pilot.app).splitlines()[0]


async def test_the_line_about_a_model_is_not_cut(running: Running) -> None:
    async with running() as pilot:
        await pilot.press("ctrl+o")
        with collected() as case:
            for size in ((120, 40), (80, 24), (60, 16)):
                with case(size):
                    await resized(pilot, size)
                    lines = screen_text(pilot.app).splitlines()
                    inside = [line.split("│")[1] for line in lines if "│" in line]
                    words = " ".join(" ".join(inside).split())
                    assert "weights when they are shown." in words


async def test_the_zoom_is_left_by_a_key_the_footer_names(running: Running) -> None:
    async with running() as pilot:
        with collected() as case:
            for size in ((80, 24), (120, 40), (200, 50)):
                with case(size):
                    await resized(pilot, size)
                    await pilot.press("z")
                    await settled(pilot)
                    footer = screen_text(pilot.app).splitlines()[-1]
                    assert "Unzoom" in footer
                    assert "Zoom" not in footer.replace("Unzoom", "")
                    await pilot.press("z")
                    await settled(pilot)
                    hints = pilot.app.screen.query_one(KeyFooter).hints
                    offered = {hint.description for hint in hints}
                    assert "Unzoom" not in offered
                    assert "Zoom" in offered


async def test_the_palette_finds_the_zoom_by_max(running: Running) -> None:
    async with running() as pilot:
        await pilot.press("ctrl+p")
        await settled(pilot)
        await pilot.press(*"max")
        await until(pilot, lambda: "Zoom the main picture (maximise)" in screen_text(pilot.app))


async def test_help_names_the_configuration_and_the_panels(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTUI_CONFIG", str(tmp_path / "my.toml"))
    async with running(size=(140, 90)) as pilot:
        await pilot.press("question_mark")
        await settled(pilot)
        text = screen_text(pilot.app)
        assert "my.toml" in text.replace("\n", "").replace(" ", "")
        assert "[keys]" in text
        assert '"formats.next" = "n"' in text
        for entry in PANELS:
            assert f"Show the {entry.title} panel" in text


async def test_the_example_in_the_help_is_a_valid_configuration(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[keys]\n"formats.next" = "n"\n')
    config = load_config({"QTUI_CONFIG": str(path)})
    assert dict(checked_keymap(config.keys)) == {"formats.next": "n"}


@pytest.mark.parametrize("dialog", ["", "question_mark"])
async def test_two_sizes_in_a_burst_end_at_the_newest(
    running: Running, monkeypatch: pytest.MonkeyPatch, dialog: str
) -> None:
    laid_out: list[Size] = []
    lay_out = Screen._refresh_layout

    def counted(screen: Screen[Any], size: Size | None = None, scroll: bool = False) -> None:
        laid_out.append(size or screen.size)
        assert len(laid_out) < 100, "each size brings the other back"
        screen.post_message(events.Show())  # as a busy app does: sizes side by side are told as one
        lay_out(screen, size, scroll)

    async with running() as pilot:
        app = cast(QtuiApp, pilot.app)
        await pilot.press(*[dialog] * bool(dialog))
        await settled(pilot)
        monkeypatch.setattr(Screen, "_refresh_layout", counted)
        old, new = Size(61, 17), app.size
        for size in (old, new):
            app.screen.post_message(events.Resize(size, size))
            app.screen.post_message(events.Show())
        await settled(pilot)
        assert app.screen.size == app.shell.size == new
        assert laid_out


def test_a_panel_that_is_being_made_takes_no_key() -> None:
    panels = [entry.load()() for entry in PANELS]
    asking = [panel for panel in panels if isinstance(panel, AskingPanel)]
    assert asking
    assert not any(panel.check_action("move", ()) for panel in asking)
