"""Reductions and the layer norm kernel."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

MEAN: Final = Label("mean")
DIV: Final = Label("div")
SUM: Final = Label("sum")
LAYER_NORM: Final = Label("native_layer_norm")
LAYER_NORM_BACKWARD: Final = Label("native_layer_norm_backward")


def mean(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """`x.mean(-1, keepdim=True)`, of `elements`. Its gradient is expanded, then divided into a
    tensor of `x`'s size."""
    full = x.elements

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(full, gradient.dtype, DIV),)

    node = tape.node("mean", (x,), backward)
    return tape.output(node, tape.new(elements, x.dtype, MEAN))


def total(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """`x.sum(...)`, of `elements`. Its gradient is expanded, which is a view. On autocast's float32
    list."""
    x = tape.cast_high(x)
    full = x.elements

    def backward(gradient: Tensor) -> Gradients:
        return (tape.alias(gradient, full),)

    node = tape.node("sum", (x,), backward)
    return tape.output(node, tape.new(elements, x.dtype, SUM))


def layer_norm(
    tape: Tape, x: Tensor, weight: Tensor | None, bias: Tensor | None, size: int
) -> Tensor:
    """`F.layer_norm` over the last `size` elements: saves its input, mean and reciprocal deviation
    (float32, one per row). On autocast's float32 list."""
    bias = None if bias is None else tape.cast_high(bias)
    weight = None if weight is None else tape.cast_high(weight)
    x = tape.cast_high(x)
    elements, dtype, rows = x.elements, x.dtype, x.elements // size
    x_wanted = x.requires_grad
    weight_type = weight.dtype if weight is not None and weight.requires_grad else None
    bias_type = bias.dtype if bias is not None and bias.requires_grad else None

    def backward(gradient: Tensor) -> Gradients:
        of_x = tape.new(elements, dtype, LAYER_NORM_BACKWARD) if x_wanted else None
        of_weight = tape.new(size, weight_type, LAYER_NORM_BACKWARD) if weight_type else None
        of_bias = tape.new(size, bias_type, LAYER_NORM_BACKWARD) if bias_type else None
        return of_x, of_weight, of_bias

    node = tape.node("native_layer_norm", (x, weight, bias), backward)
    tape.save(node, x, weight, bias)
    output = tape.new(elements, dtype, LAYER_NORM)
    average = tape.new(rows, "fp32", LAYER_NORM)
    deviation = tape.new(rows, "fp32", LAYER_NORM)
    tape.save(node, average, deviation)
    return tape.output(node, output)
