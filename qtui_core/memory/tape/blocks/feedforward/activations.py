"""Activation functions by their names in config.json (ACT2FN of transformers.activations).

A function with a kernel of its own keeps one tensor for the backward pass. One that is composed of
several operations keeps a tensor for each of them that needs one, which makes gelu_new several
times as expensive as gelu.
"""

from __future__ import annotations

from typing import Final

from qtui_core.errors import UsageError
from qtui_core.memory.tape.operations.pointwise import (
    add,
    add_constant,
    from_input,
    from_output,
    mul,
    power,
    scale,
)
from qtui_core.memory.tape.tape import Tape, Tensor

#: Kernels whose gradient is computed from their input, and their names in torch.
_FROM_INPUT: Final = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "silu": "silu",
    "swish": "silu",
    "mish": "mish",
    "leaky_relu": "leaky_relu",
    "relu6": "hardtanh",
}

#: Kernels whose gradient is computed from their output.
_FROM_OUTPUT: Final = ("relu", "tanh", "sigmoid")


def activation(tape: Tape, name: str, x: Tensor) -> Tensor:
    """The activation function `name` of config.json, elementwise.

    Raises UsageError for an unknown function.
    """
    if name in _FROM_INPUT:
        return from_input(tape, _FROM_INPUT[name], x)
    if name in _FROM_OUTPUT:
        return from_output(tape, name, x)
    if name in ("gelu_new", "gelu_accurate"):
        return _gelu_new(tape, x)
    if name == "gelu_fast":
        return _gelu_fast(tape, x)
    if name == "quick_gelu":
        return mul(tape, x, from_output(tape, "sigmoid", scale(tape, x)))
    if name == "relu2":
        return power(tape, from_output(tape, "relu", x))
    if name == "linear":
        return x
    raise UsageError(
        f"The activation function {name!r} is not known here. Use --trace, which runs the class of "
        "transformers itself."
    )


def _gelu_new(tape: Tape, x: Tensor) -> Tensor:
    """`0.5 * x * (1.0 + tanh(c * (x + 0.044715 * pow(x, 3.0))))`. A single expression, as in the
    real code, so that each intermediate result is freed when the next exists."""
    return mul(
        tape,
        scale(tape, x),
        add_constant(
            tape,
            from_output(tape, "tanh", scale(tape, add(tape, x, scale(tape, power(tape, x))))),
        ),
    )


def _gelu_fast(tape: Tape, x: Tensor) -> Tensor:
    """`0.5 * x * (1.0 + tanh(x * c * (1.0 + 0.044715 * x * x)))`."""
    return mul(
        tape,
        scale(tape, x),
        add_constant(
            tape,
            from_output(
                tape,
                "tanh",
                mul(
                    tape,
                    scale(tape, x),
                    add_constant(tape, mul(tape, scale(tape, x), x)),
                ),
            ),
        ),
    )
