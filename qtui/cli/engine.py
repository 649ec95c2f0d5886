"""Asking the engine from a command: what needs torch runs in the child, here as in the app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from qtui.cli.exits import say
from qtui.engine.client import EngineClient, EngineState, Reply
from qtui.engine.silence import LIMIT_SECONDS, silence_of

Progress = Callable[[float, dict[str, Any]], None]


def ask_engine(
    model: str, method: str, params: Mapping[str, Any], progress: Progress | None = None
) -> Reply:
    """Opens `model` in a fresh engine and asks it once.

    Raises QtuiError (UsageError, ModelError) as the engine reports it, and EngineLost when it
    is gone.
    """

    async def ask() -> Reply:
        engine = EngineClient(on_state=_tell_silence)
        try:
            await engine.request("open_model", {"model": model})
            return await engine.request(method, {"model": model, **params}, on_progress=progress)
        finally:
            await engine.close()

    return asyncio.run(ask())


def _tell_silence(state: EngineState, detail: str) -> None:
    """That it does not answer, once it is so; how it ends is told by an exception."""
    if state is not EngineState.LOST and detail == silence_of("The engine", LIMIT_SECONDS):
        say(f"qtui: {detail} Ctrl-C ends it.")
