"""One operation of a step on the roofline: what it computes, what it moves, and what limits it.

This is the model of Williams, Waterman and Patterson (2009, doi:10.1145/1498765.1498785): an
operation takes at least as long as its arithmetic at the highest rate, and at least as long as
moving its bytes at the bandwidth of the memory; the longer of the two limits it.
"""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.device import Device
from qtui_core.roofline.hierarchy import L2, bandwidth_of


@dataclass(frozen=True)
class Operation:
    """An operation of one kind, executed `times` times in a step.

    Attributes:
        name: what it is; operations with the same numbers are one.
        group: "products", "attention", "row by row", "weights", "optimizer".
        operations: additions and multiplications of one execution.
        bytes: that it moves to and from device memory at least, each byte once.
        l2_bytes: that it moves between L2 and the multiprocessors; equal to `bytes` if each is used
            once.
        dtype: of the operands, which determines the rate.
        formula: of operations and bytes; `source`: where the count is from.
        fused_bytes: that remain if its neighbours do its work in the same kernel; None if fusing
            changes nothing.
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
        """Operations per byte of device memory."""
        return self.operations / self.bytes


@dataclass(frozen=True)
class Placed:
    """An operation on a device.

    Attributes:
        rate: operations per second of the units that run it; `units` names them.
        ridge: operations per byte from which on these units, not the memory, limit it.
        attainable: operations per second, at most.
        seconds: of all executions, at least.
        presses: what limits it: `units`, "L2" or "memory".
        saves_seconds: how much of `seconds` fusing would save.
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
    """The limits of a device: rates by dtype, and bandwidths of its memories in bytes per second.
    L2 is None if no bandwidth is known."""

    rates: dict[str, float]
    memory: float
    l2: float | None

    @staticmethod
    def of(device: Device) -> Roofs:
        return Roofs(dict(device.rates), float(device.bandwidth), bandwidth_of(device, L2))

    def rate_of(self, dtype: str) -> tuple[float, str]:
        """Operations per second on a dtype, and the name of the units. A dtype without units is
        computed in fp32, as torch does with bf16 before Ampere."""
        if dtype in self.rates:
            return self.rates[dtype], f"{dtype} units"
        return self.rates["fp32"], f"fp32 units, for want of {dtype}"


def place(operation: Operation, roofs: Roofs) -> Placed:
    """The operation on a device with these limits."""
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
