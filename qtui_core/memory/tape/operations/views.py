"""Parts of tensors, concatenations, and writing into a part in place."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

SLICE_BACKWARD: Final = Label("slice_backward")
SPLIT_BACKWARD: Final = Label("cat")
CAT: Final = Label("cat")
EXPAND: Final = Label("clone")
SUM: Final = Label("sum")
COPY: Final = Label("clone")
WHOLE: Final = Label("new_empty_strided")
ZEROS: Final = Label("zeros_like")


def part(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """`x[..., a:b]`: a view of `elements` elements. Its gradient has `x`'s size, with zeros
    elsewhere (slice_backward)."""
    full = x.elements

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(full, gradient.dtype, SLICE_BACKWARD),)

    node = tape.node("slice", (x,), backward)
    return tape.output(node, _view(x, elements))


def viewed(tape: Tape, x: Tensor) -> Tensor:
    """`x.view(...)`, or `x.reshape(...)` of a contiguous tensor. Its gradient is a view too, to
    which nothing is added in place."""

    def backward(gradient: Tensor) -> Gradients:
        return (tape.alias(gradient),)

    node = tape.node("view", (x,), backward)
    return tape.output(node, _view(x, x.elements))


def split(tape: Tape, x: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """`x.split(...)`, `x.chunk(...)`: views of `sizes` elements. Their gradients are concatenated
    to that of `x`."""
    full = x.elements

    def backward(gradients: list[Tensor | None]) -> Gradients:
        dtype = next(g.dtype for g in gradients if g is not None)
        return (tape.new(full, dtype, SPLIT_BACKWARD),)

    node = tape.node("split", (x,), backward, outputs=len(sizes))
    return tuple(
        tape.output(node, _view(x, elements), index) for index, elements in enumerate(sizes)
    )


def cat(tape: Tape, *parts: Tensor) -> Tensor:
    """`torch.cat`. The gradients of the parts are views of the whole gradient."""
    sizes = tuple(x.elements for x in parts)

    def backward(gradient: Tensor) -> Gradients:
        return tuple(_view(gradient, elements) for elements in sizes)

    node = tape.node("cat", parts, backward)
    return tape.output(node, tape.new(sum(sizes), parts[0].dtype, CAT))


def repeat(tape: Tape, x: Tensor, times: int) -> Tensor:
    """`repeat_kv`: expanded, then copied by the reshape; its gradient is summed. With `times` 1,
    `x` itself."""
    if times == 1:
        return x
    elements, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(elements, dtype, SUM),)

    node = tape.node("expand", (x,), backward)
    return tape.output(node, tape.new(elements * times, dtype, EXPAND))


def transposed(tape: Tape, x: Tensor) -> Tensor:
    """`x.view(...).transpose(1, 2)`: a view of all of `x`. Its gradient arrives in another memory
    layout, as kernels write heads first and concatenations too, and must be copied to be viewed as
    that of `x`."""

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(gradient.elements, gradient.dtype, COPY),)

    node = tape.node("transpose", (x,), backward)
    return tape.output(node, _view(x, x.elements))


def turned(tape: Tape, matrix: Tensor, *, copied: bool = False) -> Tensor:
    """`matrix.T` of a parameter. Its gradient is a view. If its layout differs from the
    parameter's, it is `copied` to become the parameter's gradient (clone_obey_contract in
    accumulate_grad.h), unless there is one already to which it is added."""

    def backward(gradient: Tensor) -> Gradients:
        if not copied or matrix.grad is not None:
            return (tape.alias(gradient),)
        return (tape.new(gradient.elements, gradient.dtype, COPY),)

    node = tape.node("t", (matrix,), backward)
    return tape.output(node, _view(matrix, matrix.elements))


def expand(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """`x.expand(...)` to `elements`, a view. Its gradient is summed."""
    given = x.elements

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(given, gradient.dtype, SUM),)

    node = tape.node("expand", (x,), backward)
    return tape.output(node, _view(x, elements))


def contiguous(tape: Tape, x: Tensor) -> Tensor:
    """`x.contiguous()` of a transposed tensor: a copy."""
    node = tape.node("clone", (x,), lambda gradient: (gradient,))
    return tape.output(node, tape.new(x.elements, x.dtype, COPY))


def _view(x: Tensor, elements: int) -> Tensor:
    return Tensor(elements, x.dtype, x.buffer, False, True)


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
        result = tape.new(full, gradient.dtype, WHOLE)
        of_source = tape.new(elements, gradient.dtype, COPY)
        if not base_wanted:
            return None, of_source
        _overwritten = tape.new(elements, gradient.dtype, ZEROS)
        return result, of_source

    node = tape.node("copy_", (base, source), backward)
    return tape.output(node, Tensor(full, base.dtype, base.buffer))
