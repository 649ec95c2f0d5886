"""Non-reentrant gradient checkpointing (torch.utils.checkpoint, use_reentrant=False).

The forward pass of a region runs as usual, but its saved tensors are dropped and only counted. When
the backward pass first needs one of them, the region runs again from its inputs and stores the
saved tensors in the same order. With the last one it stops (early stop): before the kernel of the
operation, if what it saves is an input. Each recomputed tensor is released as its operation takes
it; the inputs live until the last operation that saved something has run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Buffer, Region, StopRecompute, Tensor


def checkpoint(tape: Tape, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)`, of which only the inputs are kept for the backward pass.

    `function` must not hold tensors that should be freed earlier: its closure lives as long as the
    region. Without gradients it is an ordinary call.
    """
    if not tape.grad or tape.recomputing is not None:
        return function(*inputs)
    outer = tape.region
    tape.region = Region(function, inputs, tape.autocast, tape.layer)
    try:
        return function(*inputs)
    finally:
        tape.region = outer


def recompute(tape: Tape, region: Region) -> None:
    """Runs a region again, until everything that its operations saved is in `recomputed`."""
    region.recomputed = []
    with tape.again(region.autocast, region), suppress(StopRecompute):
        region.function(*region.inputs)


def take(tape: Tape, region: Region, numbers: list[int]) -> list[Buffer | None]:
    """What a node of a region saved, taken out of the region; recomputed on the first call."""
    if region.recomputed is None:
        recompute(tape, region)
    recomputed = region.recomputed
    assert recomputed is not None
    taken = [recomputed[number] for number in numbers]
    for number in numbers:
        recomputed[number] = None
    return taken
