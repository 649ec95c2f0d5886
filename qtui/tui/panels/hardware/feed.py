"""What the Hardware panel asks the estimator's process, typed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from qtui.engine.client import EngineClient
from qtui.engine.estimator.answers import Operations, Readings
from qtui.tui.panels.hardware.shown import HardwareShown
from qtui_core.codec import from_plain
from qtui_core.memory.compute.operation import Operation
from qtui_core.memory.devices.rates import DeviceFacts, MeasuredRate
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.telemetry.readings import DeviceReading


class HardwareFeed:
    """Every method may raise QtuiError (EngineLost among them) and RequestCancelled."""

    def __init__(self, estimator: EngineClient) -> None:
        self.estimator = estimator

    async def gpus(self) -> tuple[DeviceReading, ...]:
        """The GPUs as they are now."""
        reply = await self.estimator.request("gpus")
        return reply.read(Readings).gpus

    async def operations(self, shown: HardwareShown) -> tuple[RunPlan, tuple[Operation, ...]]:
        """The plan with nothing left open, and its operations."""
        device = shown.choice.device
        params = {
            "model": shown.model,
            "plan": asdict(shown.plan),
            "device": {"name": device.name} if shown.choice.known else None,
            "usual": shown.usual,
        }
        reply = await self.estimator.request("operations", params)
        found = reply.read(Operations)
        return found.plan, found.operations

    async def measure(
        self,
        on: str,
        on_facts: Callable[[DeviceFacts], None],
        on_rate: Callable[[MeasuredRate], None],
    ) -> None:
        """Measures a GPU of this machine by its label, or what there is ("auto"); each rate is
        told as it comes."""

        def told(_: float, data: Mapping[str, Any]) -> None:
            if "device" in data:
                on_facts(from_plain(DeviceFacts, data["device"]))
            if "rate" in data:
                on_rate(from_plain(MeasuredRate, data["rate"]))

        await self.estimator.request("measure", {"on": on}, on_progress=told)
