"""Typed requests to a child process, whose answers are cached."""

from __future__ import annotations

from typing import Any, TypeVar

from qtui.engine.client import EngineClient
from qtui.screen.panel.answers import Answers, Key

T = TypeVar("T")


class Feed:
    """The requests of a panel to its process. Each may raise QtuiError (also EngineLost) and
    RequestCancelled."""

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
