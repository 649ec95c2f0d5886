"""The child's side of a process that writes lines: however its work ends, it writes one last line
and ends with the exit code of the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from every import every

from qtui_core.threads import child_environment

PROGRAM = """
import sys, time
from qtui.engine.child_process import ChildProcess
from qtui_core.errors import ModelError

def work(request):
    child.tell(request.decode().strip())
    print("a library prints")
    kind = request.split()[0]
    if kind == b"works":
        while True:
            child.controls.check()
            time.sleep(0.01)
    if kind == b"hangs":
        time.sleep(60)
    if kind == b"refuses":
        raise ModelError("There is no such model.")
    if kind == b"breaks":
        raise ValueError("a bug")
    return int(kind)

def last(ended, why, error):
    signalled = child.signalled and child.signalled.name
    yield f"{ended} {signalled} {type(error).__name__} {why}"

child = ChildProcess("The work", last)
child.obey = lambda control: child.tell(f"heard {control}")
child.do(work, lambda: print("warm"))
"""
STOP = b'{"control": "stop"}\n'
PAUSE = b'{"control": "pause"}\n'
NO = "None NoneType "
#: The request, what is done then, the last line, and the exit code.
CASES = {
    "done": ("0", None, f"done {NO}", 0),
    "failed with a code": ("4", None, f"failed {NO}", 4),
    "refused": ("refuses", None, "failed None ModelError There is no such model.", 3),
    "broken": (
        "breaks", None,
        "failed None ValueError The work failed: ValueError: a bug. The log has the rest.", 1,
    ),
    "stopped": ("works", STOP, f"stopped {NO}", 0),
    "stopped where it does not look": ("hangs", STOP, f"stopped {NO}", 0),
    "left by its reader": ("hangs", "close", f"stopped {NO}", 0),
    "ended by a signal": ("works", signal.SIGTERM, "stopped SIGTERM NoneType ", 130),
    "ended by a signal where it hangs": ("hangs", signal.SIGINT, "stopped SIGINT NoneType ", 130),
    "told other things first": ("works", b"nonsense\n" + PAUSE + STOP, f"stopped {NO}", 0),
}  # fmt: skip


def started(first: bytes) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=child_environment(),
    )  # fmt: skip
    process.stdin.write(first)
    process.stdin.flush()
    return process


def test_it_ends_once_and_says_how():
    children = {name: started(f"{asked}\n".encode()) for name, (asked, *_) in CASES.items()}

    def check(name: str) -> None:
        asked, then, last, code = CASES[name]
        process = children[name]
        assert process.stdout is not None
        assert process.stderr is not None
        first = next(line for line in process.stdout if b"alive" not in line)
        if then == "close":
            process.stdin.close()
        elif isinstance(then, bytes):
            process.stdin.write(then)
            process.stdin.flush()
        elif then is not None:
            process.send_signal(then)
        lines = (first, *(line for line in process.stdout if b"alive" not in line))
        found = [line.decode().rstrip("\n") for line in lines]
        heard = ["heard pause"] if isinstance(then, bytes) and PAUSE in then else []
        assert found == [asked, *heard, last]
        assert process.wait(10) == code
        assert b"a library prints" in process.stderr.read()

    every(list(CASES), check)


def test_a_warm_up_is_not_the_request():
    warm = json.dumps({"control": "warm"}).encode() + b"\n"
    process = started(warm + b"0\n")
    out, log = process.communicate(timeout=30)
    assert out.decode().splitlines() == ["0", f"done {NO}"]
    assert b"warm" in log
    assert process.returncode == 0
    alone = started(warm)
    out, _ = alone.communicate(timeout=30)  # whoever asked it ahead is gone
    assert (out, alone.returncode) == (b"", 0)
