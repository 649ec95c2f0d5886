"""What GPUs that share layers send each other, as in torch's DTensor."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

SUM: Final = Label("all_reduce", Component.TEMPORARIES)
PARTS: Final = Label("all_gather_into_tensor", Component.TEMPORARIES)
SHARD: Final = Label("clone")


def summed(tape: Tape, x: Tensor) -> Tensor:
    """The sum of the partial results of all GPUs, in a new tensor (funcol.all_reduce). Each part
    gets the whole gradient."""
    node = tape.node("all_reduce", (x,), lambda gradient: (gradient,))
    return tape.output(node, tape.new(x.elements, x.dtype, SUM))


def gathered(tape: Tape, x: Tensor, elements: int, label: Label) -> Tensor:
    """The columns of all GPUs, `elements` together: they arrive one GPU after the other, and are
    then concatenated (funcol.all_gather_tensor). Each GPU copies its columns of the gradient."""
    own, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(own, dtype, SHARD),)

    node = tape.node("all_gather_into_tensor", (x,), backward)
    _parts = tape.new(elements, dtype, PARTS)
    return tape.output(node, tape.new(elements, dtype, label))
