"""Attention scores of BLOOM: a product with a bias; and BLOOM's own GELU."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

BADDBMM: Final = Label("baddbmm")
BMM: Final = Label("bmm")
MUL: Final = Label("mul")
STEP: Final = Label("bloom_gelu")


def biased_product(tape: Tape, bias: Tensor, a: Tensor, b: Tensor, elements: int) -> Tensor:
    """`bias.baddbmm(a, b, beta=..., alpha=...)` with a bias without a gradient. Gradients are
    scaled after their products. On autocast's 16-bit list."""
    b = tape.cast_low(b)
    a = tape.cast_low(a)
    bias = tape.cast_low(bias)
    a_size, b_size, dtype = a.elements, b.elements, a.dtype
    a_wanted, b_wanted = a.requires_grad, b.requires_grad

    def scaled(size: int) -> Tensor:
        product = tape.new(size, dtype, BMM)
        result = tape.new(size, dtype, MUL)
        del product
        return result

    def backward(gradient: Tensor) -> Gradients:
        of_a = scaled(a_size) if a_wanted else None
        return of_a, scaled(b_size) if b_wanted else None

    node = tape.node("baddbmm", (a, b), backward)
    tape.save(node, a if b_wanted else None, b if a_wanted else None)
    return tape.output(node, tape.new(elements, dtype, BADDBMM))


def bloom_gelu(tape: Tape, x: Tensor) -> Tensor:
    """GeLUFunction of BLOOM: several operations, but only the input is saved; each intermediate
    result is freed when the next exists.

    forward: `x * 0.5 * (1 + tanh(c * x * (1 + d * x * x)))`
    backward: `(0.5 * x * ((1 - t * t) * (c + e * x * x)) + 0.5 * (1 + t)) * gradient`, where t is
    the hyperbolic tangent above.
    """
    elements, dtype = x.elements, x.dtype

    def step() -> Tensor:
        return tape.new(elements, dtype, STEP)

    def tangent() -> Tensor:
        scaled = step()
        other = step()
        other = step()  # times x
        other = step()  # plus one
        product = step()
        del scaled, other
        result = step()
        del product
        return result

    def backward(gradient: Tensor) -> Gradients:
        tanh = tangent()
        half = step()
        square = step()
        square = step()  # one minus
        other = step()
        other = step()  # times x
        other = step()  # plus a constant
        product = step()
        del square, other
        first = step()
        del half, product
        second = step()
        second = step()  # times a half
        total = step()
        del first, second
        result = step()
        del tanh, total
        return (result,)

    node = tape.node("bloom_gelu", (x,), backward)
    half = step()
    tanh = tangent()
    raised = step()
    del tanh
    output = step()
    del half, raised
    tape.save(node, x)
    return tape.output(node, output)
