"""Normalizations as the classes of transformers write them out, by `Norm.kind`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.blocks.weights import Weights
from qtui_core.memory.operations.norm import layer_norm, mean
from qtui_core.memory.operations.pointwise import add_constant, mul, power, rsqrt
from qtui_core.memory.shape import Norm
from qtui_core.memory.tape import Tape, Tensor


def normalize(tape: Tape, weights: Weights, spec: Norm, x: Tensor) -> Tensor:
    """The norm `spec` of `x`, over its last `spec.size` elements."""
    before = tape.path
    tape.path = spec.name
    result = NORMS[spec.kind](tape, weights, spec, x)
    tape.path = before
    return result


def root_mean_square(tape: Tape, weights: Weights, spec: Norm, hidden: Tensor) -> Tensor:
    """LlamaRMSNorm.forward: in float32, cast back, then times the weight."""
    given = hidden.dtype
    hidden = tape.to(hidden, "fp32")
    variance = mean(tape, power(tape, hidden), hidden.elements // spec.size)
    hidden = mul(tape, hidden, rsqrt(tape, add_constant(tape, variance)))
    weight = weights.weight(spec)
    if weight is None:
        return tape.to(hidden, given)
    return mul(tape, weight, tape.to(hidden, given))


def layer(tape: Tape, weights: Weights, spec: Norm, x: Tensor) -> Tensor:
    """nn.LayerNorm: one kernel."""
    return layer_norm(tape, x, weights.weight(spec), weights.bias(spec), spec.size)


#: How each kind of norm runs.
NORMS: Final[dict[str, Callable[[Tape, Weights, Norm, Tensor], Tensor]]] = {
    "rms": root_mean_square,
    "layer": layer,
}
