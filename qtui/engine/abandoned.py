"""Ends computations that are no longer wanted.

An estimate is one call into a library that knows no tasks, and for some plans it takes a minute.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from qtui.engine.task import Task, TaskCancelled

T = TypeVar("T")

#: Seconds between two looks whether a computation was given up.
_LOOK_SECONDS = 0.05


def unless_given_up(task: Task[Any], compute: Callable[[], T]) -> T:
    """What `compute` returns or raises; Cancelled where the task is given up before.

    `compute` must be plain Python that holds no lock and keeps nothing half done: it is ended
    between any two of its instructions, by an exception that CPython raises in its thread.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(compute())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name=f"{task.method} {task.id}", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        if task.is_cancelled() and thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TaskCancelled)
            )
    task.check()
    if failed:
        raise failed[0]
    return found[0]
