"""The screen's side of the estimator: two processes behind one client.

One process answers what a key waits for, the other what may take long. With threads of one process,
a curve of 10 ms would wait for an estimate of a second.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from qtui.engine.client import (
    EngineClient,
    EngineState,
    ProgressCallback,
    Reply,
    StateListener,
)

#: Requests that a key waits for; all others go to the second process.
_QUICK: Final = ("first", "devices")
_COMMAND: Final = (sys.executable, "-P", "-m", "qtui.engine.estimator.child")


class EstimatorClient(EngineClient):
    """An EngineClient with two processes. If one is lost, the other is killed too."""

    def __init__(self, *, log: Path | None = None, on_state: StateListener | None = None) -> None:
        super().__init__(_COMMAND, log=log, on_state=on_state)
        self._behind = EngineClient((*_COMMAND, "behind"), log=log, on_state=self._behind_changed)

    @property
    def busy(self) -> bool:
        return super().busy or self._behind.busy

    async def request(
        self,
        method: str,
        params: object = None,
        *,
        on_progress: ProgressCallback | None = None,
    ) -> Reply:
        if method in _QUICK:
            return await super().request(method, params, on_progress=on_progress)
        if method != "open":
            return await self._behind.request(method, params, on_progress=on_progress)
        # Both processes must read the model again, because its files may have changed.
        reply, _ = await asyncio.gather(
            super().request(method, params), self._behind.request(method, params)
        )
        return reply

    def forget_loss(self) -> None:
        # Both at once: a question between the two would find one running and the other lost.
        super().forget_loss()
        self._behind.forget_loss()

    def kill(self) -> None:
        super().kill()
        self._behind.kill()

    def _silence_told(self) -> str:
        lost = self._behind.state is EngineState.LOST
        return super()._silence_told() or ("" if lost else self._behind.detail)

    async def close(self) -> None:
        await asyncio.gather(super().close(), self._behind.close())

    def _lose(self, sentence: str) -> None:
        super()._lose(sentence)
        self._behind.kill()

    def _behind_changed(self, state: EngineState, detail: str) -> None:
        if self.state is EngineState.LOST:
            return
        if state is EngineState.LOST:
            self._lose(detail)
        else:
            self._set_state(self.state, self._silence_told())
