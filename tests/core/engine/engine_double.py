"""A real engine child whose operations misbehave on request.

The engine tests run it as a program. Loop, lanes and streams are the real worker's; the operations
print, wait, crash and write nonsense.
"""

import ctypes
import os
import signal
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

from qtui.engine import worker
from qtui.engine.protocol import Array
from qtui.engine.task import EngineOperation, Task
from qtui_core.errors import ModelError


def echo(task: Task[Any]) -> Any:
    return {"params": task.asked, "pid": os.getpid()}


def wait(task: Task[Any]) -> Any:
    """Takes `seconds` in cooperative steps, with progress."""
    steps = max(1, int(task.asked["seconds"] / 0.01))
    for step in range(steps):
        task.check()
        task.progress(step / steps, {"step": step} if task.asked.get("steps") else None)
        time.sleep(0.01)
    return {"waited": task.asked["seconds"]}


def stubborn(task: Task[Any]) -> Any:
    """Never checks for cancellation."""
    time.sleep(task.asked["seconds"])
    return {}


def noise(task: Task[Any]) -> Any:
    """Every way in which a library can write to stdout."""
    print("print from python")
    os.write(1, b"write to descriptor 1\n")
    libc = ctypes.CDLL(None)
    libc.puts(b"puts from C")
    libc.fflush(None)
    os.system("echo from a child of the child")
    return {"stdin": sys.stdin.read()}


@dataclass(frozen=True)
class Picture:
    note: str
    cells: Array
    e: Array


def picture(task: Task[Any]) -> Picture:
    rows, columns = task.asked["shape"]
    cells = struct.pack(f"<{rows * columns}f", *range(rows * columns))
    return Picture("ünï\ncode", Array("<f4", (rows, columns), cells), Array("<i8", (0, 2), b""))


def long_list(task: Task[Any]) -> Any:
    return {"names": [f"model.layers.{i}.weight" for i in range(task.asked["count"])]}


def fail(task: Task[Any]) -> Any:
    if task.asked.get("kind") == "model":
        raise ModelError("There is no such model.")
    return {"x": [1, 2][task.asked["index"]]}


def die(task: Task[Any]) -> Any:
    how = task.asked["how"]
    if how == "exit":
        print("the last words", file=sys.stderr, flush=True)
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raw = STREAM
    if how == "mid-line":
        os.write(raw, b'{"event": "resu')
    elif how == "mid-array":
        head = b'{"event": "result", "id": %d, "data": {}, "arrays": ' % task.id
        head += b'[{"name": "a", "dtype": "<f4", "shape": [100], "nbytes": 400}]}\n'
        os.write(raw, head + b"\0" * 100)
    elif how == "nonsense":
        os.write(raw, task.asked["bytes"].replace("ID", str(task.id)).encode("latin-1"))
        time.sleep(600)
    os._exit(0)


STREAM = os.dup(1)  # the protocol's stream, taken before the worker does


def build() -> dict[str, EngineOperation]:
    print("a library greets on import")
    return {
        "echo": EngineOperation(echo, "quick"),
        "open": EngineOperation(echo, "quick"),
        "devices": EngineOperation(echo, "quick"),
        "wait": EngineOperation(wait, "slow"),
        "stubborn": EngineOperation(stubborn, "slow"),
        "noise": EngineOperation(noise, "quick"),
        "picture": EngineOperation(picture, "quick"),
        "long_list": EngineOperation(long_list, "quick"),
        "fail": EngineOperation(fail, "quick"),
        "die": EngineOperation(die, "quick"),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["never-ready"]:
        print("cannot import torch", file=sys.stderr, flush=True)
        sys.exit(3)
    if sys.argv[1:] == ["greets"]:
        print("Welcome to the library!", flush=True)
    worker.main(build)
