"""Questions to a process, typed, with their answers remembered."""

from __future__ import annotations

from typing import Any, TypeVar

from qtui.engine.client import EngineClient
from qtui.screen.panel.answers import Answers, Key

T = TypeVar("T")


class Feed:
    """What a panel asks of its process. Every question may raise QtuiError (EngineLost among them)
    and RequestCancelled."""

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
        """The answer, as a dataclass; where a `key` names all that is asked for, the one from
        before. `options` are those of `EngineClient.request`."""

        async def request() -> T:
            return (await self.engine.request(method, params, **options)).read(answer)

        if key is None:
            return await request()
        found: T = await self.answers.remembered(key, request)
        return found
