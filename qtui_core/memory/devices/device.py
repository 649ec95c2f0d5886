"""GPUs: those of gpus.csv by name, and what is known of one: memory, bandwidth, operations a
second."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.quantities import shortened

#: The share of nvidia-smi's total that cudaMemGetInfo gives, where this is not known. Known shares
#: are 98.0 % (RTX 4090) to 99.6 % (H200); the lower is taken.
_ALLOCATABLE_SHARE: Final = 0.98


@dataclass(frozen=True)
class Multiprocessor:
    """On-chip memory of one multiprocessor (a compute unit of AMD), in bytes.

    Attributes:
        registers: the register file.
        l1: L1 cache, including shared memory if they are one.
        shared: how much of it can be shared memory (LDS) at most.

    Source: CUDA C++ Programming Guide, table of technical specifications by compute capability;
    white papers of CDNA 2 and 3.
    """

    registers: int
    l1: int
    shared: int


@dataclass(frozen=True)
class Calibration:
    """What `qtui calibrate` measured on a device, in bytes.

    Attributes:
        made: the day, as 2026-11-21.
        torch: (major, minor) of the version that was used.
        context: what a process takes besides torch's reserved bytes, after a step; context_low and
            context_high are the range over all measured steps. None if the driver does not report
            the memory of a process.
        workspace_forward: cuBLAS workspaces that stay allocated after products in the program's
            thread only; workspace_training: after a backward pass too.
    """

    made: str
    torch: tuple[int, int]
    context: int | None
    context_low: int
    context_high: int
    workspace_forward: int
    workspace_training: int

    @property
    def source(self) -> str:
        """How it is named beside the figures that come from it."""
        return f"calibrated: measured here on {self.made}"


@dataclass(frozen=True)
class Device:
    """One GPU as torch sees it: half of an MI250X is one. What has a default may be unknown.

    Attributes:
        name: without the vendor.
        vendor: "NVIDIA" or "AMD".
        architecture: e.g. "Hopper".
        capability: CUDA's compute capability (major, minor); None for AMD.
        multiprocessors: how many; `multiprocessor`: the memory in one.
        boost_mhz: the highest clock that the vendor states.
        memory_gb: as it is sold, in the vendor's GB.
        total: bytes that nvidia-smi (NVML) reports with the default ECC setting; None if no report
            was found.
        allocatable: total bytes that cudaMemGetInfo reports, including the context; drivers differ
            by some hundred MiB. None if no report was found.
        bandwidth: of its memory, bytes a second.
        l2: bytes of L2 cache (for AMD per device, without the cache behind it).
        rates: the most operations a second by dtype of the operands, counting multiplications and
            additions, for dense matrices with sums in fp32 (int32 for integers). fp64 and fp32 are
            those of matrix units if these support them, else of the vector units. A dtype without
            units is missing.
        source: the vendor's documents that state them.
        note: what is unusual.
        aliases: other names.
        calibration: what was measured on it here, which overrides general figures.
    """

    name: str
    memory_gb: int
    total: int | None
    allocatable: int | None
    source: str
    vendor: str = ""
    architecture: str = ""
    capability: tuple[int, int] | None = None
    multiprocessors: int = 0
    multiprocessor: Multiprocessor = Multiprocessor(0, 0, 0)
    boost_mhz: int = 0
    bandwidth: int = 0
    l2: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    aliases: tuple[str, ...] = ()
    calibration: Calibration | None = None

    @property
    def capacity_bytes(self) -> int:
        """Bytes that all processes together can have, including their contexts."""
        if self.allocatable is not None:
            return self.allocatable
        if self.total is not None:
            return int(self.total * _ALLOCATABLE_SHARE)
        return int(self.memory_gb * 10**9 * _ALLOCATABLE_SHARE)

    def rate(self, dtype: str) -> float:
        """Operations a second on operands of a dtype (fp64, fp32, tf32, fp16, bf16, fp8, fp4, int8,
        int4).

        Raises UsageError if the device has no units for it.
        """
        if dtype not in self.rates:
            raise UsageError(
                f"The {self.name} does not compute in {dtype}; it does in {', '.join(self.rates)}."
            )
        return self.rates[dtype]


KIB: Final = 1 << 10
MIB: Final = 1 << 20

#: The columns with rates.
_DTYPES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")


def _rows() -> Iterator[Mapping[str, str]]:
    text = Path(__file__).with_name("gpus.csv").read_text(encoding="utf-8")
    return csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))


def _device(row: Mapping[str, str]) -> Device:
    """A row, whose units the head of the file names, in bytes and operations a second."""
    major, _, minor = row["capability"].partition(".")
    registers, l1, shared = (int(row[name]) * KIB for name in ("registers", "l1", "shared"))
    rates = {dtype: float(row[dtype]) * 1e12 for dtype in _DTYPES if row[dtype]}
    return Device(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        capability=(int(major), int(minor)) if major else None,
        multiprocessors=int(row["multiprocessors"]),
        multiprocessor=Multiprocessor(registers, l1, shared),
        boost_mhz=int(row["boost_mhz"]),
        memory_gb=int(row["memory_gb"]),
        total=int(row["total"]) * MIB if row["total"] else None,
        allocatable=int(row["allocatable"]) if row["allocatable"] else None,
        bandwidth=round(float(row["bandwidth"]) * 10**9),
        l2=round(float(row["l2"]) * MIB),
        rates=MappingProxyType(rates),
        source=row["source"],
        note=row["note"],
        aliases=tuple(row["aliases"].split("; ")) if row["aliases"] else (),
    )


#: All devices, in the order of the file.
DEVICES: Final = tuple(_device(row) for row in _rows())


#: Words that do not distinguish one device from another.
_COMMON = frozenset(
    ("nvidia", "amd", "geforce", "tesla", "quadro", "instinct", "gpu", "generation", "rtx")
)


def find_device(name: str) -> Device:
    """The device with a name: in any case, with or without vendor, "GeForce", "Tesla", spaces and
    dashes, as the driver reports it or as people write it ("4090", "a100-80", "H100").

    If several devices match, the first in the catalogue is taken, which is the most common. Raises
    UsageError for an unknown name, with the nearest known ones.
    """
    known: dict[str, Device] = {}
    for device in DEVICES:
        for label in (device.name, *device.aliases):
            known.setdefault(_key(label), device)
    key = _key(name)
    if key in known:
        return known[key]
    words = _words(name)
    for device in DEVICES:
        if words and any(words <= _words(label) for label in (device.name, *device.aliases)):
            return device
    # Imported only if a name is not found.
    from difflib import get_close_matches

    near = get_close_matches(key, known, n=4, cutoff=0.5)
    offered = list(dict.fromkeys(known[match].name for match in near))
    if not words:  # "RTX" is part of many names
        text = name.strip().lower()
        offered = [device.name for device in DEVICES if text and text in device.name.lower()][:6]
    near_it = f"Near it: {', '.join(offered)}."
    if not offered:
        near_it = f"It has {', '.join(device.name for device in DEVICES[:6])}, and others."
    raise UsageError(
        f"There is no GPU {shortened(name)!r} in the catalogue. {near_it} "
        "For another one, give its memory instead, as in --vram 24GiB."
    )


def _words(name: str) -> frozenset[str]:
    """The words of a name that distinguish devices; "80GB" gives "80", "RTX4090" gives "rtx",
    "4090"."""
    text = re.sub(r"(?<=\d)\s*gi?b\b", "", name.lower())
    text = re.sub(r"\b(rtx|gtx)(?=\d)", r"\1 ", text)
    words = re.findall(r"[a-z0-9]+", text)
    return frozenset(words) - _COMMON


def _key(name: str) -> str:
    return " ".join(sorted(_words(name)))


def device_of_memory(nbytes: int) -> Device:
    """A GPU of which only the bytes that processes can have are known."""
    power, unit = (30, "GiB") if nbytes >= 1 << 30 else (20, "MiB")
    amount = nbytes / (1 << power)
    return Device(
        name=f"a GPU of {amount:.2f}".rstrip("0").rstrip(".") + f" {unit}",
        memory_gb=round(nbytes / 10**9),
        total=None,
        allocatable=nbytes,
        source="as given",
    )
