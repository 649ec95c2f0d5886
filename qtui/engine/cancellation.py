"""Ends a computation if its task is cancelled.

An estimate is one call of a function that does not check for cancellation, and for some plans that
call takes a minute.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from qtui.engine.task import Task, TaskCancelled

T = TypeVar("T")

#: Seconds between two checks whether the task was cancelled.
_CHECK_SECONDS = 0.05


def run_cancellable(task: Task[Any], compute: Callable[[], T]) -> T:
    """Runs `compute` in a thread and returns its result; errors of `compute` are raised here.
    Raises TaskCancelled if the task is cancelled before `compute` returns.

    `compute` must be plain Python without locks or lasting side effects: on cancellation CPython
    raises an exception in its thread, between any two instructions.
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
        thread.join(_CHECK_SECONDS)
        if task.is_cancelled() and thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TaskCancelled)
            )
    task.check()
    if failed:
        raise failed[0]
    return found[0]
