"""Faults by state: what happens to the terminal and to the disk while the app has a run."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from every import collected
from processes import family, is_gone
from terminals import Terminal, program

from qtui_core.live.snapshot import End, StepTaken
from qtui_core.live.state import RunRecording, read_recording

pytestmark = [
    pytest.mark.pty,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc says who is there"),
]

SUPPORT = Path(__file__).parents[1] / "support"


@contextmanager
def run_in_app(home: Path) -> Iterator[tuple[Terminal, Path]]:
    """The app with a run that steps until it is stopped, and the run's recording. Afterwards no
    process is left."""
    # Python 3.11 leaves half of a compiled module where the disk is full.
    more = {"PYTHONPATH": f"{SUPPORT}:{SUPPORT.parents[1]}", "PYTHONDONTWRITEBYTECODE": "1"}
    app = str(SUPPORT / "scripted_app.py")
    with program(home, app, "demo", size=(120, 40), SCRIPT="until_stopped", **more) as terminal:
        terminal.wait_for("parameters")
        terminal.send("5")
        terminal.wait_for("estimate")
        terminal.send("r")
        terminal.wait_for("The loss")
        (path,) = home.rglob("run-*.jsonl")
        left = family(terminal.pid)
        assert left
        yield terminal, path
        assert is_gone(terminal.pid)
        assert all(map(is_gone, left))


def suspend(terminal: Terminal) -> None:
    terminal.send("\x1a")
    os.waitid(os.P_PID, terminal.pid, os.WSTOPPED | os.WNOWAIT)


def goes_on(terminal: Terminal, path: Path) -> None:
    """The run is recorded further, and the screen shows it."""
    length = path.stat().st_size
    terminal.wait_until(lambda: path.stat().st_size > length)
    terminal.send("\x0c")
    terminal.wait_for("The loss is 5.000")


def left(terminal: Terminal) -> str:
    """Quits; returns what the terminal shows then."""
    terminal.send("q")
    terminal.wait_for("q ends the run and leaves")
    terminal.send("q")
    assert terminal.exit_code() == 0
    return terminal.written.rpartition(b"\x1b[?1049l")[2].decode()


def complete(path: Path) -> RunRecording:
    recording = read_recording(path)
    assert recording.complaint == ""
    assert isinstance(recording.snapshots[-1], End)
    assert any(isinstance(each, StepTaken) for each in recording.snapshots)
    return recording


def resized_suspended_and_resumed(terminal: Terminal, path: Path) -> None:
    for at in range(200):
        terminal.resize(20 + at * 37 % 140, 5 + at * 7 % 50)
        terminal.read(0.002)
    terminal.resize(120, 40)
    goes_on(terminal, path)
    suspend(terminal)
    os.kill(terminal.pid, signal.SIGCONT)
    goes_on(terminal, path)
    assert f"It is recorded in {path}. `qtui replay {path}` plays it." in left(terminal)
    complete(path)


def hung_up_while_suspended(terminal: Terminal, path: Path) -> None:
    suspend(terminal)
    terminal.hang_up()
    assert is_gone(terminal.pid)
    complete(path)


def killed_while_suspended(terminal: Terminal, path: Path) -> None:
    suspend(terminal)
    os.kill(terminal.pid, signal.SIGKILL)
    assert is_gone(terminal.pid)
    assert read_recording(path).complaint == (
        "The recording stops before the run did; all of it is shown."
    )


def full_disk(terminal: Terminal, path: Path) -> None:
    state = path.parents[2] / "state.json"
    state.write_text('{"version": 1, "panel": "memory"}')
    size = path.stat().st_size + 150
    resource.prlimit(terminal.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    terminal.wait_for("The recording is cut off: File too large.")
    terminal.send("e")
    terminal.wait_for("Nothing was exported: Cannot write")
    resource.prlimit(terminal.pid, resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
    said = left(terminal)
    assert f"It is recorded in {path}. The recording is cut off: File too large." in said
    assert "Traceback" not in said  # of the log, which the disk does not take either
    assert read_recording(path).complaint.startswith("The recording stops before the run did")
    assert state.read_text() == '{"version": 1, "panel": "memory"}'  # no half of a new one
    kept = {each.name for each in path.parents[5].rglob("*") if each.suffix != ".log"}
    assert not any(name.startswith((".qtui-", ".state-", "qtui-train")) for name in kept)


def vanished_folder(terminal: Terminal, path: Path) -> None:
    shutil.rmtree(path.parents[5])  # the home, in which the app was started
    terminal.wait_for("The run is not recorded: the file was deleted")
    terminal.send("e")
    terminal.wait_for("Nothing was exported: Cannot write")
    said = left(terminal)
    assert "The run is not recorded: the file was deleted" in said
    assert "qtui replay" not in said


def test_a_run_in_the_app_survives_its_terminal_and_its_disk(tmp_path):
    cells: list[Callable[[Terminal, Path], None]] = [
        resized_suspended_and_resumed, hung_up_while_suspended, killed_while_suspended, full_disk,
        vanished_folder,
    ]  # fmt: skip
    with collected() as case:
        for cell in cells:
            home = tmp_path / cell.__name__
            home.mkdir()
            with case(cell.__name__), run_in_app(home) as (terminal, path):
                cell(terminal, path)
