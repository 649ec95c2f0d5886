"""One request while it is being worked on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from qtui_core.codec import CodecError, from_plain
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

#: The dataclass of a request.
Asked_co = TypeVar("Asked_co", covariant=True)


class TaskCancelled(Exception):
    """The request is no longer wanted. Unwinds an operation; the worker answers for it."""


class Task(Generic[Asked_co]):
    """A request as an operation sees it.

    `asked` is the typed request. A newer request of the same `kind` supersedes it; with None it is
    never superseded.
    """

    def __init__(
        self,
        id: int,
        method: str,
        asked: Asked_co,
        kind: str | None,
        send_progress: Callable[[float, Any], None],
    ) -> None:
        self.id = id
        self.method = method
        self.asked = asked
        self.kind = kind
        self._send_progress = send_progress
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise TaskCancelled where the request is no longer wanted. Call between chunks."""
        if self._cancelled.is_set():
            raise TaskCancelled

    def progress(self, fraction: float, data: Any = None) -> None:
        """Tell the screen how far this is (0..1), at most twice a second; partial results in
        `data`, a dataclass, are always sent."""
        self._send_progress(fraction, data)


@dataclass(frozen=True)
class EngineOperation:
    """Something the engine can be asked for.

    Attributes:
        run: answers with a dataclass, or None where progress has told all.
        lane: operations of one lane run one after another in a thread of their own, so what must
            answer at once has another lane than what takes seconds.
        asked: the dataclass of its requests; None takes parameters as they come.
    """

    run: Callable[[Task[Any]], Any]
    lane: str
    asked: Any = None

    def read(self, method: str, params: Any) -> Any:
        """The typed request. Raises UsageError if it is not one of this operation."""
        if self.asked is None:
            return params
        try:
            return from_plain(self.asked, params)
        except CodecError as error:
            raise UsageError(
                f"The engine was asked wrongly for {method}: {error.reason}."
            ) from None


#: Operations by name: a function of the shared session and the task, its lane, and its requests.
OperationTable = Mapping[str, tuple[Callable[..., Any], str, Any]]


def operations_on(shared: object, *tables: OperationTable) -> dict[str, EngineOperation]:
    """The operations of tables by name, bound to what they share."""
    return {
        name: EngineOperation(partial(run, shared), lane, asked)
        for table in tables
        for name, (run, lane, asked) in table.items()
    }
