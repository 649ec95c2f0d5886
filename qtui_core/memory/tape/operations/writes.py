"""Writing into a part of a tensor in place, as autograd sees it."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

COPY: Final = Label("new_empty_strided")
CLONE: Final = Label("clone")
ZEROS: Final = Label("zeros_like")


def write(tape: Tape, base: Tensor, source: Tensor, elements: int) -> Tensor:
    """`base[..., a:b].copy_(source)`, a part of `elements`, over which `source` is broadcast: the
    base with its new history.

    Its backward function copies the whole gradient, clones the part that is the source's, and
    makes zeros for the part of the base that was overwritten, where the base had a history
    (CopySlices in torch/csrc/autograd/functions/tensor.cpp).
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
