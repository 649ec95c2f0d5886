"""The real program in a real (pseudo-)terminal: it draws, it quits, and it restores the
terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from terminals import program

pytestmark = pytest.mark.pty

ENTER_ALTERNATE, LEAVE_ALTERNATE = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.mark.parametrize(
    "environment",
    [{}, {"COLORTERM": "truecolor"}, {"NO_COLOR": "1"}, {"TERM": "linux"}, {"QTUI_ASCII": "1"}],
    ids=["256", "truecolor", "NO_COLOR", "16", "ascii"],
)
def test_it_draws_takes_keys_and_quits_with_0(tmp_path: Path, environment: dict[str, str]) -> None:
    with program(tmp_path, "-m", "qtui", **environment) as terminal:
        terminal.wait_for("0.1015625")
        terminal.send("i0x7e\r")  # in one go, as a paste: none of it is a key of the panel
        terminal.wait_for("E4M3 0x7e")
        terminal.send("q")
        assert terminal.exit_code() == 0
        assert terminal.written.count(ENTER_ALTERNATE) == terminal.written.count(LEAVE_ALTERNATE)
        if "COLORTERM" not in environment:
            assert b"38;2;" not in terminal.written  # no 24-bit colour that was not asked for


def test_a_wrong_configuration_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("colour = '256'\n")
    with program(tmp_path, "-m", "qtui", QTUI_CONFIG=str(config)) as terminal:
        assert terminal.exit_code() == 2
        said = terminal.written.decode()
        assert "Unknown setting 'colour'" in said
        assert "Traceback" not in said
        assert ENTER_ALTERNATE not in terminal.written


def test_keys_sent_in_one_burst_are_taken_in_order(tmp_path: Path) -> None:
    with program(tmp_path, "-m", "qtui") as terminal:
        terminal.wait_for("0.1015625")
        terminal.send("i\x15448\r")
        terminal.wait_for("E4M3 0x7e")
        terminal.send("i99\x7f\x7f\x15-2\x7f4\x1b[D1\r")
        terminal.wait_for("value -14 ")
        terminal.send("q")
        assert terminal.exit_code() == 0


def test_esc_and_the_next_key_of_the_same_packet_are_two_keys(tmp_path: Path) -> None:
    with program(tmp_path, "-m", "qtui") as terminal:
        terminal.wait_for("0.1015625")
        terminal.send("i99\x1b\x1b[B")  # leaves the field, and goes to the next format
        terminal.wait_for("value 0.1 ")
        terminal.send("?")
        terminal.wait_for("Esc closes")
        terminal.send("\x1b4")
        terminal.wait_for("process 554 MiB")
        terminal.send("\r")
        terminal.wait_for("batch 1   ")
        terminal.send("\x1bv")
        terminal.wait_for("▸Parts")
        terminal.send("q")
        assert terminal.exit_code() == 0


def test_no_color_sends_no_colour_and_keeps_the_terminals_background(tmp_path: Path) -> None:
    with program(tmp_path, "-m", "qtui", NO_COLOR="1", COLORTERM="truecolor") as terminal:
        terminal.wait_for("0.1015625")
        for keys, shown in (("i", "Back"), ("\r", "Flip"), ("?", "Esc closes"), ("q", "FP64")):
            terminal.send(keys)
            terminal.wait_for(shown)
        terminal.send("\x10")
        terminal.wait_for("letters of what to do")
        terminal.send("\x1b")
        terminal.wait_for("FP64")
        terminal.send("2")
        terminal.wait_for("SQNR")
        terminal.send("q")
        assert terminal.exit_code() == 0
        sent = {
            int(number)
            for numbers in re.findall(rb"\x1b\[([0-9;]*)m", terminal.written)
            for number in numbers.split(b";")
            if number
        }
        assert sent <= {0, 1, 2, 3, 4, 7, 22, 23, 24, 27}, sent


@pytest.mark.parametrize("model", ["nope", "no/such@model"])
def test_a_model_that_cannot_be_opened_is_said_at_once_and_is_exit_3(
    tmp_path: Path, model: str
) -> None:
    with program(tmp_path, "-m", "qtui", model, HF_HUB_OFFLINE="1") as terminal:
        terminal.wait_for("could not be opened")
        assert "E4M3" in "\n".join(terminal.screen.display)
        terminal.send("q")
        assert terminal.exit_code() == 3
        said = terminal.written[terminal.written.rindex(LEAVE_ALTERNATE) :].decode()
        assert model.partition("@")[0] in said
        assert "Traceback" not in said


def test_the_device_is_named_without_going_to_another_panel(tmp_path: Path) -> None:
    with program(tmp_path, "-m", "qtui") as terminal:
        terminal.wait_for("parameters")
        line = terminal.screen.display[0]
        assert "GPU" in line or "NVIDIA" in line
        terminal.send("q")
        assert terminal.exit_code() == 0


CRASH_COMMAND = """
import sys
from qtui.tui.app import QtuiApp
async def fail(self): raise RuntimeError("planted")
QtuiApp.action_help = fail
from qtui.cli import main
sys.argv = ["qtui"]
main()
"""


def test_the_command_exits_1_after_a_crash(tmp_path: Path) -> None:
    with program(tmp_path, "-c", CRASH_COMMAND) as terminal:
        terminal.wait_for("E4M3")
        terminal.send("?")
        assert terminal.exit_code() == 1


CRASH = """
import sys
from qtui.tui.app import QtuiApp
from qtui.tui.start import run
async def fail(self): raise RuntimeError("planted")
QtuiApp.action_help = fail
sys.exit(run(debug={debug}))
"""


@pytest.mark.parametrize("debug", [False, True])
def test_a_crash_restores_the_terminal_and_shows_a_traceback_only_when_asked(
    tmp_path: Path, debug: bool
) -> None:
    with program(tmp_path, "-c", CRASH.format(debug=debug)) as terminal:
        terminal.wait_for("E4M3")
        terminal.send("?")
        assert terminal.exit_code() == 1
        assert LEAVE_ALTERNATE in terminal.written
        said = terminal.written[terminal.written.rindex(LEAVE_ALTERNATE) :].decode()
        assert "planted" in said
        assert ("Traceback" in said) == debug
        logs = list(tmp_path.rglob("qtui.log"))
        assert len(logs) == 1
        assert "planted" in logs[0].read_text()
