"""What is known of one GPU: memory, bandwidth, operations a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

#: Share of the total of nvidia-smi that cudaMemGetInfo gives where that was not seen: of the
#: devices where both were, it is 98.0 % (RTX 4090) to 99.6 % (H200); the lower is taken.
_ALLOCATABLE_SHARE: Final = 0.98


@dataclass(frozen=True)
class Multiprocessor:
    """On-chip memory of one multiprocessor (a compute unit of AMD). Bytes.

    Attributes:
        registers: the register file.
        l1: L1 cache, shared memory included where they are one.
        shared: the most of it that can be shared memory (LDS).

    Source: CUDA C++ Programming Guide, table of technical specifications by compute capability;
    white papers of CDNA 2 and 3.
    """

    registers: int
    l1: int
    shared: int


@dataclass(frozen=True)
class Calibration:
    """What was measured of a device where it is (`qtui calibrate`), in bytes.

    Attributes:
        made: the day, as 2026-11-21.
        torch: (major, minor) of the version it was measured with.
        context: what a process takes besides what torch reserves, after a step; context_low and
            context_high, the range of all steps that were measured. None where the driver does not
            tell what a process has.
        workspace_forward: of cuBLAS that stay allocated after products of the program's thread
            alone; workspace_training, after a backward pass too.
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
        """How it is told beside what it was measured for."""
        return f"calibrated: measured here on {self.made}"


@dataclass(frozen=True)
class Device:
    """One GPU, as torch sees it: half of an MI250X is one.

    Attributes:
        name: without the vendor.
        vendor: "NVIDIA" or "AMD".
        architecture: e.g. "Hopper".
        capability: CUDA's compute capability (major, minor); None for AMD.
        multiprocessors: how many; `multiprocessor`, the memory in one.
        boost_mhz: the highest clock the vendor states.
        memory_gb: as it is sold, in whatever GB the vendor means.
        total: bytes that nvidia-smi (NVML) reports with the ECC setting it is shipped with; None
            where no report was found.
        allocatable: bytes in all that cudaMemGetInfo reports, context included; differs by some
            hundred MiB between drivers. None where no report was found.
        bandwidth: of its memory, bytes a second.
        l2: bytes of L2 cache (and of AMD's, per device, without the cache behind it).
        rates: the most operations a second by type of the operands, a multiplication and an
            addition being two, of dense matrices, accumulated in fp32 (int32 for integers).
            fp64 and fp32 are those of matrix units where those take them, else of the vector
            units. A type it has no units for is not among them.
        source: the documents of the vendor that state them.
        note: what is unusual.
        aliases: other names.
        calibration: what was measured of it here; it is taken before what is known of all.
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
        """Bytes that processes can have together, their contexts included."""
        if self.allocatable is not None:
            return self.allocatable
        if self.total is not None:
            return int(self.total * _ALLOCATABLE_SHARE)
        return int(self.memory_gb * 10**9 * _ALLOCATABLE_SHARE)

    @property
    def capacity_basis(self) -> str:
        """ "reported" by a driver, "derived" from the total it reports, or "nominal"."""
        if self.allocatable is not None:
            return "reported"
        return "nominal" if self.total is None else "derived"

    def rate(self, dtype: str) -> float:
        """Operations a second on operands of a type (fp64, fp32, tf32, fp16, bf16, fp8, fp4,
        int8, int4).

        Raises UsageError where the device has no units for it.
        """
        if dtype not in self.rates:
            raise UsageError(
                f"The {self.name} does not compute in {dtype}; it does in {', '.join(self.rates)}."
            )
        return self.rates[dtype]
