"""What a calibration measures: the GPU memory that a process takes besides its tensors, which are
the CUDA context, the workspaces of cuBLAS, and the segment that the allocator reserves for one
tensor. Standard library only."""

from __future__ import annotations

from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.roofline.rates import DeviceFacts

MIB: Final = 1 << 20
#: Sizes of tensors for the three kinds of segments: of small blocks, of large blocks, and of a
#: single tensor (c10/core/AllocatorConfig.h).
PROBES: Final = (1024, 2 * MIB, 11 * MIB)


@dataclass(frozen=True)
class Found:
    """The measured figures, with the fields of qtui_core.memory.devices.profile.Profile."""

    context_first: int | None
    context_products: int | None
    context_basis: str
    workspace_forward: int
    workspace_training: int
    segments: dict[str, int]
    allocator: dict[str, Any]


@dataclass(frozen=True)
class GpuMeasurement:
    """The report of the measuring process: what it found and on which device, or the error that
    prevented it, with its exit code."""

    found: Found | None = None
    facts: DeviceFacts | None = None
    error: str = ""
    code: int = 0
