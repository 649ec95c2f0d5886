"""The texts of the header line: the model, and the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qtui.engine.client import EngineClient


async def headline_of(
    engine: EngineClient, model: str, on_fraction: Callable[[float], None]
) -> str:
    """The header line's text for a model, from its headers alone.

    It replaces no other request: a panel that is opening the model continues. Raises QtuiError if
    the model cannot be opened.
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
    """The first GPU that the engine sees and its memory, in words; "no GPU" if there is none.

    Raises QtuiError and RequestCancelled, like every request.
    """
    from qtui.engine.answers.tensors import Devices
    from qtui_core.quantities import format_bytes

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
    """`headline_of` in a separate engine, so that the other model cannot disturb current work,
    whatever it does to the process that reads it. Raises QtuiError."""
    from qtui.engine.client import EngineClient

    engine = EngineClient(log=log)
    try:
        return await headline_of(engine, model, on_fraction)
    finally:
        await engine.close()
