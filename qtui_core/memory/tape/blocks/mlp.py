"""Feed-forward parts, by `Mlp.style`, and their activation functions (ACT2FN of
transformers.activations).

A function with a kernel of its own keeps one tensor for the backward pass. One that is composed of
several operations keeps a tensor for each of them that needs one, which makes gelu_new several
times as expensive as gelu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qtui_core.errors import UsageError
from qtui_core.memory.shape.model_shape import Mlp
from qtui_core.memory.tape.blocks.linear import project
from qtui_core.memory.tape.blocks.weights import Weights
from qtui_core.memory.tape.tensors import Tensor

#: Kernels whose gradient is computed from their input, and their names in torch.
_FROM_INPUT: Final = {
    "gelu": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "silu", "swish": "silu", "mish": "mish",
    "leaky_relu": "leaky_relu", "relu6": "hardtanh",
}  # fmt: skip

#: Kernels whose gradient is computed from their output.
_FROM_OUTPUT: Final = ("relu", "tanh", "sigmoid")


def _gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + (0.79788 * (x + 0.044715 * x.pow(3.0))).tanh())


#: Functions of several operations. Each is a single expression, as in the real code, so that every
#: intermediate result is freed when the next exists.
_COMPOSED: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu_new": _gelu_new,
    "gelu_accurate": _gelu_new,
    "gelu_fast": lambda x: 0.5 * x * (1.0 + (x * 0.79788 * (1.0 + 0.044715 * x * x)).tanh()),
    "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),
    "relu2": lambda x: x.from_output("relu").pow(2),
    "linear": lambda x: x,
}


def activation(name: str, x: Tensor) -> Tensor:
    """The activation function `name` of config.json, elementwise.

    Raises UsageError for an unknown function.
    """
    if name in _FROM_INPUT:
        return x.from_input(_FROM_INPUT[name])
    if name in _FROM_OUTPUT:
        return x.from_output(name)
    if name in _COMPOSED:
        return _COMPOSED[name](x)
    raise UsageError(
        f"The activation function {name!r} is not known here. Use --trace, which runs the class of "
        "transformers itself."
    )


def gated(weights: Weights, spec: Mlp | None, x: Tensor) -> Tensor:
    """LlamaMLP.forward: `down(act(gate(x)) * up(x))`. Without a gate, `down(act(up(x)))`."""
    assert spec is not None
    if spec.gate is None:
        return plain(weights, spec, x)
    activated = activation(spec.activation, project(weights, spec.gate, x))
    product = activated * project(weights, spec.up, x)
    del activated
    return project(weights, spec.down, product)


def dropped_out(weights: Weights, spec: Mlp, x: Tensor) -> Tensor:
    """SeedOssMLP.forward."""
    return gated(weights, spec, x).dropout(spec.dropout)


def gemma3n(weights: Weights, spec: Mlp, hidden: Tensor) -> Tensor:
    """Gemma3nTextMLP.forward: all products have names until it returns."""
    gate_proj = project(weights, spec.gate, hidden)
    if spec.style == "gemma3n-sparse":
        gate_proj = _gaussian_topk(gate_proj, gate_proj.elements // spec.down.inputs)
    activations = activation(spec.activation, gate_proj)
    up_proj = project(weights, spec.up, hidden)
    return project(weights, spec.down, activations * up_proj)


def _gaussian_topk(inputs: Tensor, rows: int) -> Tensor:
    """What is so many standard deviations above the mean of its row; zero elsewhere."""
    tape = inputs.tape
    tape.operation("erfinv")
    _target = multiplier = tape.new(1, "fp32", "_to_copy")
    for step in ("mul", "sub", "erfinv", "mul", "mul", "add"):
        multiplier = tape.new(1, "fp32", step)
    multiplier = multiplier.to(inputs.dtype)
    mean = inputs.mean(rows)
    deviation = inputs.std(rows)
    cutoff = mean + deviation.op("mul", "mul", saved=multiplier)
    return (inputs - cutoff).from_output("relu")


def fused(weights: Weights, spec: Mlp, hidden: Tensor) -> Tensor:
    """Phi3MLP.forward: gate and up are halves of one product."""
    up = project(weights, spec.fused, hidden)
    gate, up = up.split(up.elements // 2, up.elements // 2)
    up = up * activation(spec.activation, gate)
    return project(weights, spec.down, up)


def plain(weights: Weights, spec: Mlp, hidden: Tensor) -> Tensor:
    """GPT2MLP.forward: `dropout(down(act(up(x))))`; each result takes the name of the one
    before."""
    hidden = project(weights, spec.up, hidden)
    hidden = activation(spec.activation, hidden)
    hidden = project(weights, spec.down, hidden)
    return hidden.dropout(spec.dropout)


#: The function of each style of dense feed-forward part.
MLPS: Final[dict[str, Callable[[Weights, Any, Tensor], Tensor]]] = {
    "llama": gated, "seed_oss": dropped_out, "phi3": fused,
    "gemma3n": gemma3n, "gemma3n-sparse": gemma3n,
}  # fmt: skip
