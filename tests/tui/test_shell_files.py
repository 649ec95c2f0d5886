"""What the shell reads and writes: configuration, clipboard, exports, log."""

from __future__ import annotations

import io
import json
import math
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from disks import room_for
from screens import Running, screen_text, settled, until

from qtui.tui.clipboard import copy_text
from qtui.tui.config import Settings, config_file, load_config
from qtui.tui.exporting import export
from qtui.tui.panels.formats.panel import FormatsPanel
from qtui_core.errors import QtuiError, UsageError


def write(path: Path, text: str) -> dict[str, str]:
    path.write_text(text, encoding="utf-8")
    return {"QTUI_CONFIG": str(path)}


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load_config({"HOME": str(tmp_path)}) == Settings() or config_file({}).exists()


def test_a_terminal_whose_encoding_has_no_box_characters_gets_ascii(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be written as `\\u2026`, which is six characters wide."""
    monkeypatch.setattr(sys, "__stderr__", io.TextIOWrapper(io.BytesIO(), "latin-1"))
    assert load_config({"HOME": str(tmp_path)}).ascii
    assert not load_config({"HOME": str(tmp_path), "QTUI_ASCII": "no"}).ascii


def test_file_then_environment(tmp_path: Path) -> None:
    env = write(
        tmp_path / "c.toml",
        'theme = "qtui-light"\ncolor = "256"\n[keys]\n"app.quit" = "Q"\n',
    )
    config = load_config({**env, "QTUI_COLOR": "16", "QTUI_ASCII": "yes", "QTUI_THREADS": "3"})
    assert config == Settings(
        theme="qtui-light", color="16", ascii=True, threads=3, keys={"app.quit": "Q"}
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tehme = 'x'", "'tehme'.*Did you mean theme"),
        ("color = '8'", "color is '8'; it is one of auto, truecolor"),
        ("threads = 9999", "threads is 9999; it is from 1 to 4096"),
        ("threads = 'all'", "threads is 'all'; it takes a whole number"),
        ("threads = true", "threads is True; it takes a whole number"),
        ("ascii = 'yes'", "ascii is 'yes'; it takes true or false"),
        ("color = 256", "color is 256; it takes text"),
        ("start_panel = 'codes'", "start_panel is 'codes'"),
        ("keys = 'q'", "keys is a table"),
        ("theme = ", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    env = write(tmp_path / "c.toml", text)
    with pytest.raises(UsageError, match=said):
        load_config(env)


def test_unknown_or_wrong_variables_are_refused() -> None:
    with pytest.raises(UsageError, match=r"QTUI_COLOUR.*QTUI_COLOR"):
        load_config({"QTUI_COLOUR": "256"})
    with pytest.raises(UsageError, match="QTUI_ASCII is 'perhaps'"):
        load_config({"QTUI_ASCII": "perhaps"})
    with pytest.raises(UsageError, match="threads is 'many'; it takes a whole number"):
        load_config({"QTUI_THREADS": "many"})


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_config({"QTUI_CONFIG": str(tmp_path / "none.toml")})


def test_an_unknown_theme_is_refused() -> None:
    from qtui.tui.app import QtuiApp

    with pytest.raises(UsageError, match="Unknown theme 'sepia'"):
        QtuiApp(config=Settings(theme="sepia"))


# The clipboard chain


async def loaded(text: str) -> bool:
    return True


async def refused(text: str) -> bool:
    return False


async def test_tmux_comes_first() -> None:
    sent: list[str] = []
    copied = await copy_text(
        "x", send_osc52=sent.append, environment={"TMUX": "1"}, load_buffer=loaded
    )
    assert "tmux" in copied.where
    assert not sent


async def test_osc52_outside_tmux() -> None:
    sent: list[str] = []
    copied = await copy_text("x", send_osc52=sent.append, environment={})
    assert "OSC 52" in copied.where
    assert sent == ["x"]


async def test_a_file_where_tmux_refuses_or_the_text_is_too_long(tmp_path: Path) -> None:
    sent: list[str] = []
    file = tmp_path / "new" / "copied.txt"
    copied = await copy_text(
        "in tmux",
        send_osc52=sent.append,
        environment={"TMUX": "1"},
        load_buffer=refused,
        file=file,
    )
    assert str(file) in copied.where
    assert file.read_text() == "in tmux"
    await copy_text("x" * 100_000, send_osc52=sent.append, environment={}, file=file)
    assert len(file.read_text()) == 100_000
    assert not sent


async def test_y_copies_the_table_and_says_where(running: Running) -> None:
    async with running() as pilot:
        await pilot.press("y")
        await until(pilot, lambda: "Copied to the terminal's" in screen_text(pilot.app))
        assert pilot.app.clipboard.splitlines()[0].startswith("format\tbits\thex")
        assert "E4M3\t0 0011 101\t0x1d\t0.1015625\t" in pilot.app.clipboard


async def test_e_writes_a_picture_and_the_data_and_says_where(
    running: Running, tmp_path: Path
) -> None:
    async with running() as pilot:
        await pilot.press("e")
        await until(pilot, lambda: "Wrote" in screen_text(pilot.app))
        (picture,) = tmp_path.glob("qtui-formats-*.svg")
        (data,) = tmp_path.glob("qtui-formats-*.json")
        assert picture.read_text().startswith("<svg")
        document = json.loads(data.read_text())
        assert document["schema_version"] == 1
        assert document["panel"] == "formats"
        e4m3 = next(f for f in document["formats"] if f["name"] == "e4m3")
        assert e4m3["hex"] == "0x1d"


async def test_e_writes_null_for_what_json_has_no_number_for(
    running: Running, tmp_path: Path
) -> None:
    async with running() as pilot:
        panel = pilot.app.panel
        for value in (Fraction(448), math.inf, math.nan, Fraction(10) ** 400):
            panel.show_value(value, "here")
            await pilot.press("e")
            await until(pilot, lambda: bool(list(tmp_path.glob("qtui-formats-*.json"))))
            (path,) = tmp_path.glob("qtui-formats-*.json")

            def refuse(constant: str) -> None:
                raise AssertionError(f"{constant} in JSON")

            document = json.loads(path.read_text(), parse_constant=refuse)
            assert document["panel"] == "formats"
            if value == 448:
                e4m3 = next(f for f in document["formats"] if f["name"] == "e4m3")
                assert e4m3["value"] == 448
                assert e4m3["above"] is None  # there is no number above the largest
            path.unlink()


async def test_an_export_that_fails_inside_is_a_notice(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: FormatsPanel) -> None:
        raise RuntimeError("planted\nhere")

    async with running() as pilot:
        monkeypatch.setattr(FormatsPanel, "export_data", broken)
        await pilot.press("e")
        await until(pilot, lambda: "Nothing was exported: planted here" in screen_text(pilot.app))


async def test_an_export_that_cannot_be_written_is_said(running: Running, tmp_path: Path) -> None:
    async with running() as pilot:
        pilot.app.config = Settings(export_folder=str(tmp_path / "missing"))
        await pilot.press("e")
        await until(pilot, lambda: "Nothing was exported" in screen_text(pilot.app))


def test_a_disk_that_is_full_leaves_no_file_behind(tmp_path: Path) -> None:
    with room_for(100), pytest.raises(QtuiError, match="File too large"):
        export(tmp_path, "quantize", "<svg/>", {"a": "x" * 200}, [("a",), (1,)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("back", ["z", "escape"])
async def test_z_gives_the_picture_all_the_room_but_the_sentence_and_the_keys(
    running: Running, back: str
) -> None:
    async with running() as pilot:
        before = screen_text(pilot.app)
        await pilot.press("z")
        await settled(pilot)
        text = screen_text(pilot.app)
        assert text.splitlines()[0].split()[:2] == ["format", "s"]
        assert "E4M3 makes 0.10156 of 0.1" in text
        assert "q Quit" in text
        assert "rounding" not in text
        await pilot.press(back)
        await settled(pilot)
        assert screen_text(pilot.app) == before


async def test_another_panel_ends_the_zoom(running: Running) -> None:
    async with running() as pilot:
        before = screen_text(pilot.app)
        await pilot.press("z", "4")
        await settled(pilot)
        assert "4 Memory" in screen_text(pilot.app)
        await pilot.press("1")
        await settled(pilot)
        assert screen_text(pilot.app) == before


async def test_no_notification_lies_over_an_exported_picture(
    running: Running, tmp_path: Path
) -> None:
    async with running() as pilot:
        pilot.app.notify("lies over the picture")
        await settled(pilot)
        assert "lies over" in screen_text(pilot.app)
        await pilot.press("e")
        await until(pilot, lambda: bool(list(tmp_path.rglob("*.svg"))))
        (picture,) = tmp_path.rglob("*.svg")
        assert "lies" not in picture.read_text()
