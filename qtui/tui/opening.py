"""Opening a model before anything that is shown depends on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qtui.engine.client import EngineClient


async def headline_of(
    engine: EngineClient, model: str, on_fraction: Callable[[float], None]
) -> str:
    """What the header line says of a model, from its headers alone.

    Raises QtuiError when it cannot be opened, RequestCancelled when a newer request takes over.
    """
    from qtui.tui.panels.quantize.data import ModelIndex

    reply = await engine.request(
        "open_model", {"model": model}, on_progress=lambda fraction, _: on_fraction(fraction)
    )
    return ModelIndex.parse({**reply.data, "tensors": ()}).headline


async def try_model(model: str, log: Path, on_fraction: Callable[[float], None]) -> str:
    """`headline_of` in an engine of its own: what works goes on undisturbed, whatever the
    other model does to the process that reads it. Raises QtuiError."""
    from qtui.engine.client import EngineClient

    engine = EngineClient(log=log)
    try:
        return await headline_of(engine, model, on_fraction)
    finally:
        await engine.close()
