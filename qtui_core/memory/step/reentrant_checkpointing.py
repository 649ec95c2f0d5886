"""Reentrant gradient checkpointing (torch.utils.checkpoint, use_reentrant=True), the default of the
Trainer in transformers 4.

A region runs without gradients and keeps only its input. In the backward pass it runs again, to its
end, from that input detached from the graph; then a backward pass of its own runs through it, while
its output is held. Unlike the non-reentrant kind it does not stop early, and nothing is released
before its node has run.
"""

from __future__ import annotations

from collections.abc import Callable

from qtui_core.memory.tape.autograd import propagate
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Gradients, Tensor


def checkpoint_reentrant(tape: Tape, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function(x)`, of which only `x` is kept for the backward pass (CheckpointFunction)."""
    if not tape.grad:
        return function(x)
    elements, dtype, autocast = x.elements, x.dtype, tape.autocast

    def backward(gradient: Tensor) -> Gradients:
        leaf = Tensor(elements, dtype, tape.held[0], requires_grad=True)
        with tape.again(autocast):
            output = function(leaf)
        assert output.node is not None
        propagate(tape, output.node, gradient)
        return (leaf.grad,)

    node = tape.node("CheckpointFunction", (x,), backward)
    tape.save(node, x)
    before, tape.grad = tape.grad, False
    result = function(x)
    tape.grad = before
    return tape.output(node, result)
