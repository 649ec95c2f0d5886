"""The start and the end of the app, through a pseudo-terminal, as ratios to `python -c pass` and to
a bare Textual app that take turns with it.

The pseudo-terminal answers what it is asked, as every terminal does; one that says nothing is
waited for (qtui/tui/first/asking.py), which is printed too."""

from __future__ import annotations

import os
import pty
import select
import statistics
import sys
import time
from pathlib import Path

import pytest

import qtui

pytestmark = [pytest.mark.bench, pytest.mark.pty]

ROUNDS = 9
QUIET_SECONDS = 0.9
SILENT = "silent"
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    BINDINGS = [("q", "quit", "Quit")]
    def compose(self):
        yield Static("1 Formats  2 Quantize")
Bare().run()
"""
PROGRAMS = {
    "python": ("-c", "pass"), "bare": ("-c", BARE), "qtui": ("-m", "qtui"),
    SILENT: ("-m", "qtui"),
}  # fmt: skip
#: The last question, and what a dark terminal says to all of them.
QUESTION, ANSWERS = b"\x1b[c", b"\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\\x1b[?62;22c"
#: When this is on the screen: the tabs (of qtui the first lines), and the whole first picture.
TABS, PICTURE = b"Quantize", b"Palette"


def once(home: Path, name: str) -> dict[str, float]:
    """Seconds until the first tabs, the first picture and the last change, those from `q` to the
    end, and those of the processor, children included that ended."""
    arguments = PROGRAMS[name]
    answers = name != SILENT
    env = {
        "PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm-256color",
        "COLORTERM": "truecolor", "LANG": "C.UTF-8", "COLUMNS": "120", "LINES": "40",
        "PYTHONPATH": str(Path(qtui.__file__).parents[1]),
    }  # fmt: skip
    began = time.perf_counter()
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.execve(sys.executable, [sys.executable, *arguments], env)
    took: dict[str, float] = {}
    written, asked = b"", 0.0
    while True:
        now = time.perf_counter() - began
        if not asked and name != "python" and now - took.get("settled", now) > (QUIET_SECONDS):
            os.write(fd, b"q")
            asked = now
        if not select.select([fd], [], [], 0.01)[0]:
            continue
        try:
            data = os.read(fd, 1 << 16)
        except OSError:
            data = b""
        now = time.perf_counter() - began
        if not data:
            break
        written += data
        if answers and QUESTION in written:
            os.write(fd, ANSWERS)
            answers = False
        if not asked:
            took["settled"] = now
        for what, mark in (("tabs", TABS), ("picture", PICTURE)):
            if mark in written:
                took.setdefault(what, now)
    usage = os.wait4(pid, 0)[2]
    os.close(fd)
    took["end"] = time.perf_counter() - began - asked
    took["processor"] = usage.ru_utime + usage.ru_stime
    return took


def test_the_start_takes_little_more_than_textual(tmp_path):
    told: dict[str, list[dict[str, float]]] = {name: [] for name in PROGRAMS}
    for turn in range(ROUNDS + 1):  # the first writes bytecode
        for name in PROGRAMS:
            took = once(tmp_path, name)
            if turn:
                told[name].append(took)
    medians = {
        name: {key: statistics.median(each[key] for each in runs) for key in runs[0]}
        for name, runs in told.items()
    }
    print(f"\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; ms")
    for name, row in medians.items():
        print(f"{name:8}", *(f"{key} {1e3 * seconds:6.0f}  " for key, seconds in row.items()))
    bare, ours, python = medians["bare"], medians["qtui"], medians["python"]
    # The first lines need no Textual; the rest is Textual's start and about half as much again.
    assert ours["tabs"] < 0.5 * bare["tabs"]
    assert ours["picture"] - python["end"] < 2.0 * (bare["tabs"] - python["end"])
    assert ours["end"] < 1.5 * bare["end"]
