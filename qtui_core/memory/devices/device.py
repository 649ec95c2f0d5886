"""What is known of one GPU: memory, bandwidth, operations a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

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
    """One GPU as torch sees it: half of an MI250X is one.

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
    vendor: str
    architecture: str
    capability: tuple[int, int] | None
    multiprocessors: int
    multiprocessor: Multiprocessor
    boost_mhz: int
    memory_gb: int
    total: int | None
    allocatable: int | None
    bandwidth: int
    l2: int
    rates: Mapping[str, float]
    source: str
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
