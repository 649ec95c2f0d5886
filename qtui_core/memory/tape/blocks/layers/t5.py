"""T5: attention with relative positions, to the sequence itself or to an encoder's output."""

from __future__ import annotations

from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Attention, Layer, Mlp
from qtui_core.memory.tape.blocks.attention.attention import ALIGNED, PADDED
from qtui_core.memory.tape.blocks.attention.cache import remember
from qtui_core.memory.tape.blocks.attention.relative import relative_bias
from qtui_core.memory.tape.blocks.feedforward.activations import activation
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.attention import Heads, efficient, up
from qtui_core.memory.tape.operations.pointwise import add, clone, dropout, mul
from qtui_core.memory.tape.operations.views import expand, part
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

ZEROS: Final = Label("zeros")
ARANGE: Final = Label("arange")
COMPARISON: Final = Label("ge")
CHOICE: Final = Label("where")


@dataclass
class Biases:
    """What the first layer makes for all: the bias of scores by relative position, and the bias of
    scores to the encoder, which is zero."""

    own: Tensor | None = None
    cross: Tensor | None = None


def layer(
    tape: Tape,
    weights: Weights,
    spec: Layer,
    state: Pass,
    given: Biases,
    made: Biases,
    hidden: Tensor,
) -> Tensor:
    """T5Block.forward. `given` are the biases from earlier layers; the resulting ones are put into
    `made`."""
    assert isinstance(spec.attention, Attention)
    hidden, own = _attended(tape, weights, spec, 0, spec.attention, state, given.own, hidden)
    cross = None
    if spec.cross is not None:
        hidden, cross = _attended(tape, weights, spec, 1, spec.cross, state, given.cross, hidden)
    output = _fed(tape, weights, spec, hidden)
    if tape.recomputing is None:
        made.own, made.cross = own, cross
    return output


def _attended(
    tape: Tape,
    weights: Weights,
    layer: Layer,
    place: int,
    spec: Attention,
    state: Pass,
    bias: Tensor | None,
    hidden: Tensor,
) -> tuple[Tensor, Tensor]:
    """T5LayerSelfAttention.forward and T5LayerCrossAttention.forward."""
    normed = normalize(tape, weights, layer.norms[place], hidden)
    source = state.encoded if place == 1 and state.encoded is not None else normed
    output, bias = _attention(tape, weights, spec, normed, source, state, bias)
    return add(tape, hidden, dropout(tape, output, layer.dropout)), bias


def _attention(
    tape: Tape,
    weights: Weights,
    spec: Attention,
    hidden: Tensor,
    source: Tensor,
    state: Pass,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """T5Attention.forward under SDPA, whose mask is the bias and so forbids flash attention."""
    assert spec.query is not None
    crosses = source is not hidden
    keys = state.plan.sequence if crosses else state.keys
    query = project(tape, weights, spec.query, hidden)
    key, value = _keys_and_values(tape, weights, spec, query, source, state, crosses=crosses)
    relative = bool(spec.extra) or (bias is not None and not crosses)
    if bias is None:
        bias = _made(tape, weights, spec, query.dtype, state, keys)
    sizes = Heads(state.batch, state.queries, keys, spec.heads, spec.heads, spec.head_dim)
    output = _scored(tape, spec, query, key, value, bias, sizes, state, relative=relative)
    return project(tape, weights, spec.out, output), bias


def _keys_and_values(
    tape: Tape,
    weights: Weights,
    spec: Attention,
    query: Tensor,
    source: Tensor,
    state: Pass,
    *,
    crosses: bool,
) -> tuple[Tensor, Tensor]:
    """Keys and values of `source`, appended to the cached ones; those of an encoder are made
    once."""
    assert spec.key is not None
    assert spec.value is not None
    cache = None if state.cache is None else state.cache.cross if crosses else state.cache
    if crosses and cache is not None and tape.layer in cache.layers:
        kept = cache.layers[tape.layer]
        elements = state.batch * state.plan.sequence * spec.heads * spec.head_dim
        return Tensor(elements, query.dtype, kept.keys), Tensor(elements, query.dtype, kept.values)
    key = project(tape, weights, spec.key, source)
    value = project(tape, weights, spec.value, source)
    if cache is not None:
        remember(tape, cache, key, value, state.plan.sequence if crosses else state.queries)
    return key, value


def _made(
    tape: Tape, weights: Weights, spec: Attention, dtype: str, state: Pass, keys: int
) -> Tensor:
    """The bias that the first layer makes: relative positions if it has a table, else zeros, which
    require a gradient under checkpointing."""
    if spec.extra:
        return relative_bias(tape, weights, spec, state)
    tape.operation("zeros")
    zeros = tape.new(spec.heads * state.queries * keys, dtype, ZEROS)
    if tape.training and state.plan.checkpointing and tape.grad:
        zeros.requires_grad = True
    return zeros


def _scored(
    tape: Tape,
    spec: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    sizes: Heads,
    state: Pass,
    *,
    relative: bool,
) -> Tensor:
    """sdpa_attention_forward with create_position_bias_mask: the bias also masks later positions,
    and is made contiguous for the kernel."""
    mask = bias
    if spec.causal and state.queries > 1:
        mask = _hidden_later(tape, bias, state)
    elif relative and sizes.keys > 1:
        mask = clone(tape, mask)
    query, key, value = tape.cast_low(query), tape.cast_low(key), tape.cast_low(value)
    lowered = seen = tape.cast_low(mask)
    if sizes.keys % ALIGNED:
        seen = _padded(tape, lowered, sizes.keys)
    if sizes.batch > 1:
        seen = expand(tape, seen, mask.elements * sizes.batch)
    return efficient(tape, query, key, value, sizes, seen)


def _padded(tape: Tape, bias: Tensor, keys: int) -> Tensor:
    """pad_bias in attention.cpp: rows padded to a multiple of 16 elements, and a view of the
    original part."""
    elements = bias.elements

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(elements, gradient.dtype, PADDED),)

    node = tape.node("constant_pad_nd", (bias,), backward)
    whole = tape.new(elements // keys * up(keys, ALIGNED), bias.dtype, PADDED)
    return part(tape, tape.output(node, whole), elements)


def _hidden_later(tape: Tape, bias: Tensor, state: Pass) -> Tensor:
    """`where(queries >= keys, bias, lowest).contiguous()`."""
    elements, square = bias.elements, state.queries * state.keys
    tape.operation("ge")
    rows = tape.new(state.queries, "int64", ARANGE)
    columns = tape.new(state.keys, "int64", ARANGE)
    allowed = tape.new(square, "bool", COMPARISON)
    del rows, columns

    def backward(gradient: Tensor) -> Gradients:
        _zero = tape.new(1, gradient.dtype, CHOICE)
        return (tape.new(elements, gradient.dtype, CHOICE),)

    _lowest = tape.new(1, bias.dtype, CHOICE)
    node = tape.node("where", (bias,), backward)
    tape.save(node, allowed)
    mask = tape.output(node, tape.new(elements, bias.dtype, CHOICE))
    del _lowest
    return clone(tape, mask)


def _fed(tape: Tape, weights: Weights, layer: Layer, hidden: Tensor) -> Tensor:
    """T5LayerFF.forward."""
    assert isinstance(layer.mlp, Mlp)
    forwarded = normalize(tape, weights, layer.norms[-1], hidden)
    forwarded = _dense(tape, weights, layer.mlp, forwarded)
    return add(tape, hidden, dropout(tape, forwarded, layer.dropout))


def _dense(tape: Tape, weights: Weights, spec: Mlp, hidden: Tensor) -> Tensor:
    """T5DenseActDense.forward and T5DenseGatedActDense.forward. The input of the last product is
    cast to the dtype of its weight."""
    given = hidden
    assert spec.up is not None
    if spec.gate is None:
        hidden = project(tape, weights, spec.up, hidden)
        hidden = activation(tape, spec.activation, hidden)
    else:
        gate = activation(tape, spec.activation, project(tape, weights, spec.gate, hidden))
        linear = project(tape, weights, spec.up, hidden)
        hidden = mul(tape, gate, linear)
    hidden = dropout(tape, hidden, spec.dropout)
    dtype = weights.linear(spec.down).weight.dtype
    if dtype in ("fp32", "bf16", "fp16"):
        hidden = tape.to(hidden, dtype)
    hidden = project(tape, weights, spec.down, hidden)
    del given
    return hidden
