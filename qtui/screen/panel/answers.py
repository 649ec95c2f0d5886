"""Answers of the engine, remembered, so that going back to what was seen costs nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

#: Answers kept; the oldest goes first.
KEPT = 64

Key = tuple[Any, ...]


class Answers:
    """Answers by all that was asked for."""

    def __init__(self) -> None:
        self._answers: dict[Key, Any] = {}

    async def remembered(self, key: Key, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to what `key` names: the one from before, or that of `ask`."""
        if key in self._answers:
            return self._answers[key]
        answer = await ask()
        self.put(key, answer)
        return answer

    def put(self, key: Key, answer: Any) -> None:
        """The answer from now on."""
        self._answers.pop(key, None)
        self._answers[key] = answer
        if len(self._answers) > KEPT:
            del self._answers[next(iter(self._answers))]

    def known(self, key: Key) -> Any:
        """The answer from before; None without one."""
        return self._answers.get(key)

    def forget(self, is_outdated: Callable[[Key], bool]) -> None:
        """What is no longer true."""
        self._answers = {k: answer for k, answer in self._answers.items() if not is_outdated(k)}

    def clear(self) -> None:
        """Another model: nothing is true any more."""
        self._answers.clear()
