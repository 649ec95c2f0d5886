"""The child processes of the app, with the files of their logs, and what the header line says of
the model and the device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from qtui.screen.messages import ModelFailed, ModelOpened
from qtui.screen.panel.host import Severity
from qtui.tui.config import log_file
from qtui.tui.header import HeaderLine
from qtui_core.errors import ModelError, QtuiError

if TYPE_CHECKING:
    from qtui.engine.client import EngineClient

log = logging.getLogger("qtui.tui")


def new_engine() -> EngineClient:
    """The process that has torch; it starts at its first request."""
    from qtui.engine.client import EngineClient

    states = partial(log.info, "engine %s %s")
    return EngineClient(log=log_file().with_name("engine.log"), on_state=states)


def new_estimator() -> EngineClient:
    """The processes that estimate memory, without torch; they start at the first request."""
    from qtui.engine.estimator.client import EstimatorClient

    states = partial(log.info, "estimator %s %s")
    return EstimatorClient(log=log_file().with_name("estimator.log"), on_state=states)


async def headline_of(
    engine: EngineClient, model: str, on_fraction: Callable[[float], None]
) -> str:
    """The header line's text for a model, from its headers alone.

    Raises QtuiError if the model cannot be opened.
    """
    from qtui.engine.answers.tensors import ModelIndex
    from qtui_core.codec import from_plain

    reply = await engine.request(
        "open_model",
        {"model": model},
        on_progress=lambda fraction, _: on_fraction(fraction),
    )
    return from_plain(ModelIndex, {**reply.data, "tensors": []}).headline


async def looked(
    engine: EngineClient, model: str, header: HeaderLine, tell: Callable[[str, Severity], None]
) -> ModelOpened | ModelFailed | None:
    """Names the device in the header line, and opens the model for its headline; None if it is
    not known why it did not open. What fails is told."""
    show = partial(header.show_opening, model)
    try:
        header.device = await device_of(engine)
        return ModelOpened(model, await headline_of(engine, model, show))
    except QtuiError as error:
        tell(str(error), "error")
        return ModelFailed(model, str(error)) if isinstance(error, ModelError) else None


async def device_of(engine: EngineClient) -> str:
    """The first GPU that the engine sees and its memory, in words; "no GPU" if there is none.

    Raises QtuiError, like every request.
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


async def try_model(model: str, on_fraction: Callable[[float], None]) -> str:
    """`headline_of` in a separate engine, so that the other model cannot disturb current work,
    whatever it does to the process that reads it. Raises QtuiError."""
    engine = new_engine()
    on_fraction(0)
    try:
        return await headline_of(engine, model, on_fraction)
    finally:
        await engine.close()
