"""Operations that send tokens to experts and collect the results.

Gradients of look-ups are added to zeros in place (index_backward and
value_selecting_reduction_backward in torch/csrc/autograd/FunctionsManual.cpp).
"""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.tape import TO_COPY, Gradients, Tape, Tensor

TOP_K: Final = Label("topk")
ZEROS: Final = Label("new_zeros")
INDEX: Final = Label("index")
GROUPED: Final = Label("_grouped_mm")
SUM: Final = Label("sum")
REPEAT: Final = Label("repeat")
CLONE: Final = Label("clone")
DIV: Final = Label("div")
NEG: Final = Label("neg")
MUL: Final = Label("mul")
FILL: Final = Label("masked_fill")


def top_k(tape: Tape, x: Tensor, elements: int) -> tuple[Tensor, Tensor]:
    """`torch.topk`: the values, in `x`'s dtype, and their int64 indices, both of `elements`."""
    full, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(full, dtype, ZEROS),)

    node = tape.node("topk", (x,), backward)
    values = tape.new(elements, dtype, TOP_K)
    indices = tape.new(elements, "int64", TOP_K)
    tape.save(node, indices)
    return tape.output(node, values), indices


def lookup(tape: Tape, x: Tensor, indices: Tensor, elements: int) -> Tensor:
    """`x[indices]`, of `elements`."""
    full, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(full, dtype, ZEROS),)

    node = tape.node("index", (x,), backward)
    tape.save(node, indices)
    return tape.output(node, tape.new(elements, dtype, INDEX))


def grouped_product(
    tape: Tape, x: Tensor, weight: Tensor, offsets: Tensor, outputs: int, inputs: int
) -> Tensor:
    """`torch.nn.functional.grouped_mm` of rows sorted by expert: `[rows, inputs]` to `[rows,
    outputs]`, in the weight's dtype, to which `x` is cast. Autocast does not change it."""
    x = tape.to(x, weight.dtype)
    dtype = x.dtype
    x_size, weight_size = x.elements, weight.elements
    x_wanted, weight_wanted = x.requires_grad, weight.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        of_weight = tape.new(weight_size, dtype, GROUPED, view=True) if weight_wanted else None
        of_x = tape.new(x_size, dtype, GROUPED) if x_wanted else None
        return of_x, of_weight

    node = tape.node("_grouped_mm", (x, weight), backward)
    tape.save(node, x if weight_wanted else None, weight if x_wanted else None, offsets)
    return tape.output(node, tape.new(x_size // inputs * outputs, dtype, GROUPED))


def summed(tape: Tape, x: Tensor, elements: int, *, viewed: bool = False) -> Tensor:
    """`x.sum(dim)`, of `elements`, or `x.view(...).sum(dim)` if `viewed`; autocast makes the result
    float32. The gradient is expanded, which is a view, and copied for the cast back or for the view
    without the added dimension."""
    full, given = x.elements, x.dtype
    dtype = given if tape.autocast is None else "fp32"

    def backward(gradient: Tensor) -> Gradients:
        if gradient.dtype != given:
            return (tape.new(full, given, TO_COPY),)
        return (tape.new(full, given, CLONE) if viewed else tape.alias(gradient, full),)

    node = tape.node("sum", (x,), backward)
    return tape.output(node, tape.new(elements, dtype, SUM))


def repeat_rows(tape: Tape, x: Tensor, times: int) -> Tensor:
    """`x.repeat(times, 1)`; its gradient is summed."""
    elements, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(elements, gradient.dtype, SUM),)

    node = tape.node("repeat", (x,), backward)
    return tape.output(node, tape.new(elements * times, dtype, REPEAT))


def divide_in_place(tape: Tape, x: Tensor, divisor: Tensor) -> Tensor:
    """`x /= divisor`, with the divisor broadcast. The old `x` is copied for the divisor's gradient,
    `-gradient * ((x / divisor) / divisor)`, which is made before that of `x`."""
    elements, dtype = x.elements, x.dtype

    def of_divisor() -> Tensor:
        once = tape.new(elements, dtype, DIV)
        twice = tape.new(elements, dtype, DIV)
        negative = tape.new(elements, dtype, NEG)
        result = tape.new(elements, dtype, MUL)
        del negative, twice, once
        return result

    def backward(gradient: Tensor) -> Gradients:
        second = of_divisor()
        return tape.new(elements, dtype, DIV), second

    node = tape.node("div", (x, divisor), backward)
    if node is not None:
        original = tape.new(elements, dtype, CLONE)
        tape.save(node, original, divisor)
    return tape.output(node, Tensor(elements, dtype, x.buffer))


def gather(tape: Tape, x: Tensor, indices: Tensor) -> Tensor:
    """`x.gather(1, indices)`. Its gradient is scattered into zeros."""
    full, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(full, dtype, ZEROS),)

    node = tape.node("gather", (x,), backward)
    tape.save(node, indices)
    return tape.output(node, tape.new(indices.elements, dtype, INDEX))


def masked_fill(tape: Tape, x: Tensor, mask: Tensor) -> Tensor:
    """`x.masked_fill(mask, number)`."""
    elements, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(elements, dtype, FILL),)

    node = tape.node("masked_fill", (x,), backward)
    tape.save(node, mask)
    return tape.output(node, tape.new(elements, dtype, FILL))
