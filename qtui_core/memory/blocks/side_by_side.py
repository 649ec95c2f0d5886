"""Layers other than Llama's and GPT-2's: attention and feed-forward side by side (GPT-NeoX, Phi,
Falcon), norms after the sums (BERT), and those of OPT and GPT-NeoX one after the other."""

from __future__ import annotations

from qtui_core.memory.blocks.activations import activation
from qtui_core.memory.blocks.layer import attention_of, feed_forward_of
from qtui_core.memory.blocks.linear import project
from qtui_core.memory.blocks.norm import normalize
from qtui_core.memory.blocks.state import Pass
from qtui_core.memory.blocks.weights import Weights
from qtui_core.memory.operations.pointwise import add, dropout
from qtui_core.memory.shape import Layer, Mlp
from qtui_core.memory.tape import Tape, Tensor


def gpt_neox(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """GPTNeoXLayer.forward: each part has a norm of its own. Without use_parallel_residual one
    comes after the other."""
    before, after = spec.norms
    attended, _weights = attention_of(
        tape, weights, spec, normalize(tape, weights, before, hidden), state
    )
    if spec.arrangement == "parallel":
        fed = feed_forward_of(tape, weights, spec, normalize(tape, weights, after, hidden))
        return add(tape, add(tape, fed, attended), hidden)
    attended = add(tape, attended, hidden)
    fed = feed_forward_of(tape, weights, spec, normalize(tape, weights, after, attended))
    return add(tape, fed, attended)


def phi(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """PhiDecoderLayer.forward: one norm for both parts."""
    residual = hidden
    (norm,) = spec.norms
    hidden = normalize(tape, weights, norm, hidden)
    attended, _weights = attention_of(tape, weights, spec, hidden, state)
    fed = feed_forward_of(tape, weights, spec, hidden)
    return add(tape, add(tape, attended, fed), residual)


def bert(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """BertLayer.forward. Each part's dense layer, dropout and norm of the sum are a module of their
    own, whose input the layer holds until it returns."""
    assert isinstance(spec.mlp, Mlp)
    assert spec.mlp.up is not None
    first, second = spec.norms
    attended, _weights = attention_of(tape, weights, spec, hidden, state)
    attended = normalize(tape, weights, first, add(tape, attended, hidden))
    intermediate = project(tape, weights, spec.mlp.up, attended)
    intermediate = activation(tape, spec.mlp.activation, intermediate)
    output = project(tape, weights, spec.mlp.down, intermediate)
    output = dropout(tape, output, spec.mlp.dropout)
    return normalize(tape, weights, second, add(tape, output, attended))


def opt(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """OPTDecoderLayer.forward, with norms before the parts or (350M) after the sums. The
    feed-forward part is no module: what a step gives replaces what it took."""
    assert isinstance(spec.mlp, Mlp)
    assert spec.mlp.up is not None
    first, second = spec.norms
    before = spec.arrangement == "pre"
    residual = hidden
    if before:
        hidden = normalize(tape, weights, first, hidden)
    hidden, _weights = attention_of(tape, weights, spec, hidden, state)
    hidden = add(tape, residual, hidden)
    if not before:
        hidden = normalize(tape, weights, first, hidden)
    residual = hidden
    if before:
        hidden = normalize(tape, weights, second, hidden)
    hidden = project(tape, weights, spec.mlp.up, hidden)
    hidden = activation(tape, spec.mlp.activation, hidden)
    hidden = project(tape, weights, spec.mlp.down, hidden)
    hidden = dropout(tape, hidden, spec.mlp.dropout)
    hidden = add(tape, residual, hidden)
    if not before:
        hidden = normalize(tape, weights, second, hidden)
    return hidden
