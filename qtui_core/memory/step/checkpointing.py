"""Gradient checkpointing without reentrance (torch.utils.checkpoint, use_reentrant=False).

The forward pass of a region runs as ever, but what its operations save is thrown away and only
counted. When the backward pass first asks for any of it, the region runs again from its inputs and
hands the tensors over in the same order; with the last one it stops, before the kernel of the
operation that saves it where that is an input (early stop). Each recomputed tensor is let go as its
operation takes it; the inputs live until the last operation that saved something has run.
"""

from __future__ import annotations

from collections.abc import Callable

from qtui_core.memory.tape.tape import Buffer, Region, StopRecompute, Tape, Tensor


def checkpoint(tape: Tape, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)`, of which only the inputs are kept for the backward pass.

    `function` must not hold tensors that should be freed before: what it closes over lives as
    long as the region. Without gradients it is an ordinary call.
    """
    if not tape.grad or tape.recomputing is not None:
        return function(*inputs)
    outer = tape.region
    tape.region = Region(function, inputs, tape.autocast, tape.layer)
    try:
        return function(*inputs)
    finally:
        tape.region = outer


def count_unheld(tape: Tape, number: int) -> None:
    """For operations in a region whose results nobody keeps, as of a metric: what they save is
    gone with them. It is still among what the region counts, so that recomputing does not stop
    before it; but it is not kept then."""
    region = tape.recomputing
    if region is None:
        if tape.region is not None:
            tape.region.saved += number
        return
    assert region.recomputed is not None
    for _ in range(number):
        region.recomputed.append(None)
        if len(region.recomputed) == region.saved:
            raise StopRecompute


def recompute(tape: Tape, region: Region) -> None:
    """Runs a region again, until everything that its operations saved stands in `recomputed`.

    Autocast is entered anew, with an empty cache of casts that is emptied again after.
    """
    region.recomputed = []
    before = tape.recomputing, tape.region, tape.autocast, tape.casts, tape.grad, tape.path
    tape.recomputing, tape.region, tape.grad, tape.path = region, None, True, ""
    tape.autocast, tape.casts = region.autocast, {}
    try:
        region.function(*region.inputs)
    except StopRecompute:
        pass
    finally:
        (tape.recomputing, tape.region, tape.autocast, tape.casts, tape.grad, tape.path) = before


def take(tape: Tape, region: Region, numbers: list[int]) -> list[Buffer | None]:
    """What a node of a region saved, let go by the region; recomputed on the first call."""
    if region.recomputed is None:
        recompute(tape, region)
    recomputed = region.recomputed
    assert recomputed is not None
    taken = [recomputed[number] for number in numbers]
    for number in numbers:
        recomputed[number] = None
    return taken
