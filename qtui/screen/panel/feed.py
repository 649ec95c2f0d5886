"""Typed requests to a child process, whose answers are cached, so that a tensor or scheme that was
shown before is shown at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from qtui.engine.client import EngineClient

T = TypeVar("T")


class Feed:
    """The requests of a panel to its process. Each may raise QtuiError (also EngineLost)."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self.answers = Answers()

    async def ask(
        self,
        answer: type[T],
        method: str,
        params: object = None,
        *,
        key: Key | None = None,
        **options: Any,
    ) -> T:
        """Sends a request, and returns its answer as a dataclass. With a `key`, which names
        everything that the answer depends on, a cached answer is returned instead. `options` are
        those of `EngineClient.request`."""

        async def request() -> T:
            return (await self.engine.request(method, params, **options)).read(answer)

        if key is None:
            return await request()
        found: T = await self.answers.remembered(key, request)
        return found


#: The most answers in the cache; the oldest is dropped first.
KEPT = 64

Key = tuple[Any, ...]


class Answers:
    """Answers by key; a key names everything that the answer depends on."""

    def __init__(self) -> None:
        self._answers: dict[Key, Any] = {}

    async def remembered(self, key: Key, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Returns the cached answer of a key; without one, asks and caches the answer."""
        if key in self._answers:
            return self._answers[key]
        answer = await ask()
        self.put(key, answer)
        return answer

    def put(self, key: Key, answer: Any) -> None:
        """Caches an answer, and drops the oldest if there are more than KEPT."""
        self._answers.pop(key, None)
        self._answers[key] = answer
        if len(self._answers) > KEPT:
            del self._answers[next(iter(self._answers))]

    def known(self, key: Key) -> Any:
        """Returns the cached answer, or None."""
        return self._answers.get(key)

    def forget(self, is_outdated: Callable[[Key], bool]) -> None:
        """Drops the answers whose keys are outdated."""
        self._answers = {k: answer for k, answer in self._answers.items() if not is_outdated(k)}

    def clear(self) -> None:
        """Drops all answers, as the model changed."""
        self._answers.clear()
