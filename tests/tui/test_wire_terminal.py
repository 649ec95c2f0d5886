"""The app in a pseudo-terminal shows what Textual itself would show: after many keys, after another
size, a suspension, and after something else wrote to the terminal. Whatever passes comes in its
order."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
import pytest
from processes import family, is_gone
from terminals import Terminal, program, seen

pytestmark = [pytest.mark.pty, pytest.mark.slow]

SIZE = (120, 40)
#: The app, which also writes to a file what Textual writes.
APP = """
import os, sys
from qtui.tui.wire.driver import TerminalDriver
raw, write = open(os.environ["RAW"], "wb", buffering=0), TerminalDriver.write
def both(driver, data):
    raw.write(data.encode())
    write(driver, data)
TerminalDriver.write = both
from qtui.cli import main
sys.argv = ["qtui", "demo"]
main()
"""
ESCAPE, LEFT, RIGHT, UP, DOWN = "\x1b", "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B"
# Not panel 7, which draws what it measures again and again.
KEYS = ("1", "2", "4", "6", "v", "z", "m", "w", "n", "+", "?", "\t", "\r", "\x10", "\x0c")
MOVES = (LEFT, RIGHT, UP, DOWN, ESCAPE)
PRIVATE = re.compile(rb"\x1b\[[<=>][0-9;]*[a-zA-Z]|\x1b\[\?[0-9]+\$p")  # pyte shows them as text
CONTROLS = re.compile(rb"\x1b\[[<=>?][0-9;$]*[a-zA-Z]|\x1b\][^\a\x1b]*(?:\a|\x1b\\)|\a")


@contextmanager
def both(home: Path, size: tuple[int, int] = SIZE, **environment: str) -> Iterator[Terminal]:
    home.joinpath("raw").touch()
    # A theme of its own, so that the terminal is asked nothing.
    environment = {"QTUI_THEME": "qtui-dark", "RAW": str(home / "raw"), **environment}
    with program(home, "-c", APP, size=size, **environment) as terminal:
        terminal.wait_for("parameters")
        terminal.settle()
        yield terminal


def emulated(data: bytes, size: tuple[int, int]) -> pyte.Screen:
    screen = pyte.Screen(*size)
    pyte.ByteStream(screen).feed(PRIVATE.sub(b"", data))
    return screen


def check(terminal: Terminal, home: Path, size: tuple[int, int] = SIZE) -> None:
    """Both show the same, cell by cell, with all attributes."""
    terminal.settle()
    for _ in range(25):  # until nothing was drawn while it was read: the cursor of a field blinks
        terminal.settle(0.2)
        raw, took = (home / "raw").read_bytes(), len(terminal.written)
        terminal.settle(0.2)
        if (len(raw), took) == ((home / "raw").stat().st_size, len(terminal.written)):
            break
    written = emulated(raw, size)
    shown = emulated(terminal.written, size)
    wanted, found = seen(written), seen(shown)
    wrong = [y for y in range(size[1]) if wanted[y] != found[y]]
    assert not wrong, [(written.display[y], shown.display[y]) for y in wrong]


@pytest.mark.parametrize(
    ("depth", "term"),
    [
        ("truecolor", "xterm-256color"),
        ("256", "screen-256color"),
        ("NO_COLOR", "xterm-256color"),
    ],
)
def test_after_many_keys_both_show_the_same(tmp_path: Path, depth: str, term: str) -> None:
    colors = {"truecolor": {"COLORTERM": depth}, "NO_COLOR": {"NO_COLOR": "1"}}.get(depth, {})
    choose = random.Random(f"{depth} {term}")
    with both(tmp_path, TERM=term, **colors) as terminal:
        for _ in range(4):
            for _ in range(5):
                terminal.send(choose.choice(KEYS if choose.random() < 0.5 else MOVES))
                for _ in range(choose.randrange(4)):
                    terminal.read(0.1)
            check(terminal, tmp_path)
        terminal.send("\x11")
        assert terminal.exit_code() == 0
        raw = (tmp_path / "raw").read_bytes()
        marks = (b"\x1b[?2026h", b"\x1b[?2026l")
        passed, came = (
            [one for one in CONTROLS.findall(data) if one not in marks]
            for data in (raw, terminal.written)
        )
        first = [
            b"\x1b[?1049h",
            b"\x1b[?25l",
        ]  # of its first lines, which may ask for the background
        assert [one for one in came if one != b"\x1b]11;?\a"] == [*first, *passed]
        assert len(terminal.written) < len(raw) / 3
        if term != "xterm-256color":  # of which terminfo says no erasing in colour
            assert not re.search(rb"\x1b\[\d+X", terminal.written)


def test_other_sizes_are_drawn_whole(tmp_path: Path) -> None:
    with both(tmp_path, COLORTERM="truecolor") as terminal:
        for size in ((80, 24), (130, 44), SIZE):
            (tmp_path / "raw").write_bytes(b"")
            terminal.written = b""
            terminal.resize(*size)
            check(terminal, tmp_path, size)
            assert "Formats" in emulated(terminal.written, size).display[1]


def test_a_size_that_is_the_old_one_again_is_drawn_whole(tmp_path: Path) -> None:
    with both(tmp_path) as terminal:
        terminal.resize(90, 30)
        terminal.resize(*SIZE)
        terminal.settle()
        terminal.written = b""
        os.kill(terminal.pid, signal.SIGWINCH)  # of which Textual draws nothing
        terminal.send(RIGHT)
        terminal.settle()
        assert "Formats" in emulated(terminal.written, SIZE).display[1]


def test_after_many_sizes_all_is_there(tmp_path: Path) -> None:
    with both(tmp_path, COLORTERM="truecolor") as terminal:
        terminal.send("2")
        terminal.wait_for("|error|")
        check(terminal, tmp_path)
        terminal.written = b""
        for width in range(90, SIZE[0], 2):
            terminal.resize(width, SIZE[1] - width % 7)
            terminal.read(0.01)
        (tmp_path / "raw").write_bytes(b"")
        terminal.resize(*SIZE)
        check(terminal, tmp_path)
        assert "Formats" in emulated(terminal.written, SIZE).display[1]


def test_maximised_and_brought_back_both_show_the_same(tmp_path: Path) -> None:
    with both(tmp_path, COLORTERM="truecolor") as terminal:
        terminal.send("2")
        terminal.wait_for("|error|")
        for _ in range(2):
            check(terminal, tmp_path)
            terminal.send("z")
        check(terminal, tmp_path)


def test_control_l_sends_all_again(tmp_path: Path) -> None:
    with both(tmp_path) as terminal:
        before = seen(emulated(terminal.written, SIZE))
        terminal.written = b"\x1b[9;9H\x1b[31mthe line of another program\r\n\n\n" * 9
        terminal.send("\x0c")
        terminal.settle()
        assert seen(emulated(terminal.written, SIZE)) == before


@pytest.mark.parametrize("key", ["\x1a", ""])
def test_after_a_suspension_all_is_there_again(tmp_path: Path, key: str) -> None:
    """By Ctrl+Z, and by the signal of somebody else."""
    with both(tmp_path) as terminal:
        before = seen(emulated(terminal.written, SIZE))
        if key:
            terminal.send(key)
        else:
            os.kill(terminal.pid, signal.SIGTSTP)
        terminal.wait_until(lambda: terminal.written.rstrip().endswith(b"\x1b[?1004l"))
        assert os.waitid(os.P_PID, terminal.pid, os.WSTOPPED | os.WNOWAIT)
        terminal.written = b""
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.settle(1.0)
        assert b"\x1b[?1049h" in terminal.written
        assert seen(emulated(terminal.written, SIZE)) == before
        terminal.send("q")
        assert terminal.exit_code() == 0


def test_a_signal_in_the_middle_of_a_write_is_obeyed_after_it(tmp_path: Path) -> None:
    with both(tmp_path) as terminal:
        for number in range(150):
            if number % 2:  # the app is behind all the same
                terminal.send(random.Random(number).choice("12") + RIGHT)
            terminal.read(0.003)
            os.kill(terminal.pid, signal.SIGCONT)
        terminal.settle()
        terminal.send("q")
        assert terminal.exit_code() == 0


@pytest.mark.skipif(
    shutil.which("bash") is None or not Path("/proc/self/stat").exists(),
    reason="jobs are a shell's, and /proc says what they do",
)
def test_a_stopped_job_waits_after_bg_and_ends_after_kill(tmp_path: Path) -> None:
    shell = "import os; os.execlp('bash', 'bash', '--norc', '--noprofile', '-i')"
    environment = {"QTUI_STATE": "0", "QTUI_THEME": "qtui-dark"}
    with program(tmp_path, "-c", shell, size=SIZE, **environment) as terminal:

        def writes(text: bytes, after: str) -> None:
            terminal.written = b""
            terminal.send(after)
            terminal.wait_until(lambda: text in terminal.written)

        writes(b"parameters", f"{sys.executable} -m qtui demo\r")
        processes = family(terminal.pid)
        writes(b"Stopped", "\x1a")
        writes(b" demo &", "bg\r")
        stat = Path(f"/proc/{processes[0]}/stat")
        terminal.wait_until(lambda: ") T " in stat.read_text())
        writes(b"\x1b[?1049h", "fg\r")
        writes(b"no GPU", "\x0c")
        os.kill(processes[0], signal.SIGSTOP)
        terminal.wait_until(lambda: b"Stopped" in terminal.written)
        writes(b"\x1b[?1049l", "kill %1\r")
        assert all(map(is_gone, processes))
        terminal.send("\r")  # the shell may have said it before, if it was fast
        terminal.wait_until(lambda: b"Terminated" in terminal.written)
