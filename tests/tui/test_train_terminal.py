"""A run in the app and its terminal: a terminal that nobody reads, and one that is closed."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from processes import is_gone
from terminals import Terminal, program

from qtui_core.live.snapshot import End, StepTaken
from qtui_core.live.state import read_recording
from qtui_core.training.run.request import USUAL_STEPS

pytestmark = [pytest.mark.pty, pytest.mark.slow]

SUPPORT = Path(__file__).parents[1] / "support"
APP = str(SUPPORT / "scripted_app.py")
SIZE = (120, 40)


def begin(terminal: Terminal) -> None:
    """The Train panel runs the usual twenty steps of the demo."""
    terminal.wait_for("parameters")
    terminal.send("5")
    terminal.wait_for("estimate")
    terminal.send("r")


def recorded(home: Path) -> Path:
    """The recording of the one run there was."""
    (path,) = home.rglob("run-*.jsonl")
    return path


def scripted(home: Path, script: str) -> AbstractContextManager[Terminal]:
    path = f"{SUPPORT}:{SUPPORT.parents[1]}"
    return program(home, APP, size=SIZE, SCRIPT=script, PYTHONPATH=path)


def test_a_run_goes_on_while_nobody_reads_the_terminal(tmp_path: Path) -> None:
    with scripted(tmp_path, "steady") as terminal:
        begin(terminal)
        terminal.wait_for("The loss fell")  # and from then on nobody reads
        path, end = recorded(tmp_path), time.monotonic() + 120
        while b'"told":"end"' not in path.read_bytes():
            assert time.monotonic() < end, "the run waits for a screen that nobody reads"
            time.sleep(0.05)
        recording = read_recording(path)
        assert recording.complaint == ""
        assert sum(isinstance(told, StepTaken) for told in recording.snapshots) == USUAL_STEPS
        terminal.wait_for(f"{USUAL_STEPS} of {USUAL_STEPS} steps were run.")
        terminal.send("qq")  # the second q is for the question, asked until the child has ended
        assert terminal.exit_code() == 0
        assert f"{USUAL_STEPS} of {USUAL_STEPS} steps of demo were run." in said_after(terminal)


LEAVE_ALTERNATE = b"\x1b[?1049l"


def said_after(terminal: Terminal) -> str:
    """The text in the terminal once the app has left it."""
    return terminal.written[terminal.written.rindex(LEAVE_ALTERNATE) :].decode()


def test_a_run_is_not_left_without_a_question_nor_without_its_recording(tmp_path: Path) -> None:
    with scripted(tmp_path, "until_stopped") as terminal:
        begin(terminal)
        terminal.wait_for("The loss")
        path = recorded(tmp_path)
        terminal.send("\x0f")  # ctrl+o
        terminal.wait_for("Another")  # the rest may be on the next line: the path decides
        for key in ("q", "\x11"):  # ctrl+q leaves "from anywhere", and asks as well
            terminal.send(key)
            terminal.wait_for("q ends the run and leaves, Esc lets it go on")
            terminal.wait_for("The run of demo is in step ")
            terminal.wait_for("It is recorded in ")
            terminal.send("\x1b")
            terminal.wait_for_no("q ends the run and leaves")
        terminal.send(" ")
        terminal.wait_for("Paused after step")
        terminal.send("q")
        terminal.wait_for("is paused after step ")
        terminal.send("q")
        assert terminal.exit_code() == 0
        recording = read_recording(path)
        assert recording.complaint == ""
        taken = sum(isinstance(told, StepTaken) for told in recording.snapshots)
        assert recording.snapshots[-1].reason == "stopped"
        said = said_after(terminal)
        assert (
            f"qtui: {taken} of {USUAL_STEPS} steps of demo were run. It is recorded in {path}."
            in said
        )
        assert f"`qtui replay {path}` plays it." in said
        assert "\\n" not in said


def test_a_recording_is_complete_when_the_terminal_goes_away(tmp_path: Path) -> None:
    with scripted(tmp_path, "until_stopped") as terminal:
        begin(terminal)
        terminal.wait_for("The loss")
        path = recorded(tmp_path)
        terminal.hang_up()
        assert is_gone(terminal.pid)
        recording = read_recording(path)
        assert recording.complaint == ""
        assert isinstance(recording.snapshots[-1], End)
