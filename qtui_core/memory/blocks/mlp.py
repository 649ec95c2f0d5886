"""Feed-forward parts, by `Mlp.style`."""

from __future__ import annotations

from qtui_core.memory.blocks.activations import activation
from qtui_core.memory.blocks.linear import project
from qtui_core.memory.blocks.weights import Weights
from qtui_core.memory.operations.pointwise import dropout, mul
from qtui_core.memory.shape import Mlp
from qtui_core.memory.tape import Tape, Tensor


def gated(tape: Tape, weights: Weights, spec: Mlp, x: Tensor) -> Tensor:
    """LlamaMLP.forward: `down(act(gate(x)) * up(x))`. Without a gate, `down(act(up(x)))`."""
    assert spec.up is not None
    if spec.gate is None:
        return plain(tape, weights, spec, x)
    activated = activation(tape, spec.activation, project(tape, weights, spec.gate, x))
    product = mul(tape, activated, project(tape, weights, spec.up, x))
    del activated
    return project(tape, weights, spec.down, product)


def plain(tape: Tape, weights: Weights, spec: Mlp, hidden: Tensor) -> Tensor:
    """GPT2MLP.forward: `dropout(down(act(up(x))))`, each result over the one before."""
    assert spec.up is not None
    hidden = project(tape, weights, spec.up, hidden)
    hidden = activation(tape, spec.activation, hidden)
    hidden = project(tape, weights, spec.down, hidden)
    return dropout(tape, hidden, spec.dropout)
