"""Activation functions by their names in config.json (transformers/activations.py, ACT2CLS)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.operations.pointwise import (
    add,
    add_constant,
    from_input,
    from_output,
    mul,
    power,
    scale,
)
from qtui_core.memory.tape import Tape, Tensor


def activate(tape: Tape, name: str, x: Tensor) -> Tensor:
    """The activation function `name` of `x`."""
    return ACTIVATIONS[name](tape, x)


def gelu_new(tape: Tape, x: Tensor) -> Tensor:
    """`0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * pow(x, 3))))`, an operation at a time."""
    half = scale(tape, x)
    inner = scale(tape, add(tape, x, scale(tape, power(tape, x))))
    return mul(tape, half, add_constant(tape, from_output(tape, "tanh", inner)))


def quick_gelu(tape: Tape, x: Tensor) -> Tensor:
    """`x * sigmoid(1.702 * x)`."""
    return mul(tape, x, from_output(tape, "sigmoid", scale(tape, x)))


def _kernel(name: str) -> Callable[[Tape, Tensor], Tensor]:
    """A function that is one kernel, which saves its input."""
    return lambda tape, x: from_input(tape, name, x)


def _kernel_of_output(name: str) -> Callable[[Tape, Tensor], Tensor]:
    """A function that is one kernel, which saves its output."""
    return lambda tape, x: from_output(tape, name, x)


#: How each activation function runs.
ACTIVATIONS: Final[dict[str, Callable[[Tape, Tensor], Tensor]]] = {
    "silu": _kernel("silu"),
    "swish": _kernel("silu"),
    "gelu": _kernel("gelu"),
    "gelu_pytorch_tanh": _kernel("gelu"),
    "relu": _kernel_of_output("relu"),
    "tanh": _kernel_of_output("tanh"),
    "sigmoid": _kernel_of_output("sigmoid"),
    "gelu_new": gelu_new,
    "quick_gelu": quick_gelu,
}
