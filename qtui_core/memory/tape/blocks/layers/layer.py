"""One layer: norms, attention and feed-forward part, by `Layer.arrangement`. The second result of
attention, `_weights`, lives as long as `_` in the real code."""

from __future__ import annotations

from typing import Any

from qtui_core.memory.shape.model_shape import Attention, Layer, Mlp, Moe
from qtui_core.memory.tape.blocks.attention.attention import Attended
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.blocks.registry import attention_style, feed_forward_style
from qtui_core.memory.tape.operations.pointwise import add, dropout, scale
from qtui_core.memory.tape.tape import Tape, Tensor


def attention_of(
    tape: Tape, weights: Weights, layer: Layer, hidden: Tensor, state: Pass
) -> Attended:
    """The layer's attention on `hidden`."""
    spec: Any = layer.attention
    fused = state.plan.kernels != "torch" and spec.style == "llama"
    return attention_style("fused" if fused else spec.style)(tape, weights, spec, hidden, state)


def feed_forward_of(tape: Tape, weights: Weights, layer: Layer, hidden: Tensor) -> Tensor:
    """The layer's feed-forward part on `hidden`."""
    spec: Any = layer.mlp
    fused = weights.plan.kernels != "torch" and spec.style == "llama"
    return feed_forward_style("fused" if fused else spec.style)(tape, weights, spec, hidden)


def pre(tape: Tape, weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """LlamaDecoderLayer.forward: norm, attention, sum, norm, feed-forward, sum."""
    residual = hidden
    hidden = normalize(tape, weights, layer.norms[0], hidden)
    hidden, _weights = attention_of(tape, weights, layer, hidden, state)
    hidden = _sum(tape, layer, residual, hidden)
    residual = hidden
    hidden = normalize(tape, weights, layer.norms[1], hidden)
    hidden = feed_forward_of(tape, weights, layer, hidden)
    return _sum(tape, layer, residual, hidden)


def sandwich(tape: Tape, weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """Gemma2DecoderLayer.forward: norms before and after each part."""
    first, second, third, fourth = layer.norms
    residual = hidden
    hidden = normalize(tape, weights, first, hidden)
    hidden, _weights = attention_of(tape, weights, layer, hidden, state)
    hidden = normalize(tape, weights, second, hidden)
    hidden = add(tape, residual, hidden)
    residual = hidden
    hidden = normalize(tape, weights, third, hidden)
    hidden = feed_forward_of(tape, weights, layer, hidden)
    hidden = normalize(tape, weights, fourth, hidden)
    return add(tape, residual, hidden)


def post(tape: Tape, weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """Olmo2DecoderLayer.forward: norms of the outputs of each part."""
    residual = hidden
    hidden, _weights = attention_of(tape, weights, layer, hidden, state)
    hidden = normalize(tape, weights, layer.norms[0], hidden)
    hidden = add(tape, residual, hidden)
    residual = hidden
    hidden = feed_forward_of(tape, weights, layer, hidden)
    hidden = normalize(tape, weights, layer.norms[1], hidden)
    return add(tape, residual, hidden)


def parallel(tape: Tape, weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """CohereDecoderLayer.forward: one norm for both parts, whose outputs have names until it
    returns."""
    residual = hidden
    hidden = normalize(tape, weights, layer.norms[0], hidden)
    attended, _weights = attention_of(tape, weights, layer, hidden, state)
    fed = feed_forward_of(tape, weights, layer, hidden)
    assert isinstance(layer.mlp, Mlp)
    fed = dropout(tape, fed, layer.mlp.dropout)
    return add(tape, add(tape, residual, attended), fed)


def phi3(tape: Tape, weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """Phi3DecoderLayer.forward: dropout is applied to each part's output after the part has
    returned."""
    assert isinstance(layer.attention, Attention)
    assert isinstance(layer.mlp, Mlp)
    residual = hidden
    hidden = normalize(tape, weights, layer.norms[0], hidden)
    hidden, _weights = attention_of(tape, weights, layer, hidden, state)
    hidden = add(tape, residual, dropout(tape, hidden, layer.attention.residual_dropout))
    residual = hidden
    hidden = normalize(tape, weights, layer.norms[1], hidden)
    hidden = feed_forward_of(tape, weights, layer, hidden)
    return add(tape, residual, dropout(tape, hidden, layer.mlp.dropout))


def stablelm(tape: Tape, weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """StableLmDecoderLayer.forward, one part after the other: names are not reused, so more tensors
    live until it returns."""
    if layer.arrangement == "parallel":
        return parallel(tape, weights, layer, hidden, state)
    residual = hidden
    hidden = normalize(tape, weights, layer.norms[0], hidden)
    attended, _weights = attention_of(tape, weights, layer, hidden, state)
    residual = add(tape, residual, attended)
    fed = feed_forward_of(tape, weights, layer, normalize(tape, weights, layer.norms[1], residual))
    assert isinstance(layer.mlp, Mlp)
    fed = dropout(tape, fed, layer.mlp.dropout)
    return add(tape, residual, fed)


def llama4(tape: Tape, weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """Llama4TextDecoderLayer.forward: the router's logits, as `_`, and the attention's result have
    names until it returns."""
    residual = hidden
    hidden = normalize(tape, weights, layer.norms[0], hidden)
    attended, _weights = attention_of(tape, weights, layer, hidden, state)
    hidden = add(tape, residual, attended)
    residual = hidden
    hidden = normalize(tape, weights, layer.norms[1], hidden)
    if isinstance(layer.mlp, Moe):
        from qtui_core.memory.tape.blocks.feedforward import moe

        hidden, _weights = moe.llama4(tape, weights, layer.mlp, hidden)
    else:
        hidden = feed_forward_of(tape, weights, layer, hidden)
    return add(tape, residual, hidden)


def _sum(tape: Tape, layer: Layer, residual: Tensor, hidden: Tensor) -> Tensor:
    """`residual + hidden`; `hidden` is multiplied by a constant in some families (Granite)."""
    if layer.residual_scale:
        return add(tape, residual, scale(tape, hidden))
    return add(tape, residual, hidden)
