"""The memories of a GPU, from its registers to its device memory: the size of each, and the bytes a
second that it delivers to all units.

Sizes are from the catalogue. Bandwidths are stated by vendors, or follow from stated widths and the
highest clock, or were measured by others; each level says which. A bandwidth that is not stated is
None, and can be measured on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.device import Device

Basis = Literal["stated", "derived", "measured", ""]


@dataclass(frozen=True)
class MemoryLevel:
    """One of the memories.

    Attributes:
        name: one of the five below.
        bytes: of the whole device; `per_unit`: of one multiprocessor, or None if all share it.
        bandwidth: for reading, bytes a second of the whole device; None if it is not stated.
        basis: of the bandwidth; `source`: where it is from and how it follows.
    """

    name: str
    bytes: int
    per_unit: int | None
    bandwidth: int | None
    basis: Basis
    source: str


REGISTERS: Final = "registers"
L1: Final = "L1 and shared memory"
L2: Final = "L2"
INFINITY: Final = "Infinity Cache"
MEMORY: Final = "memory"

#: Bytes per clock that one multiprocessor reads from its L1 cache and shared memory. 32 banks of 4
#: bytes give 128 (CUDA C++ Programming Guide, shared memory); Turing has half (Ampere GA102 white
#: paper, which compares both; Jia et al. 2019, arXiv 1903.07486, measured 58.8 of 64).
_L1_WIDTH: Final[Mapping[tuple[int, int], int]] = {(7, 5): 64}
_L1_USUAL: Final = 128
#: AMD: local data share, 128 bytes per clock and compute unit (white papers of CDNA 2 and 3).
_LDS_WIDTH: Final = 128

#: Bytes per clock from the whole L2 (A100 architecture white paper, which states both).
_L2_WIDTH: Final[Mapping[tuple[int, int], int]] = {(7, 0): 2048, (8, 0): 5120}
#: AMD: 128 bytes per clock and channel; MI250X has 32 channels per die (CDNA 2 white paper), MI300X
#: 16 in each of eight dies (CDNA 3 white paper).
_L2_WIDTH_AMD: Final[Mapping[str, int]] = {"CDNA 2": 128 * 32, "CDNA 3": 128 * 16 * 8}
#: Measured by others, bytes a second, by device.
_L2_MEASURED: Final[Mapping[str, tuple[int, str]]] = {
    "T4": (1_270 * 10**9, "measured by Jia et al. 2019, arXiv 1903.07486, table 3.1"),
}
#: The cache behind L2 of the whole device: bytes and bytes a second (CDNA 3 white paper).
_INFINITY: Final = (256 << 20, 17_200 * 10**9)

#: A fused multiply-add reads three operands of four bytes and writes one, and counts as two
#: operations.
_REGISTER_BYTES_PER_OPERATION: Final = (3 + 1) * 4 // 2


def hierarchy(device: Device) -> tuple[MemoryLevel, ...]:
    """The memories of a device, those closest to the units first; empty if only its memory size is
    known."""
    if not device.multiprocessors:
        return ()
    one, units = device.multiprocessor, device.multiprocessors
    levels = [
        MemoryLevel(REGISTERS, one.registers * units, one.registers, *_registers(device)),
        MemoryLevel(L1, one.l1 * units, one.l1, *_l1(device)),
        MemoryLevel(L2, device.l2, None, *_l2(device)),
    ]
    if device.architecture == "CDNA 3":
        size, speed = _INFINITY
        levels.append(MemoryLevel(INFINITY, size, None, speed, "stated", "CDNA 3 white paper"))
    levels.append(
        MemoryLevel(MEMORY, device.capacity_bytes, None, device.bandwidth, "stated", device.source)
    )
    return tuple(levels)


Speed = tuple[int | None, Basis, str]


def _registers(device: Device) -> Speed:
    """What the fp32 units read and write at their highest rate: the register file delivers at least
    this."""
    if device.vendor != "NVIDIA" or "fp32" not in device.rates:
        return None, "", "not stated"
    speed = round(device.rates["fp32"] * _REGISTER_BYTES_PER_OPERATION)
    return speed, "derived", "at least: three reads and a write of 4 B for each fp32 multiply-add"


def _l1(device: Device) -> Speed:
    if device.vendor == "AMD":
        width, of = _LDS_WIDTH, "local data share"
    else:
        width, of = _L1_WIDTH.get(device.capability or (0, 0), _L1_USUAL), "banks"
    speed = width * device.multiprocessors * device.boost_mhz * 10**6
    units = "compute unit" if device.vendor == "AMD" else "multiprocessor"
    return speed, "derived", f"{width} B a clock and {units} ({of}) at {device.boost_mhz} MHz"


def _l2(device: Device) -> Speed:
    if device.name in _L2_MEASURED:
        speed, source = _L2_MEASURED[device.name]
        return speed, "measured", source
    width = _L2_WIDTH.get(device.capability or (0, 0)) or _L2_WIDTH_AMD.get(device.architecture)
    if width is None:
        return None, "", "not stated by the vendor"
    if device.capability == (8, 0) and device.name == "A30":
        return None, "", "not stated by the vendor"  # half of the L2 of an A100
    speed = width * device.boost_mhz * 10**6
    return speed, "derived", f"{width:,} B a clock (white paper) at {device.boost_mhz} MHz"


def bandwidth_of(device: Device, name: str) -> int | None:
    """Bytes a second of the level with this name; None if there is none or its bandwidth is not
    stated."""
    return next((level.bandwidth for level in hierarchy(device) if level.name == name), None)
