"""Matrix products."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor, wider

MM: Final = Label("mm")
BMM: Final = Label("bmm")


def linear(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    inputs: int,
    outputs: int,
    label: Label = MM,
    *,
    transposed: bool = False,
) -> Tensor:
    """`F.linear(x, weight, bias)`, or `torch.addmm(bias, x, weight)` if the weight is stored
    `transposed` (Conv1D): `[tokens, inputs]` to `[tokens, outputs]`. On autocast's 16-bit list,
    which casts the last argument first.

    The input is saved only if the weight requires a gradient, the weight only if the input does.
    Both gradients are views, as tensors have three dimensions and weights are transposed.
    """
    if bias is not None and not transposed:
        bias = tape.cast_low(bias)
    weight = tape.cast_low(weight)
    x = tape.cast_low(x)
    if bias is not None and transposed:
        bias = tape.cast_low(bias)
    tokens = x.elements // inputs
    x_wanted, weight_wanted = x.requires_grad, weight.requires_grad
    flat = x.flat
    # Generated code computes gradients in the order of the arguments' names: (mat1, mat2, self) of
    # addmm, (mat2, self) of mm.
    first = bias is not None

    def backward(gradient: Tensor) -> Gradients:
        dtype = gradient.dtype
        if first:
            of_x = tape.new(tokens * inputs, dtype, MM, view=not flat) if x_wanted else None
        of_weight = tape.new(inputs * outputs, dtype, MM, view=True) if weight_wanted else None
        if not first:
            of_x = tape.new(tokens * inputs, dtype, MM, view=not flat) if x_wanted else None
        return of_x, of_weight, gradient  # the engine sums that of the bias

    node = tape.node("mm" if bias is None else "addmm", (x, weight, bias), backward)
    tape.save(node, x if weight_wanted else None, weight if x_wanted else None)
    return tape.output(node, tape.new(tokens * outputs, wider(x.dtype, weight.dtype), label))


def bmm(tape: Tape, a: Tensor, b: Tensor, elements: int) -> Tensor:
    """`torch.matmul` of batches of matrices, with a result of `elements`. On autocast's 16-bit
    list."""
    b = tape.cast_low(b)
    a = tape.cast_low(a)
    a_elements, b_elements = a.elements, b.elements
    a_wanted, b_wanted = a.requires_grad, b.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        dtype = gradient.dtype
        of_b = tape.new(b_elements, dtype, BMM, view=True) if b_wanted else None
        of_a = tape.new(a_elements, dtype, BMM, view=True) if a_wanted else None
        return of_a, of_b

    node = tape.node("bmm", (a, b), backward)
    tape.save(node, a if b_wanted else None, b if a_wanted else None)
    return tape.output(node, tape.new(elements, wider(a.dtype, b.dtype), BMM))
