"""One request while it is being worked on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import field
from typing import Any

from qtui.engine.protocol import Array
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError


class TaskCancelled(Exception):
    """The request is no longer wanted. Unwinds an operation; the worker answers for it."""


@dataclass(frozen=True)
class Result:
    """What an operation answers: a dataclass, or JSON; and pictures."""

    data: Any
    arrays: dict[str, Array] = field(default_factory=dict)


class Task:
    """A request with its parameters, as an operation sees it.

    `kind` is what a newer request supersedes; None is never superseded.
    """

    def __init__(
        self,
        id: int,
        method: str,
        params: dict[str, Any],
        kind: str | None,
        send_progress: Callable[[float, Any], None],
    ) -> None:
        self.id = id
        self.method = method
        self.params = params
        self.kind = kind
        self._send_progress = send_progress
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise Cancelled where the request is no longer wanted. Call between chunks."""
        if self._cancelled.is_set():
            raise TaskCancelled

    def progress(self, fraction: float, data: Any = None) -> None:
        """Tell the screen how far this is (0..1), at most twice a second; partial
        results in `data`, a dataclass or JSON, are always sent."""
        self._send_progress(fraction, data)

    def text(self, name: str) -> str:
        """A text parameter. Raises UsageError where it is missing or not a text."""
        return self._param(name, str)

    def integer(self, name: str) -> int:
        return self._param(name, int)

    def _param(self, name: str, kind: type[Any]) -> Any:
        value = self.params.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UsageError(f"The engine's {self.method} needs {name} as {kind.__name__}.")
        return value


@dataclass(frozen=True)
class EngineOperation:
    """Something the engine can be asked for.

    Operations of one `lane` run one after another in a thread of their own, so what must
    answer at once has another lane than what takes seconds.
    """

    run: Callable[[Task], Result]
    lane: str
