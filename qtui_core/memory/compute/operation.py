"""One operation of a step on the roofline: what it computes, what it moves, and what limits it.

The model is that of Williams, Waterman and Patterson (2009, doi:10.1145/1498765.1498785): an
operation takes no less than its arithmetic at the highest rate, and no less than its bytes at the
bandwidth of the memory they pass; whichever is longer limits it.
"""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.device import Device
from qtui_core.memory.devices.hierarchy import L2, bandwidth_of


@dataclass(frozen=True)
class Operation:
    """An operation of one kind, done `times` in a step.

    Attributes:
        name: what it is; operations of the same numbers are one.
        group: "products", "attention", "row by row", "weights", "optimizer".
        operations: additions and multiplications of one of them.
        bytes: that it moves to and from the memory of the device at least, once each.
        l2_bytes: that it moves between L2 and the multiprocessors; as `bytes` where each is used
            once.
        dtype: the operands' type, which decides the rate.
        formula: of operations and bytes; `source`, where the count is from.
        fused_bytes: that are left where its neighbours do its work in the same kernel; None where
            fusing changes nothing.
        fused: how, in words.
    """

    name: str
    group: str
    times: int
    operations: int
    bytes: int
    l2_bytes: int
    dtype: str
    formula: str
    source: str
    fused_bytes: int | None = None
    fused: str = ""

    @property
    def intensity(self) -> float:
        """Operations a byte of the device's memory."""
        return self.operations / self.bytes

    @property
    def saved_bytes(self) -> int:
        """Of all times, what fusing would not move."""
        return 0 if self.fused_bytes is None else (self.bytes - self.fused_bytes) * self.times


@dataclass(frozen=True)
class Placed:
    """An operation on a device.

    Attributes:
        rate: operations a second of the units it runs on; `units` names them.
        ridge: operations a byte from which those units and not the memory limit it.
        attainable: operations a second, at most.
        seconds: of all times, at least.
        presses: what it waits for: `units`, "L2" or "memory".
        saves_seconds: of all times, what fusing would spare of `seconds`.
    """

    operation: Operation
    rate: float
    units: str
    ridge: float
    attainable: float
    seconds: float
    presses: str
    saves_seconds: float


@dataclass(frozen=True)
class Roofs:
    """What limits operations on a device: rates by type, and bandwidths of its memories in bytes
    a second. L2 is None where nobody states it."""

    rates: dict[str, float]
    memory: float
    l2: float | None

    @staticmethod
    def of(device: Device) -> Roofs:
        return Roofs(dict(device.rates), float(device.bandwidth), bandwidth_of(device, L2))

    def rate_of(self, dtype: str) -> tuple[float, str]:
        """Operations a second on a type, and the units: a type without units is computed in
        fp32, as torch does with bf16 before Ampere."""
        if dtype in self.rates:
            return self.rates[dtype], f"{dtype} units"
        return self.rates["fp32"], f"fp32 units, for want of {dtype}"


def place(operation: Operation, roofs: Roofs) -> Placed:
    """The operation under the roofs of a device."""
    rate, units = roofs.rate_of(operation.dtype)
    waits = {
        units: operation.operations / rate,
        "memory": operation.bytes / roofs.memory,
    }
    if roofs.l2 is not None:
        waits["L2"] = operation.l2_bytes / roofs.l2
    presses = max(waits, key=lambda name: waits[name])
    seconds = waits[presses]
    saves = 0.0
    if operation.fused_bytes is not None:
        left = max(waits[units], operation.fused_bytes / roofs.memory)
        saves = max(0.0, seconds - left)
    return Placed(
        operation,
        rate,
        units,
        rate / roofs.memory,
        min(rate, operation.intensity * roofs.memory),
        seconds * operation.times,
        presses,
        saves * operation.times,
    )
