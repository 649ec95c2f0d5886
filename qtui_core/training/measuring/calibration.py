"""Measures the GPU memory that a process takes besides its tensors: the CUDA context, the
workspaces of cuBLAS, and the segment that the allocator reserves for one tensor."""

from __future__ import annotations

from typing import Any, Final, Protocol

from qtui_core.dataclass import dataclass
from qtui_core.roofline.rates import DeviceFacts

MIB: Final = 1 << 20
#: Sizes of tensors for the three kinds of segments: of small blocks, of large blocks, and of a
#: single tensor (c10/core/AllocatorConfig.h).
PROBES: Final = (1024, 2 * MIB, 11 * MIB)


class MeasuredDevice(Protocol):
    """What `calibrate` does on a GPU and reads from it: bytes."""

    def process(self) -> tuple[int | None, str]:
        """The bytes of this process according to the driver, and how they were identified."""

    def allocated(self) -> int: ...
    def reserved(self) -> int: ...
    def start(self) -> None:
        """Creates the context with a first tensor and frees that."""

    def multiply(self, *, backward: bool) -> None:
        """A 16-bit product, with `backward` also its backward pass in autograd's thread. Its
        tensors are freed."""

    def clear_workspaces(self) -> None: ...
    def hold(self, nbytes: int) -> Any:
        """A tensor of that many bytes, which lives as long as the returned object."""

    def empty(self) -> None:
        """Returns unused segments to the driver."""

    def settings(self) -> dict[str, Any]:
        """The settings of the allocator."""


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


def calibrate(machine: MeasuredDevice) -> Found:
    """Measures in a process that has not used the GPU before."""

    def context() -> tuple[int | None, str]:
        process, basis = machine.process()
        return (None if process is None else max(0, process - machine.reserved())), basis

    def workspaces() -> int:
        """The bytes that clearing the workspaces frees."""
        before = machine.allocated()
        machine.clear_workspaces()
        return before - machine.allocated()

    machine.start()
    first, _ = context()
    machine.multiply(backward=False)
    forward = workspaces()
    machine.multiply(backward=True)
    training = workspaces()
    machine.multiply(backward=True)  # the kernels stay loaded; the workspaces are allocated again
    products, basis = context()
    segments = {}
    for nbytes in PROBES:
        machine.clear_workspaces()
        machine.empty()
        before = machine.reserved()
        held = machine.hold(nbytes)
        segments[str(nbytes)] = machine.reserved() - before
        del held
    return Found(first, products, basis, forward, training, segments, machine.settings())
