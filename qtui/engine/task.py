"""One request while it is being worked on, and what ends it once it is cancelled."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from qtui_core.codec import CodecError, from_plain
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.job import Cancelled, Job

#: The dataclass of a request.
Asked_co = TypeVar("Asked_co", covariant=True)


class Task(Generic[Asked_co]):
    """A request for an operation. `asked` is the request dataclass."""

    def __init__(
        self,
        id: int,
        method: str,
        asked: Asked_co,
        send_progress: Callable[[float, Any], None],
    ) -> None:
        self.id = id
        self.method = method
        self.asked = asked
        self._send_progress = send_progress
        self._cancelled = threading.Event()
        #: What is done, of functions of qtui_core.
        self.job = Job(
            lambda done, total, words: self.progress(done / total if total else 0.0),
            self._cancelled.is_set,
        )

    def cancel(self) -> None:
        self._cancelled.set()

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raises Cancelled if the request was cancelled. Operations call it between chunks."""
        self.job.check()

    def progress(self, fraction: float, data: Any = None) -> None:
        """Reports progress (0 to 1) to the screen, at most twice a second. Partial results `data`,
        a dataclass, are always sent."""
        self._send_progress(fraction, data)


@dataclass(frozen=True)
class EngineOperation:
    """An operation that a request can name.

    Attributes:
        run: returns the answer as a dataclass, or None if all results were sent as progress.
        lane: operations of one lane run one after the other in a thread of their own, so fast and
            slow operations need different lanes.
        asked: the dataclass of its requests; None passes the parameters unchecked.
    """

    run: Callable[[Task[Any]], Any]
    lane: str
    asked: Any = None

    def read(self, method: str, params: Any) -> Any:
        """The request dataclass. Raises UsageError if the parameters do not make one."""
        if self.asked is None:
            return params
        try:
            return from_plain(self.asked, params)
        except CodecError as error:
            raise UsageError(f"The request for {method} is malformed: {error.reason}.") from None


#: Operations by name: a function of the session and the task, its lane, the class of its requests.
OperationTable = Mapping[str, tuple[Callable[..., Any], str, Any]]


def operations_on(shared: object, *tables: OperationTable) -> dict[str, EngineOperation]:
    """The operations of all tables by name, bound to the `shared` session."""
    return {
        name: EngineOperation(partial(run, shared), lane, asked)
        for table in tables
        for name, (run, lane, asked) in table.items()
    }


T = TypeVar("T")

#: Seconds between two checks whether the task was cancelled.
_CHECK_SECONDS = 0.05


def run_cancellable(task: Task[Any], compute: Callable[[], T]) -> T:
    """Runs `compute` in a thread and returns its result; errors of `compute` are raised here.
    Raises Cancelled if the task is cancelled before `compute` returns.

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
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Cancelled)
            )
    task.check()
    if failed:
        raise failed[0]
    return found[0]
