"""What the header line says: the model, opened before anything depends on it, and the device."""

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

    Takes the place of no other request: a panel that is opening the model goes on. Raises QtuiError
    when it cannot be opened.
    """
    from qtui.engine.answers.tensors import ModelIndex
    from qtui_core.codec import from_plain

    reply = await engine.request(
        "open_model",
        {"model": model},
        kind=None,
        on_progress=lambda fraction, _: on_fraction(fraction),
    )
    return from_plain(ModelIndex, {**reply.data, "tensors": []}).headline


async def device_of(engine: EngineClient) -> str:
    """The first GPU that the engine sees and its memory in words; "no GPU" without one.

    Raises QtuiError and RequestCancelled, as every request may.
    """
    from qtui.engine.answers.tensors import Devices
    from qtui.report.numbers import format_bytes

    reply = await engine.request("devices")
    devices = reply.read(Devices).devices
    if not devices:
        return "no GPU"
    first = devices[0]
    name = first.name or "GPU"
    more = f" (+{len(devices) - 1})" if len(devices) > 1 else ""
    used, total = first.memory_used, first.memory_total
    if used is None or total is None:
        return f"{name}{more}"
    return f"{name}{more}  HBM {format_bytes(used)} of {format_bytes(total)}"


async def try_model(model: str, log: Path, on_fraction: Callable[[float], None]) -> str:
    """`headline_of` in an engine of its own: what works goes on undisturbed, whatever the
    other model does to the process that reads it. Raises QtuiError."""
    from qtui.engine.client import EngineClient

    engine = EngineClient(log=log)
    try:
        return await headline_of(engine, model, on_fraction)
    finally:
        await engine.close()
