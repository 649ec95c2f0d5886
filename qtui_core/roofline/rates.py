"""What was measured on a device and what CUDA reports of it, to be combined with the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.device import Device, Multiprocessor

PRODUCT: Final = "product"
COPY: Final = "copy"


@dataclass(frozen=True)
class MeasuredRate:
    """The timing of a product of square matrices, or of a copy.

    Attributes:
        what: PRODUCT or COPY.
        dtype: of the operands; bytes for a copy.
        size: rows of the matrices; bytes that are copied.
        per_second: operations (2 size³ each), or bytes read and written; None if the device cannot
            do it, and then `why_not` says why.
        seconds: of one, the median of `repeats`.
    """

    what: str
    dtype: str
    size: int
    per_second: float | None
    seconds: float | None = None
    repeats: int = 0
    why_not: str = ""

    def share_of(self, device: Device) -> float | None:
        """The share of the vendor's figure that was reached; None if the vendor states none."""
        stated = device.bandwidth if self.what == COPY else device.rates.get(self.dtype)
        return self.per_second / stated if self.per_second and stated else None


@dataclass(frozen=True)
class DeviceFacts:
    """What the measured device reports of itself. None if it does not report a value.

    Attributes:
        kind: "cuda" or "cpu"; `name`: from its driver or system.
        capability, multiprocessors, total_memory, l2, shared, registers, clock_mhz: from CUDA
            through torch; shared memory and registers in bytes of one multiprocessor.
        bandwidth: bytes a second: two transfers per clock of the memory over its bus.
        threads: how many torch uses, on a CPU.
    """

    kind: str
    name: str
    capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    total_memory: int | None = None
    l2: int | None = None
    shared: int | None = None
    registers: int | None = None
    clock_mhz: int | None = None
    bandwidth: int | None = None
    threads: int | None = None


def with_facts(device: Device, facts: DeviceFacts) -> Device:
    """A device of the catalogue with the sizes that CUDA reports of this one."""
    one = device.multiprocessor
    return replace(
        device,
        multiprocessors=facts.multiprocessors or device.multiprocessors,
        multiprocessor=Multiprocessor(
            facts.registers or one.registers, one.l1, facts.shared or one.shared
        ),
        boost_mhz=facts.clock_mhz or device.boost_mhz,
        l2=facts.l2 or device.l2,
        allocatable=facts.total_memory or device.allocatable,
    )


def device_of_facts(facts: DeviceFacts, rates: Iterable[MeasuredRate]) -> Device:
    """A device that is not in the catalogue, from what CUDA reports and what was measured: its
    rates and, if CUDA does not report a bandwidth, that of a copy."""
    known = list(rates)
    copied = next((rate.per_second for rate in known if rate.what == COPY), None)
    memory = facts.total_memory or 0
    return Device(
        name=facts.name,
        vendor="NVIDIA" if facts.kind == "cuda" else "",
        architecture="",
        capability=facts.capability,
        multiprocessors=facts.multiprocessors or 0,
        multiprocessor=Multiprocessor(facts.registers or 0, facts.shared or 0, facts.shared or 0),
        boost_mhz=facts.clock_mhz or 0,
        memory_gb=round(memory / 10**9),
        total=None,
        allocatable=memory or None,
        bandwidth=facts.bandwidth or round(copied or 0),
        l2=facts.l2 or 0,
        rates=MappingProxyType(
            {
                rate.dtype: rate.per_second
                for rate in known
                if rate.what == PRODUCT and rate.per_second
            }
        ),
        source="CUDA, and measured here",
    )
