"""Elementwise operations. Formulas of gradients: tools/autograd/derivatives.yaml and
torch/csrc/autograd/FunctionsManual.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor, wider

ADD: Final = Label("add")
MUL: Final = Label("mul")
NEG: Final = Label("neg")
CLAMP: Final = Label("clamp_backward")
SUB: Final = Label("sub")
POW: Final = Label("pow")
RSQRT: Final = Label("rsqrt")
CLONE: Final = Label("clone")
DROPOUT: Final = Label("native_dropout")
DROPOUT_BACKWARD: Final = Label("native_dropout_backward")
MASK: Final = Label("native_dropout mask")


def add(tape: Tape, a: Tensor, b: Tensor, label: Label = ADD) -> Tensor:
    """`a + b`; the smaller one is broadcast."""
    node = tape.node("add", (a, b), _pass_to_both)
    return tape.output(node, tape.new(max(a.elements, b.elements), wider(a.dtype, b.dtype), label))


def add_constant(tape: Tape, x: Tensor) -> Tensor:
    """`x + c` for a number, or for a tensor of at most `x`'s size without a gradient."""
    node = tape.node("add", (x,), _pass)
    return tape.output(node, tape.new(x.elements, x.dtype, ADD))


def mul(tape: Tape, a: Tensor, b: Tensor, label: Label = MUL) -> Tensor:
    """`a * b`; the smaller one is broadcast. Both gradients are made in full before any is
    reduced."""
    elements = max(a.elements, b.elements)
    a_type, b_type = a.dtype, b.dtype
    a_wanted, b_wanted = a.requires_grad, b.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        of_b = tape.new(elements, wider(gradient.dtype, a_type), MUL) if b_wanted else None
        of_a = tape.new(elements, wider(gradient.dtype, b_type), MUL) if a_wanted else None
        return of_a, of_b

    node = tape.node("mul", (a, b), backward)
    tape.save(node, a if b_wanted else None, b if a_wanted else None)
    return tape.output(node, tape.new(elements, wider(a_type, b_type), label))


def subtract(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """`a - b`; the second is broadcast, and its gradient is negated in full before it is
    reduced."""
    b_wanted = b.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        negative = tape.new(gradient.elements, gradient.dtype, NEG) if b_wanted else None
        return gradient, negative

    node = tape.node("sub", (a, b), backward)
    return tape.output(node, tape.new(a.elements, wider(a.dtype, b.dtype), SUB))


def mul_complex(tape: Tape, x: Tensor, table: Tensor) -> Tensor:
    """`x * table` of complex numbers, each counted as two float32 elements. The gradient needs a
    copy of the table's conjugate."""
    elements, numbers = x.elements, table.elements

    def backward(gradient: Tensor) -> Gradients:
        _conjugate = tape.new(numbers, "fp32", CLONE)
        return (tape.new(elements, "fp32", MUL),)

    node = tape.node("mul", (x,), backward)
    tape.save(node, table)
    return tape.output(node, tape.new(elements, "fp32", MUL))


def scale(tape: Tape, x: Tensor) -> Tensor:
    """`x * c` or `x / c` for a Python number. The number is a CPU tensor, which the hooks of a
    checkpoint do not see."""

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(gradient.elements, gradient.dtype, MUL),)

    node = tape.node("mul", (x,), backward)
    return tape.output(node, tape.new(x.elements, x.dtype, MUL))


def clamp_in_place(tape: Tape, x: Tensor) -> Tensor:
    """`x.clamp_(min, max)`. The old `x` is copied for the gradient, which is masked by it."""
    elements, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        zero = tape.new(1, dtype, CLAMP)
        low = tape.new(elements, "bool", CLAMP)
        high = tape.new(elements, "bool", CLAMP)
        result = tape.new(elements, dtype, CLAMP)
        del low, high, zero
        return (result,)

    node = tape.node("clamp", (x,), backward)
    if node is not None:
        tape.save(node, tape.new(elements, dtype, CLONE))
    return tape.output(node, Tensor(elements, dtype, x.buffer))


def neg(tape: Tape, x: Tensor) -> Tensor:
    """`-x`."""

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(gradient.elements, gradient.dtype, NEG),)

    node = tape.node("neg", (x,), backward)
    return tape.output(node, tape.new(x.elements, x.dtype, NEG))


def power(tape: Tape, x: Tensor) -> Tensor:
    """`x.pow(c)`; its gradient is `gradient * (c * x.pow(c - 1))`. On autocast's float32 list."""
    x = tape.cast_high(x)
    elements, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        _power = tape.new(elements, dtype, POW)
        _scaled = tape.new(elements, dtype, MUL)
        return (tape.new(elements, dtype, MUL),)

    node = tape.node("pow", (x,), backward)
    tape.save(node, x)
    return tape.output(node, tape.new(elements, dtype, POW))


def rsqrt(tape: Tape, x: Tensor) -> Tensor:
    """`torch.rsqrt(x)`; its gradient is `-0.5 * gradient * result.pow(3)`. On autocast's float32
    list."""
    x = tape.cast_high(x)
    elements, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        _scaled = tape.new(elements, dtype, MUL)
        _cube = tape.new(elements, dtype, POW)
        return (tape.new(elements, dtype, MUL),)

    node = tape.node("rsqrt", (x,), backward)
    output = tape.new(elements, dtype, RSQRT)
    tape.save(node, output)
    return tape.output(node, output)


def clone(tape: Tape, x: Tensor) -> Tensor:
    """`x.clone()`, `x.contiguous()` of what is not contiguous, a reshape that must copy."""
    node = tape.node("clone", (x,), _pass)
    return tape.output(node, tape.new(x.elements, x.dtype, CLONE))


def from_input(tape: Tape, name: str, x: Tensor) -> Tensor:
    """A function whose gradient one kernel computes from its saved input: silu, gelu..."""
    elements, dtype = x.elements, x.dtype
    node = tape.node(name, (x,), _one(tape, elements, dtype, Label(f"{name}_backward")))
    tape.save(node, x)
    return tape.output(node, tape.new(elements, dtype, Label(name)))


def from_output(tape: Tape, name: str, x: Tensor) -> Tensor:
    """A function whose gradient one kernel computes from its saved output: tanh, sigmoid, relu."""
    elements, dtype = x.elements, x.dtype
    node = tape.node(name, (x,), _one(tape, elements, dtype, Label(f"{name}_backward")))
    output = tape.new(elements, dtype, Label(name))
    tape.save(node, output)
    return tape.output(node, output)


def dropout(tape: Tape, x: Tensor, probability: float) -> Tensor:
    """`F.dropout` on CUDA: the fused kernel, which saves a mask of one byte per element."""
    if probability == 0.0 or not tape.training:
        return x
    elements, dtype = x.elements, x.dtype
    node = tape.node("native_dropout", (x,), _one(tape, elements, dtype, DROPOUT_BACKWARD))
    output = tape.new(elements, dtype, DROPOUT)
    mask = tape.new(elements, "bool", MASK)
    tape.save(node, mask)
    return tape.output(node, output)


def _one(tape: Tape, elements: int, dtype: str, label: Label) -> Callable[[Tensor], Gradients]:
    """A backward function that makes one tensor of known size."""
    return lambda gradient: (tape.new(elements, dtype, label),)


def _pass(gradient: Tensor) -> Gradients:
    return (gradient,)


def _pass_to_both(gradient: Tensor) -> Gradients:
    return gradient, gradient
