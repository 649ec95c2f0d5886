"""Layers that differ from Llama's: attention and feed-forward part in parallel (GPT-NeoX, Phi,
Falcon), norms after the sums (BERT), and the sequential ones of GPT-2, OPT and GPT-NeoX."""

from __future__ import annotations

from qtui_core.memory.shape.model_shape import Attention, Layer, Mlp
from qtui_core.memory.tape.blocks.feedforward.activations import activation
from qtui_core.memory.tape.blocks.layers.layer import attention_of, feed_forward_of
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.pointwise import add, dropout
from qtui_core.memory.tape.operations.views import viewed
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor


def gpt_neox(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """GPTNeoXLayer.forward: each part has its own norm. Without use_parallel_residual the parts are
    sequential."""
    before, after = spec.norms
    attended, _weights = attention_of(
        tape, weights, spec, normalize(tape, weights, before, hidden), state
    )
    attended = dropped(tape, spec, attended)
    if spec.arrangement == "parallel":
        fed = feed_forward_of(tape, weights, spec, normalize(tape, weights, after, hidden))
        return add(tape, add(tape, fed, attended), hidden)
    attended = add(tape, attended, hidden)
    fed = feed_forward_of(tape, weights, spec, normalize(tape, weights, after, attended))
    return add(tape, fed, attended)


def gpt2(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """GPT2Block.forward, and GPT-BigCode's. The output of each part keeps its name."""
    residual = hidden
    hidden = normalize(tape, weights, spec.norms[0], hidden)
    attended, _weights = attention_of(tape, weights, spec, hidden, state)
    hidden = add(tape, attended, residual)
    residual = hidden
    hidden = normalize(tape, weights, spec.norms[1], hidden)
    fed = feed_forward_of(tape, weights, spec, hidden)
    return add(tape, residual, fed)


def phi(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """PhiDecoderLayer.forward: one norm for both parts."""
    residual = hidden
    (norm,) = spec.norms
    hidden = normalize(tape, weights, norm, hidden)
    attended, _weights = attention_of(tape, weights, spec, hidden, state)
    attended = dropped(tape, spec, attended)
    fed = feed_forward_of(tape, weights, spec, hidden)
    return add(tape, add(tape, attended, fed), residual)


def bert(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """BertLayer.forward. Each part's dense layer, dropout and norm of the sum are a module, whose
    input the layer holds until it returns."""
    assert isinstance(spec.mlp, Mlp)
    assert spec.mlp.up is not None
    attended, _weights = attention_of(tape, weights, spec, hidden, state)
    attended = _self_output(tape, weights, spec, attended, hidden)
    intermediate = project(tape, weights, spec.mlp.up, attended)
    intermediate = activation(tape, spec.mlp.activation, intermediate)
    output = project(tape, weights, spec.mlp.down, intermediate)
    output = dropout(tape, output, spec.mlp.dropout)
    return normalize(tape, weights, spec.norms[1], add(tape, output, attended))


def opt(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """OPTDecoderLayer.forward, with norms before the parts or (350M) after the sums. The
    feed-forward part is no module: each result replaces the one before. It works on `[tokens,
    hidden]`."""
    assert isinstance(spec.mlp, Mlp)
    assert spec.mlp.up is not None
    first, second = spec.norms
    before = spec.arrangement == "pre"
    residual = hidden
    if before:
        hidden = normalize(tape, weights, first, hidden)
    hidden, _weights = attention_of(tape, weights, spec, hidden, state)
    hidden = dropped(tape, spec, hidden)
    hidden = add(tape, residual, hidden)
    if not before:
        hidden = normalize(tape, weights, first, hidden)
    hidden = viewed(tape, hidden)
    residual = hidden
    if before:
        hidden = normalize(tape, weights, second, hidden)
    hidden.flat = True  # reshaped to [tokens, hidden]
    hidden = project(tape, weights, spec.mlp.up, hidden)
    hidden = activation(tape, spec.mlp.activation, hidden)
    hidden.flat = True
    hidden = project(tape, weights, spec.mlp.down, hidden)
    hidden = dropout(tape, hidden, spec.mlp.dropout)
    hidden = viewed(tape, add(tape, residual, hidden))
    if not before:
        hidden = normalize(tape, weights, second, hidden)
    return hidden


def falcon(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """FalconDecoderLayer.forward. The attention's result is added in place to that of the
    feed-forward part."""
    assert isinstance(spec.attention, Attention)
    residual = hidden
    normed = normalize(tape, weights, spec.norms[0], hidden)
    two = spec.arrangement == "parallel" and len(spec.norms) == 2
    mlp_normed = normalize(tape, weights, spec.norms[1], hidden) if two else normed
    attended, _weights = attention_of(tape, weights, spec, normed, state)
    if spec.arrangement != "parallel":
        dropped = dropout(tape, attended, spec.attention.residual_dropout)
        residual = add(tape, residual, dropped)
        del dropped
        mlp_normed = normalize(tape, weights, spec.norms[1], residual)
    output = feed_forward_of(tape, weights, spec, mlp_normed)
    if spec.arrangement == "parallel":
        output = _added(tape, output, attended)
    return add(tape, residual, dropout(tape, output, spec.dropout))


def dropped(tape: Tape, spec: Layer, attended: Tensor) -> Tensor:
    """The attention's output after the layer's dropout."""
    assert isinstance(spec.attention, Attention)
    return dropout(tape, attended, spec.attention.residual_dropout)


def _self_output(
    tape: Tape, weights: Weights, spec: Layer, attended: Tensor, hidden: Tensor
) -> Tensor:
    """BertSelfOutput.forward. The attention's output lives as its argument."""
    assert isinstance(spec.attention, Attention)
    output = project(tape, weights, spec.attention.out, attended)
    output = dropped(tape, spec, output)
    return normalize(tape, weights, spec.norms[0], add(tape, output, hidden))


def _added(tape: Tape, x: Tensor, other: Tensor) -> Tensor:
    """`x += other`. If `x` has a narrower dtype, the sum is cast to it in place."""

    def backward(gradient: Tensor) -> Gradients:
        return gradient, gradient

    node = tape.node("add_", (x, other), backward)
    return tape.output(node, Tensor(x.elements, x.dtype, x.buffer))
