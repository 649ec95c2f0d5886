"""The current state of the Hardware panel."""

from __future__ import annotations

from collections import deque
from dataclasses import field, replace
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import DEVICES, Device, device_of_memory, find_device
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.roofline.operation import Operation, Placed, Roofs, place
from qtui_core.roofline.rates import (
    COPY,
    PRODUCT,
    DeviceFacts,
    MeasuredRate,
    device_of_facts,
    with_facts,
)
from qtui_core.telemetry.readings import DeviceReading

#: The device that is shown first on a machine without a GPU.
FIRST: Final = "A100 SXM4 80GB"
#: Readings of a GPU that are kept: one minute, at two per second.
KEPT: Final = 120


@dataclass(frozen=True)
class DeviceChoice:
    """A device that can be shown. `here` is its label among the GPUs of this machine, "" for one of
    the catalogue; `known` says whether the catalogue has it."""

    device: Device
    here: str = ""
    known: bool = True

    @property
    def label(self) -> str:
        return f"{self.device.name} (here, GPU {self.here})" if self.here else self.device.name

    @staticmethod
    def of_reading(reading: DeviceReading) -> DeviceChoice:
        """A GPU of this machine: its entry in the catalogue, or a device with its memory alone."""
        try:
            return DeviceChoice(find_device(reading.name or ""), reading.label)
        except UsageError:
            named = replace(device_of_memory(reading.memory_total or 0), name=reading.name or "GPU")
            return DeviceChoice(named, reading.label, known=False)


@dataclass
class HardwareShown:
    """The state is filled piece by piece; None means not known yet.

    Attributes:
        gpus: the latest readings.
        history: label -> earlier readings as (utilisation, share of memory).
        facts, rates: of the device that was measured.
        measured_on: the label of that device.
        operations: of `plan` on `model`; of a stand-in for it if `assumed`.
        why: why there are no operations.
    """

    model: str
    plan: RunPlan = field(default_factory=RunPlan)
    resolved: RunPlan | None = None
    gpus: tuple[DeviceReading, ...] | None = None
    history: dict[str, deque[tuple[int | None, float | None]]] = field(default_factory=dict)
    choice: DeviceChoice = field(default_factory=lambda: DeviceChoice(find_device(FIRST)))
    facts: DeviceFacts | None = None
    rates: tuple[MeasuredRate, ...] = ()
    measured_on: str = ""
    measuring: bool = False
    operations: tuple[Operation, ...] = ()
    assumed: bool = False
    why: str = ""
    line: int = 0

    @property
    def choices(self) -> tuple[DeviceChoice, ...]:
        """The GPUs of this machine, then the catalogue."""
        here = [DeviceChoice.of_reading(reading) for reading in self.gpus or ()]
        return (*here, *(DeviceChoice(device) for device in DEVICES))

    @property
    def measured_here(self) -> bool:
        """Whether the measured device is the one shown."""
        return (
            self.facts is not None
            and self.facts.kind == "cuda"
            and self.choice.here == self.measured_on != ""
            and _same(self.facts.name, self.choice.device.name)
        )

    @property
    def device(self) -> Device:
        """The device that is shown; with the facts that CUDA reports, if it was measured."""
        if not self.measured_here or self.facts is None:
            return self.choice.device
        if self.choice.known:
            return with_facts(self.choice.device, self.facts)
        return device_of_facts(self.facts, self.rates)

    @property
    def roofs(self) -> Roofs | None:
        """The roofs of the device; None if its rates are not known."""
        device = self.device
        return Roofs.of(device) if "fp32" in device.rates and device.bandwidth else None

    @property
    def reached(self) -> tuple[float, float] | None:
        """Measured bytes per second of a copy and operations per second of the fastest product on
        the device shown; None if it was not measured."""
        copies = [each.per_second for each in self.rates if each.what == COPY and each.per_second]
        products = [
            each.per_second for each in self.rates if each.what == PRODUCT and each.per_second
        ]
        if not self.measured_here or not copies or not products:
            return None
        return max(copies), max(products)

    @property
    def placed(self) -> tuple[Placed, ...]:
        """The operations with their times on the device, the longest first."""
        roofs = self.roofs
        if roofs is None:
            return ()
        found = [place(operation, roofs) for operation in self.operations]
        return tuple(sorted(found, key=lambda each: -each.seconds))

    def take_gpus(self, gpus: tuple[DeviceReading, ...]) -> None:
        """Takes the latest readings, and adds them to the history."""
        self.gpus = gpus
        for reading in gpus:
            past = self.history.setdefault(reading.label, deque(maxlen=KEPT))
            used, total = reading.memory_used, reading.memory_total
            past.append((reading.gpu_percent, used / total if used is not None and total else None))


def _same(reported: str, name: str) -> bool:
    """Whether torch's name of a device means the device `name` of the catalogue."""
    try:
        return find_device(reported).name == name
    except UsageError:
        return reported == name


#: The letters of operations in the roofline, in the order of the list.
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
