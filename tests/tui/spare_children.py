"""Engines and estimators that answer one app after another.

A child takes half a second to start, most of it imports, and an app of a test is done with it after
a few questions. A child that has nothing to do when its client is closed is spared: the next client
that would start the same program, in the same folder, with the same environment, gets it. All else
of a client and of an app is new. That a spared child answers as a new one is what
test_spare_children.py holds.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process
from collections.abc import Mapping
from typing import Any, Final

import pytest

from qtui.engine.client import EngineClient, EngineState
from qtui.engine.protocol import Event, encode_event

#: Programs that are spared.
PROGRAMS: Final = ("qtui.engine.worker", "qtui.engine.estimator.child")
#: Children that wait for a client, at most; those that have waited longest are ended.
MOST: Final = 3
#: Variables that differ from test to test, in which a child reads nothing.
OF_A_TEST: Final = ("PYTEST_CURRENT_TEST", "XDG_CACHE_HOME", "XDG_STATE_HOME")

Key = tuple[object, ...]


class SpareChildren:
    """The children that wait, and the functions that take the place of the client's own."""

    def __init__(self) -> None:
        self._begin, self._close = asyncio.create_subprocess_exec, EngineClient.close
        self._keys: dict[Process, Key] = {}
        self._waiting: list[Process] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        spare = self
        patch.setattr(asyncio, "create_subprocess_exec", self.begin)

        async def close(client: EngineClient) -> None:
            await spare.close(client)

        patch.setattr(EngineClient, "close", close)

    async def begin(self, *command: str, **options: Any) -> Process:
        """In place of `asyncio.create_subprocess_exec`."""
        if not set(PROGRAMS) & set(command):
            return await self._begin(*command, **options)
        key = (*command, os.getcwd(), *sorted(_lasting(options["env"]).items()))
        for process in self._waiting:
            if self._keys[process] == key and process.returncode is None:
                self._waiting.remove(process)
                assert process.stdout is not None
                process.stdout.feed_data(encode_event(Event("ready")))  # which it has said before
                return process
        process = await self._begin(*command, **options)
        self._keys[process] = key
        return process

    async def close(self, client: EngineClient) -> None:
        """In place of `EngineClient.close`."""
        process = client._process
        if process not in self._keys or client.state is not EngineState.RUNNING or _works(client):
            await self._close(client)
            return
        background, client._process = list(client._background), None
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self._close(client)
        self._waiting.append(process)
        await self.end(MOST)

    async def end(self, most: int = 0) -> None:
        """Ends those that wait but the last `most`."""
        while len(self._waiting) > most:
            process = self._waiting.pop(0)
            del self._keys[process]
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name not in OF_A_TEST}


def _works(client: EngineClient) -> bool:
    """Whether the child of a client may still be at something."""
    return bool(client._calls or client._cancelled)
