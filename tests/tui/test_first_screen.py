"""The first lines, on the terminal before Textual is imported: they are those that the app draws,
no key is lost, and whatever happens meanwhile the terminal is as it was."""

from __future__ import annotations

import os
import signal
import termios
from pathlib import Path
from typing import Any

import pyte
import pytest
from every import collected, over
from rich.color import Color, ColorSystem
from screens import Running
from terminals import Terminal, program

from qtui.cli.commands import COMMANDS
from qtui.screen.depth import Depth
from qtui.tui.config import Settings
from qtui.tui.first.lines import first_lines, in_palette
from qtui.tui.first.screen import ENTER, LEAVE, read_arguments
from qtui.tui.theme import theme_parts

HEADER_END = len(" qtui · demo")


def drawn(text: str, size: tuple[int, int]) -> pyte.Screen:
    screen = pyte.Screen(*size)
    pyte.Stream(screen).feed(text)
    return screen


def cells(screen: pyte.Screen, line: int, columns: int) -> list[Any]:
    """Of each cell what can be seen: blanks have no foreground."""
    return [
        (c.data, c.bg, c.reverse, *((c.fg, c.bold) if c.data != " " else ()))
        for c in (screen.buffer[line][column] for column in range(columns))
    ]


LOOKS = [
    ((120, 40), {}, "truecolor"),
    ((80, 24), {"theme": "qtui-light"}, "truecolor"),
    ((80, 24), {"theme": "qtui-contrast", "start_panel": "memory"}, "256"),
    ((120, 40), {"theme": "qtui-light", "ascii": True}, "256"),
    ((80, 24), {}, "16"),
    ((120, 40), {"theme": "qtui-light"}, "16"),
    ((80, 24), {"theme": "qtui-contrast"}, "16"),
    ((60, 16), {"ascii": True, "start_panel": "hardware"}, "none"),
    ((120, 40), {}, "none"),
]


async def test_the_first_lines_are_those_that_the_app_draws(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collected() as case:
        for size, settings, color in LOOKS:
            for name, value in settings.items():
                monkeypatch.setenv(
                    f"QTUI_{name.upper()}", str(int(value) if value is True else value)
                )
            async with running(size=size, color=color, config=Settings(**settings)) as pilot:
                strips = pilot.app.screen._compositor.render_strips()
                lines = [strip.render(pilot.app.console) for strip in strips]
            app = drawn("\r\n".join(lines), size)
            first = drawn(first_lines("demo", color, False, *size), size)
            for line, columns in ((0, HEADER_END), (1, size[0])):
                with case(f"{size} {settings} {color} line {line}"):
                    assert cells(first, line, columns) == cells(app, line, columns)
            with case(f"{size} {settings} {color}: the ground of the keys"):
                last = size[1] - 1
                assert first.buffer[last][0].bg == app.buffer[last][0].bg
            for name in settings:
                monkeypatch.delenv(f"QTUI_{name.upper()}")


def test_colours_of_the_palette_are_those_that_rich_sends() -> None:
    for theme in theme_parts(Depth.C256):
        for color in {**theme, **theme["variables"]}.values():
            if isinstance(color, str) and color.startswith("#") and len(color) == 7:
                sent = Color.parse(color).downgrade(ColorSystem.EIGHT_BIT).number
                assert in_palette(*bytes.fromhex(color[1:])) == sent, color


@over(
    "words, found",
    [
        ((), ("", {})),
        (("a/b", "--ascii"), ("a/b", {"--ascii": ""})),
        (("--color", "16", "x"), ("x", {"--color": "16"})),
        (("--color=none", "--debug"), ("", {"--color": "none", "--debug": ""})),
        (("--help",), None),
        (("--version",), None),
        (("doctor",), None),
        (("--ascii", "memory"), None),
        (("a", "b"), None),
        (("--unknown",), None),
        (("-",), None),
    ],
)
def test_arguments_that_open_the_app(words: tuple[str, ...], found: Any) -> None:
    assert read_arguments(words, COMMANDS) == found


def test_a_wrong_colour_or_configuration_is_not_drawn(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qtui_core.errors import UsageError

    with pytest.raises(UsageError):
        first_lines("demo", "purple", False, 80, 24)
    monkeypatch.setenv("QTUI_THEME", "nord")
    assert first_lines("demo", "auto", False, 80, 24) == ""


def modes(terminal: Terminal) -> list[Any]:
    return termios.tcgetattr(terminal.fd)


#: Holds the import of Textual up until a file is there.
SLOW = """
import importlib.abc, pathlib, sys, time
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "textual":
            {what}
            while not pathlib.Path("go").exists():
                time.sleep(0.01)
sys.meta_path.insert(0, Slow())
sys.argv = ["qtui"]
from qtui.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.pty
def test_keys_typed_before_textual_is_imported_are_taken(tmp_path: Path) -> None:
    with program(tmp_path, "-c", SLOW.format(what="")) as terminal:
        before = modes(terminal)
        terminal.wait_for("1 Formats")
        assert "E4M3" not in terminal.text
        terminal.send("i0x7e\r")  # Enter, not a line feed
        terminal.settle(0.2)
        assert "0x7e" not in terminal.text  # not echoed
        (tmp_path / "go").touch()
        terminal.wait_for("E4M3 0x7e")
        terminal.send("q")
        assert terminal.exit_code() == 0
        assert terminal.written.count(ENTER.encode()) == terminal.written.count(LEAVE.encode()) == 1
        assert before[3] & termios.ECHO


@pytest.mark.slow
@pytest.mark.pty
def test_enter_typed_before_the_app_has_the_terminal_is_enter(tmp_path: Path) -> None:
    with program(tmp_path, "-c", SLOW.format(what="")) as terminal:
        terminal.send("i0x7e\r")
        (tmp_path / "go").touch()
        terminal.wait_for("E4M3 0x7e")
        terminal.send("q")
        assert terminal.exit_code() == 0


#: A program between, in whose terminal the modes can be seen afterwards.
AROUND = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
subprocess.run([sys.executable, "-c", {program!r}], preexec_fn=heed)
print("over")
input()
"""


@pytest.mark.slow
@pytest.mark.pty
@pytest.mark.parametrize("ends", ["raises", "interrupted", "terminated"])
def test_a_start_that_ends_early_brings_the_terminal_back(tmp_path: Path, ends: str) -> None:
    what = 'raise ImportError("planted")' if ends == "raises" else ""
    script = AROUND.format(program=SLOW.format(what=what))
    with program(tmp_path, "-c", script) as terminal:
        before = modes(terminal)
        terminal.wait_until(lambda: ENTER.encode() in terminal.written)
        terminal.wait_until(lambda: b"Formats" in terminal.written)
        if ends == "interrupted":
            terminal.send("\x03")
        if ends == "terminated":
            [child] = Path(f"/proc/{terminal.pid}/task/{terminal.pid}/children").read_text().split()
            os.kill(int(child), signal.SIGTERM)
        terminal.wait_until(lambda: b"over" in terminal.written)
        after = terminal.written[terminal.written.index(LEAVE.encode()) :].decode()
        assert modes(terminal) == before
        assert ("planted" in after) == (ends == "raises")
        assert "Traceback" not in after
