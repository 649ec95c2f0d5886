"""The requests of the Hardware panel to the estimator's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qtui.engine.estimator.answers import MeasurementLine, Operations, Readings
from qtui.engine.estimator.requests import PlanRequest, RatesRequest, RequestedDevice
from qtui.screen.panel.feed import Feed
from qtui.tui.panels.hardware.shown import HardwareShown
from qtui_core.codec import from_plain
from qtui_core.roofline.rates import DeviceFacts, MeasuredRate
from qtui_core.telemetry.readings import DeviceReading


class HardwareFeed(Feed):
    """Every method may raise QtuiError (also EngineLost)."""

    async def gpus(self) -> tuple[DeviceReading, ...]:
        """The current readings of the GPUs."""
        return (await self.ask(Readings, "gpus")).gpus

    async def operations(self, shown: HardwareShown) -> Operations:
        """The operations of the plan that is shown."""
        device = shown.choice.device
        params = PlanRequest(
            model=shown.model,
            plan=shown.plan,
            device=RequestedDevice(name=device.name) if shown.choice.known else None,
        )
        return await self.ask(Operations, "operations", params)

    async def measure(
        self,
        on: str,
        on_facts: Callable[[DeviceFacts], None],
        on_rate: Callable[[MeasuredRate], None],
    ) -> None:
        """Measures a device of this machine: the GPU with the label `on`, or for "auto" the first
        GPU or else the processor. Calls `on_facts` once, and `on_rate` after each measurement."""

        def told(_: float, data: dict[str, Any]) -> None:
            line = from_plain(MeasurementLine, data)
            if line.device is not None:
                on_facts(line.device)
            if line.rate is not None:
                on_rate(line.rate)

        await self.engine.request("measure", RatesRequest(on=on), on_progress=told)
