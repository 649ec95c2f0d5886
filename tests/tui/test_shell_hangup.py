"""The terminal goes away while the app is in it: the app ends, and its children with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import pytest
from processes import is_gone
from terminals import program

import qtui

pytestmark = pytest.mark.pty

#: The app, where hang-ups are ignored as under nohup and by some who start programs.
DEAF = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
APP = "from qtui.cli import main; main()"


def children(pid: int) -> list[int]:
    """Processes whose parent is this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = path.read_text().rpartition(")")[2].split()
            if int(words[1]) == pid:
                found.append(int(path.parent.name))
    return found


def read_until(fd: int, text: bytes, seconds: float = 120.0) -> None:
    seen, end = b"", time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < end, seen[-500:]
        if select.select([fd], [], [], 0.1)[0]:
            seen += os.read(fd, 65536)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="who is there is read of /proc")
@pytest.mark.parametrize("before", [DEAF, ""], ids=["hang-ups are ignored", "as usual"])
def test_the_app_ends_with_its_terminal(tmp_path: Path, before: str) -> None:
    pid, fd = pty.fork()
    if pid == 0:
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "xterm-256color",
            "PYTHONPATH": str(Path(qtui.__file__).parents[1]), "LANG": "C.UTF-8",
        }  # fmt: skip
        os.execve(sys.executable, [sys.executable, "-c", before + APP, "demo"], environment)
    try:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        read_until(fd, b"LlamaForCausalLM")  # the engine is there
        left = children(pid)
        assert left
        os.close(fd)
        assert is_gone(pid)
        assert all(is_gone(child) for child in left)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "variables", "size"),
    [
        ((0, 0), {}, (80, 24)),
        ((0, 0), {"COLUMNS": "100", "LINES": "30"}, (100, 30)),
        ((90, 30), {"COLUMNS": "120"}, (90, 30)),
    ],
    ids=["no size", "only variables", "variables of another size"],
)
def test_one_size_is_taken_of_a_terminal_and_its_variables(
    tmp_path: Path, told: tuple[int, int], variables: dict[str, str], size: tuple[int, int]
) -> None:
    """Two parts that assumed two sizes asked each other for new pictures without end."""
    with program(tmp_path, "-m", "qtui", size=size, told=told, **variables) as terminal:
        terminal.wait_for("q Quit")
        assert "q Quit" in terminal.screen.display[-1]
        assert termios.tcgetwinsize(terminal.fd) == size[::-1]
        terminal.settle()
        terminal.send("q")
        assert terminal.exit_code() == 0


def test_a_signal_while_the_panel_is_made_ends_the_app_without_a_complaint(tmp_path: Path) -> None:
    start = """
import asyncio, os, signal, sys
from qtui.cli import main
from qtui.tui.panels.formats.panel import FormatsPanel
compose = FormatsPanel._compose
async def ended(panel):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.1)
    await compose(panel)
FormatsPanel._compose = ended
sys.argv = ["qtui", "demo"]
main()
"""
    with program(tmp_path, "-c", start) as terminal:
        assert terminal.exit_code() == -signal.SIGTERM
        assert b"stopped" not in terminal.written


def test_a_signal_is_obeyed_while_the_loop_has_much_to_do(tmp_path: Path) -> None:
    start = """
import asyncio, os, signal, sys
from qtui.cli import main
from qtui.tui.app import QtuiApp
def busy(app):
    for _ in range(1000):  # as keys do, from the thread that reads them
        asyncio.get_running_loop().call_soon_threadsafe(int)
    os.kill(os.getpid(), signal.SIGTERM)
QtuiApp._start_looking = busy
sys.argv = ["qtui", "demo"]
main()
"""
    with program(tmp_path, "-c", start) as terminal:
        assert terminal.exit_code(20) == -signal.SIGTERM
