"""Writing into a part of a tensor in place, with its autograd history."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

COPY: Final = Label("new_empty_strided")
CLONE: Final = Label("clone")
ZEROS: Final = Label("zeros_like")


def write(tape: Tape, base: Tensor, source: Tensor, elements: int) -> Tensor:
    """`base[..., a:b].copy_(source)`, a part of `elements`, to which `source` is broadcast. Returns
    the base with its new history.

    Its backward function copies the whole gradient, clones the source's part, and makes zeros for
    the overwritten part of the base, if the base had a history (CopySlices in
    torch/csrc/autograd/functions/tensor.cpp).
    """
    full = base.elements
    base_wanted = base.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        result = tape.new(full, gradient.dtype, COPY)
        of_source = tape.new(elements, gradient.dtype, CLONE)
        if not base_wanted:
            return None, of_source
        _overwritten = tape.new(elements, gradient.dtype, ZEROS)
        return result, of_source

    node = tape.node("copy_", (base, source), backward)
    return tape.output(node, Tensor(full, base.dtype, base.buffer))
