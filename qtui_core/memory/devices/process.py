"""What leads from the bytes that torch allocates to those of the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qtui_core.memory.devices.device import Device
from qtui_core.memory.devices.workspaces import context_bytes, nccl_bytes
from qtui_core.memory.formulas.terms import Term
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Recording

#: The term of what the allocator keeps.
CACHED: Final = "kept by the allocator"
#: The term of states that the driver may move to the host.
PAGED: Final = "paged optimizer states"
#: The term of what only the driver counts.
CONTEXT: Final = "context and modules of CUDA"

#: The term of what NCCL takes where GPUs talk to each other.
NCCL: Final = "communicators of NCCL"


def beyond_allocated(
    recording: Recording,
    plan: RunPlan,
    device: Device | None,
    allocated: int,
    reserved: int | None,
) -> Iterator[Term]:
    """What comes on top of the peak of allocated bytes of a recording; `reserved` are those that
    last."""
    if reserved is not None:
        yield Term(
            CACHED,
            reserved - allocated,
            "reserved - allocated, each at its peak",
            "derived",
            "c10/cuda/CUDACachingAllocator.cpp, replayed over the run",
            numbers=f"{reserved:,} - {allocated:,}",
        )
    if plan.pages:
        paged = recording.paged_bytes
        yield Term(
            PAGED,
            paged,
            "cudaMallocManaged; on the GPU as long as there is room",
            "exact",
            "get_state_buffer of bitsandbytes",
            numbers=f"{paged:,}",
        )
    context = context_bytes(device)
    yield Term(
        CONTEXT,
        context.bytes,
        f"measured, {context.low:,} to {context.high:,}",
        "calibrated",
        context.source,
        numbers=f"{context.bytes:,}",
    )
    if plan.groups:
        nccl = nccl_bytes(plan.groups)
        yield Term(
            NCCL,
            nccl.bytes,
            f"measured, {nccl.low:,} to {nccl.high:,} for {len(plan.groups)} "
            f"group{'s' if len(plan.groups) > 1 else ''} of GPUs",
            "calibrated",
            nccl.source,
            numbers=f"{nccl.bytes:,}",
        )


__all__ = ["CACHED", "CONTEXT", "NCCL", "PAGED", "beyond_allocated"]
