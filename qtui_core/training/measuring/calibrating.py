"""Measures what a process takes on a GPU besides its tensors: the context of CUDA, the workspaces
of cuBLAS, and what the allocator reserves for one tensor."""

from __future__ import annotations

from typing import Any, Final, Protocol

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.rates import DeviceFacts

MIB: Final = 1 << 20
#: Tensors that show the three kinds of segments: of small blocks, of large ones, and of their own
#: (c10/core/AllocatorConfig.h).
PROBES: Final = (1024, 2 * MIB, 11 * MIB)


class MeasuredDevice(Protocol):
    """What the measurement does to a GPU and reads of it."""

    def process(self) -> tuple[int | None, str]:
        """Bytes of this process according to the driver, and how they were identified."""

    def allocated(self) -> int: ...

    def reserved(self) -> int: ...

    def start(self) -> None:
        """Make the context with a first tensor, and free that tensor and its segment: tensors that
        are held later would find room in it."""

    def multiply(self, *, backward: bool) -> None:
        """A product in 16 bits, and its backward pass in autograd's thread; nothing of it stays."""

    def clear_workspaces(self) -> None: ...

    def hold(self, nbytes: int) -> Any:
        """A tensor, for as long as the answer is kept."""

    def empty(self) -> None:
        """Give segments that nothing uses back to the driver."""

    def settings(self) -> dict[str, Any]:
        """Of the allocator."""


@dataclass(frozen=True)
class Found:
    """As in qtui_core.memory.devices.profile.Profile."""

    context_first: int | None
    context_products: int | None
    context_basis: str
    workspace_forward: int
    workspace_training: int
    segments: dict[str, int]
    allocator: dict[str, Any]


@dataclass(frozen=True)
class FoundOnGpu:
    """What the process that measures tells: what was found on which device; or why nothing was,
    with the exit code of that error."""

    found: Found | None = None
    facts: DeviceFacts | None = None
    error: str = ""
    code: int = 0


def calibrate(machine: MeasuredDevice) -> Found:
    """Measures in a process that has not used the GPU yet."""
    machine.start()
    first, basis = _context(machine)
    machine.multiply(backward=False)
    forward = _workspaces(machine)
    machine.multiply(backward=True)
    training = _workspaces(machine)
    machine.multiply(backward=True)  # the kernels are loaded; the workspaces are there again
    products, basis = _context(machine)
    return Found(first, products, basis, forward, training, _segments(machine), machine.settings())


def _context(machine: MeasuredDevice) -> tuple[int | None, str]:
    process, basis = machine.process()
    return (None if process is None else max(0, process - machine.reserved())), basis


def _workspaces(machine: MeasuredDevice) -> int:
    """Bytes that clearing the workspaces gives back."""
    before = machine.allocated()
    machine.clear_workspaces()
    return before - machine.allocated()


def _segments(machine: MeasuredDevice) -> dict[str, int]:
    found = {}
    for nbytes in PROBES:
        machine.clear_workspaces()
        machine.empty()
        before = machine.reserved()
        held = machine.hold(nbytes)
        found[str(nbytes)] = machine.reserved() - before
        del held
    return found
