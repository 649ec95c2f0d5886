"""Feed-forward parts, by `Mlp.style`."""

from __future__ import annotations

from qtui_core.memory.shape.model_shape import Mlp
from qtui_core.memory.tape.blocks.feedforward.activations import activation
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.pointwise import dropout, mul
from qtui_core.memory.tape.operations.views import split
from qtui_core.memory.tape.tape import Tape, Tensor


def gated(tape: Tape, weights: Weights, spec: Mlp, x: Tensor) -> Tensor:
    """LlamaMLP.forward: `down(act(gate(x)) * up(x))`. Without a gate, `down(act(up(x)))`."""
    assert spec.up is not None
    if spec.gate is None:
        return plain(tape, weights, spec, x)
    activated = activation(tape, spec.activation, project(tape, weights, spec.gate, x))
    product = mul(tape, activated, project(tape, weights, spec.up, x))
    del activated
    return project(tape, weights, spec.down, product)


def fused(tape: Tape, weights: Weights, spec: Mlp, hidden: Tensor) -> Tensor:
    """Phi3MLP.forward: gate and up are halves of one product."""
    assert spec.fused is not None
    up = project(tape, weights, spec.fused, hidden)
    gate, up = split(tape, up, up.elements // 2, up.elements // 2)
    up = mul(tape, up, activation(tape, spec.activation, gate))
    return project(tape, weights, spec.down, up)


def plain(tape: Tape, weights: Weights, spec: Mlp, hidden: Tensor) -> Tensor:
    """GPT2MLP.forward: `dropout(down(act(up(x))))`; each result takes the name of the one
    before."""
    assert spec.up is not None
    hidden = project(tape, weights, spec.up, hidden)
    hidden = activation(tape, spec.activation, hidden)
    hidden = project(tape, weights, spec.down, hidden)
    return dropout(tape, hidden, spec.dropout)
