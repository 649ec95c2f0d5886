"""GPUs: those of gpus.csv by name, and what is known of one: memory, bandwidth, operations a
second; and what a run takes there besides its tensors: cuBLAS workspaces, which torch counts as
allocated, and the CUDA context and modules, which only the driver counts."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

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
        total = self.memory_gb * 10**9 if self.total is None else self.total
        return int(total * _ALLOCATABLE_SHARE) if self.allocatable is None else self.allocatable

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

#: The columns with texts, whole numbers, and rates.
_TEXTS: Final = ("name", "vendor", "architecture", "source", "note")
_COUNTS: Final = ("multiprocessors", "boost_mhz", "memory_gb")
_DTYPES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")


def _device(row: Mapping[str, str]) -> Device:
    """A row, whose units the head of the file names, in bytes and operations a second."""
    major, _, minor = row["capability"].partition(".")
    registers, l1, shared = (int(row[name]) * KIB for name in ("registers", "l1", "shared"))
    rates = {dtype: float(row[dtype]) * 1e12 for dtype in _DTYPES if row[dtype]}
    as_written: Any = {name: row[name] for name in _TEXTS}
    counts: Any = {name: int(row[name]) for name in _COUNTS}
    return Device(
        **as_written,
        **counts,
        capability=(int(major), int(minor)) if major else None,
        multiprocessor=Multiprocessor(registers, l1, shared),
        total=int(row["total"]) * MIB if row["total"] else None,
        allocatable=int(row["allocatable"]) if row["allocatable"] else None,
        bandwidth=round(float(row["bandwidth"]) * 10**9),
        l2=round(float(row["l2"]) * MIB),
        rates=MappingProxyType(rates),
        aliases=tuple(row["aliases"].split("; ")) if row["aliases"] else (),
    )


_LINES: Final = Path(__file__).with_name("gpus.csv").read_text(encoding="utf-8").splitlines()
#: All devices, in the order of the file.
DEVICES: Final = tuple(map(_device, csv.DictReader(x for x in _LINES if not x.startswith("#"))))


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
    return frozenset(re.findall(r"[a-z0-9]+", text)) - _COMMON


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


#: ":4096:2:16:8" in the notation of CUBLAS_WORKSPACE_CONFIG: two of 4 MiB and eight of 16 KiB.
DEFAULT_WORKSPACE: Final = 8_519_680
#: What cuBLAS recommends from Hopper on.
LARGE_WORKSPACE: Final = 32 * MIB
#: hipBLAS on gfx94x and gfx95x.
_INSTINCT_WORKSPACE: Final = 128 * MIB

#: By major compute capability, the first torch version with the large workspace; pull requests
#: 89027, 175344 and 189312 of pytorch. That for Blackwell was merged in February 2026; 2.11 may or
#: may not have it, and is taken not to.
_LARGE_SINCE: Final = {9: (2, 0), 10: (2, 12), 12: (2, 12), 11: (2, 14)}
#: The first torch version that frees workspaces after each product, unless
#: TORCH_CUBLAS_WORKSPACE_CACHE is set; pull request 194311. It is documented for 2.15; 2.14 may
#: have it.
_NOT_KEPT_SINCE: Final = (2, 15)


@dataclass(frozen=True)
class Calibrated:
    """Bytes that were measured on other machines, and the range of the measurements."""

    bytes: int
    low: int
    high: int
    source: str

    @property
    def uncertainty(self) -> int:
        """The distance to the farther end of the range."""
        return max(self.high - self.bytes, self.bytes - self.low)


@dataclass(frozen=True)
class Workspace:
    """Workspaces of cuBLAS.

    Attributes:
        each: bytes of one.
        threads: that multiply matrices and have one workspace each: the program's thread runs
            forward passes, autograd's thread backward passes, each with its own handle.
        kept: whether they stay allocated between products.
        source: where the sizes are from.
    """

    each: int
    threads: int
    kept: bool
    source: str

    @property
    def bytes(self) -> int:
        """Bytes that stay allocated between products."""
        return self.each * self.threads if self.kept else 0


def cublas_workspace(torch: str, device: Device | None = None, *, trains: bool = True) -> Workspace:
    """The workspaces of a run with a torch version ("2.13") on a device; without a device, on GPUs
    before Hopper.

    Source: parseChosenWorkspaceSize and setWorkspaceForHandle in
    aten/src/ATen/cuda/CublasHandlePool.cpp, without CUBLAS_WORKSPACE_CONFIG. That training has two
    is concluded from the code; 21 published runs on A100 agree with two of 8,519,680 bytes to
    0.24 %.

    Raises UsageError for a version that cannot be parsed.
    """
    version = parse_version(torch)
    known = None if device is None else device.calibration
    if known is not None and known.torch == version:
        # The first product makes the workspace of its thread, so what a backward pass adds is that
        # of other threads.
        each = known.workspace_forward or known.workspace_training
        threads = round(known.workspace_training / each) if trains and each else 1
        return Workspace(each or DEFAULT_WORKSPACE, max(1, threads), each > 0, known.source)
    source = f"CublasHandlePool.cpp of torch {version[0]}.{version[1]}"
    if device is not None and device.vendor == "AMD":
        each = _INSTINCT_WORKSPACE if device.architecture == "CDNA 3" else LARGE_WORKSPACE
    else:
        major = device.capability[0] if device is not None and device.capability else 8
        since = _LARGE_SINCE.get(major)
        each = LARGE_WORKSPACE if since and version >= since else DEFAULT_WORKSPACE
    kept = version < _NOT_KEPT_SINCE or (device is not None and device.vendor == "AMD")
    return Workspace(each, 2 if trains else 1, kept, source)


def parse_version(torch: str) -> tuple[int, int]:
    """(major, minor) of a version such as "2.13", "2.13.0+cu130" or "2.13a0". Raises UsageError if
    it is none."""
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})([.+a-z]\S*)?", torch.strip())
    if match is None:
        raise UsageError(f"{torch!r} is no version of torch; write it as in 2.13.")
    return int(match[1]), int(match[2])


#: Context and modules of a process, which NVML counts and torch does not. Published, in MiB: 274
#: with modules loaded when needed against 636 with all loaded at once (pytorch pull request 86509),
#: about 300 (issue 107667), about 400 (109888), 426 on an RTX 6000 Ada with torch 2.10 and CUDA
#: 13.0 (unsloth-zoo pull request 1053). It grows with the kernels that are used.
_CONTEXT: Final = Calibrated(
    450 * MIB, 270 * MIB, 640 * MIB, "published processes, 274 to 636 MiB; measure with the driver"
)
_CONTEXTS: Final = {
    # What the driver counted for runs on an A100 beyond simulated segments: 521 to 529 MiB in seven
    # runs with LoRA or full fine-tuning, 453 MiB with 4-bit weights, in one session
    # (fms-a100_80gb_liger 102, 104 to 106, 108 to 110; 112, 116), and 1628 to 1754 MiB in another
    # (fms-a100_80gb 8, 32, 34, 56, 58), all with torch 2.4. What else was in memory in the second
    # session is unknown.
    "A100 SXM4 80GB": Calibrated(
        523 * MIB, 453 * MIB, 1754 * MIB, "two sessions on an A100 SXM4 80GB with torch 2.4"
    ),
    # The same in 36 runs each with sdpa (758 MiB) and eager attention (742 MiB) on an H200, torch
    # 2.11 with CUDA 13.0 and driver 580.159 (tests/gpu/measured); 610 MiB after the first tensor.
    # An H100 has the same chip; 450 MiB, as on any GPU, was taken for both until then.
    "Hopper": Calibrated(
        758 * MIB, 450 * MIB, 758 * MIB, "76 runs on an H200, torch 2.11 with CUDA 13.0"
    ),
    "RTX 6000 Ada": Calibrated(
        426 * MIB, 270 * MIB, 640 * MIB, "one process on an RTX 6000 Ada, torch 2.10 with CUDA 13.0"
    ),
    # The same 140.875 MiB after a training step in 69 runs on a T4, in two sessions with torch 2.10
    # (CUDA 12.8) and 2.14 (CUDA 13.0); 104.875 MiB before the first kernel (measurements that
    # fitcheck-llm 0.3.1 ships, cuda_context_mib; tests/memory/measured has 57 of them).
    "T4": Calibrated(147_718_144, 104 * MIB, 141 * MIB, "69 runs on a T4, torch 2.10 and 2.14"),
}


#: What NCCL takes for each group of GPUs that communicate, by the size of the group: buffers of its
#: channels, which neither torch nor the context counts. Measured on 4 A100 with NVLink, with an
#: all-reduce in every group: 544 MiB in groups of two, 688 MiB in larger ones (issue 964 of
#: NVIDIA/nccl). Elsewhere 110 MiB (issue 34, PCIe, NCCL 1) to 1.6 GiB (issue 864); all-to-all takes
#: several times as much (issue 1685).
_NCCL_PAIR, _NCCL_LARGER, _NCCL_LOW, _NCCL_HIGH = (n * MIB for n in (544, 688, 110, 1638))


def nccl_bytes(groups: Sequence[int]) -> Calibrated:
    """What NCCL's communicators take on a GPU that is in groups of these sizes."""
    found = sum(_NCCL_PAIR if size == 2 else _NCCL_LARGER for size in groups)
    source, count = "all-reduce on 4 A100 with NVLink, NVIDIA/nccl issue 964", len(groups)
    return Calibrated(found, _NCCL_LOW * count, _NCCL_HIGH * count, source)


def context_bytes(device: Device | None = None) -> Calibrated:
    """What the CUDA context and modules of one process take on a device."""
    if device is None:
        return _CONTEXT
    known = device.calibration
    if known is not None and known.context is not None:
        return Calibrated(known.context, known.context_low, known.context_high, known.source)
    return _CONTEXTS.get(device.name) or _CONTEXTS.get(device.architecture, _CONTEXT)


def outside_torch(device: Device | None = None, groups: Sequence[int] = ()) -> Calibrated:
    """What a process takes on a device besides torch's reserved bytes: context, modules and, if
    GPUs communicate, NCCL."""
    context, nccl = context_bytes(device), nccl_bytes(groups)
    return Calibrated(
        context.bytes + nccl.bytes,
        context.low + nccl.low,
        context.high + nccl.high,
        f"{context.source}; {nccl.source}" if groups else context.source,
    )
