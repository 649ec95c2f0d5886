"""The gated delta net of Qwen 3.5 and Qwen3-Next: linear attention with a state, in the operations
that the classes of transformers run where the kernels of fla are missing. What they compute in
chunks of tokens is float32."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.shape.model_shape import Attention, DeltaNet, Norm
from qtui_core.memory.tape.blocks.attention import Attended, matmul
from qtui_core.memory.tape.blocks.modules import activation, project
from qtui_core.memory.tape.blocks.state import STATE, Pass
from qtui_core.memory.tape.blocks.weights import Weights
from qtui_core.memory.tape.operations import bmm, cat, convolution, solve_triangular, write
from qtui_core.memory.tape.tensors import EPS, SCALE, Tensor

#: Tokens of a chunk (chunk_size of torch_chunk_gated_delta_rule).
CHUNK: Final = 64


#: Queries, keys and values, gate, what a token writes, and decay; then what lives until queries,
#: keys and values have been split again, and what lives until forward() returns.
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]
#: The results of the rule: its output, and the last state if there is a cache.
Ruled = tuple[Tensor, Tensor | None]


def delta_net(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Qwen3_5GatedDeltaNet.forward, and that of Qwen3-Next."""
    net, tape, cache = spec.net, state.tape, state.cache
    assert net is not None
    padding = state.mask_of(spec)
    if padding is not None and state.queries > 1:
        hidden = hidden.op("mul", "mul", saved=padding)
    divide = _products if net.decay is not None else _split_products
    mixed, z, b, a, parts, _whole = divide(weights, net, hidden, state)
    kernel, bias, rate = (weights[parameter.name] for parameter in net.extra)
    decodes = cache is not None and tape.layer in cache.states and state.queries == 1
    mixed = (_next_column if decodes else _columns)(net, mixed, kernel.viewed(), state)
    query, key, value = mixed.split(*_sizes(net, state))
    del parts
    once = state.queries <= CHUNK  # then gradients have the solver's layout, which can be viewed
    if net.heads == net.key_heads:
        query = query if once else query.transposed()
        key = key.transposed()
    value = value if once else value.transposed()
    beta = b.sigmoid()
    g = -rate.to("fp32").exp() * (a.to("fp32") + bias).softplus()
    rule = _recurrent if decodes else _chunked
    output, last = rule(net, query, key, value, g, beta, state)
    if cache is not None and last is not None and not decodes:
        node = tape.node("copy_", (last,), lambda gradient: (gradient,))
        state_kept = tape.output(node, tape.new(last.elements, "fp32", STATE))
        cache.states[tape.layer].append(state_kept)
    if output.dtype == "fp32" and not (once or decodes):  # no cast has made it contiguous
        output = output.clone()
    output = _normalized(weights, net.norm, output, z)
    return project(weights, spec.out, output), None


def _products(weights: Weights, net: DeltaNet, hidden: Tensor, _state: Pass) -> Inputs:
    """Four products; the gradients of two have tokens last."""
    mixed = project(weights, net.mixed, hidden, turned=True)
    z = project(weights, net.gate, hidden)
    b = project(weights, net.beta, hidden, turned=True)
    return mixed, z, b, project(weights, net.decay, hidden), (), ()


def _split_products(weights: Weights, net: DeltaNet, hidden: Tensor, state: Pass) -> Inputs:
    """Two products of Qwen3-Next, whose parts are interleaved by head and copied
    (fix_query_key_value_ordering); with as many heads of keys as of values, all that need not be
    made wider stays a view."""
    qkvz = project(weights, net.mixed, hidden)
    ba = project(weights, net.beta, hidden)
    sizes = _sizes(net, state)
    query, key, value, z = qkvz.split(*sizes, sizes[2])
    b, a = ba.split(ba.elements // 2, ba.elements // 2)
    if net.heads != net.key_heads:
        value, z, b, a = value.clone(), z.clone(), b.clone(), a.clone()
    query, key = query.clone(), key.clone()
    if net.heads == net.key_heads:
        value = value.clone()
    return cat(query, key, value), z, b, a, (query, key, value), (qkvz, ba)


def _sizes(net: DeltaNet, state: Pass) -> tuple[int, int, int]:
    """Elements of queries, keys and values."""
    keys = state.tokens * net.key_heads * net.key_dim
    return keys, keys, state.tokens * net.heads * net.head_dim


def _columns(net: DeltaNet, mixed: Tensor, weight: Tensor, state: Pass) -> Tensor:
    """causal_conv1d_fn: a convolution over the tokens, padded on both sides, without its end. A
    cache gets the last columns, for which a short prompt is padded."""
    given, length = mixed.dtype, mixed.elements
    channels = length // state.queries
    if state.cache is not None:
        kept = state.tape.new(channels * net.kernel, given, STATE)
        state.cache.states[state.tape.layer] = [kept]
        if state.queries < net.kernel:
            mixed = _padded(mixed, kept.elements)
    padded = mixed.elements + channels * (net.kernel - 1)
    out = convolution(mixed.to(weight.dtype), weight, padded).part(mixed.elements)
    out = activation(net.activation, out)
    out = out.to(given)
    return out if state.cache is None else out.part(length)  # without earlier columns


def _next_column(net: DeltaNet, mixed: Tensor, weight: Tensor, state: Pass) -> Tensor:
    """causal_conv1d_update: a convolution over the columns that were kept and the new one."""
    given, channels = mixed.dtype, mixed.elements
    joined = state.tape.new(channels * (net.kernel + 1), given, "cat").to(weight.dtype)
    out = convolution(joined, weight, 2 * channels).part(channels)
    out = activation(net.activation, out)
    return out.to(given)


def _prepared(
    net: DeltaNet, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, ...]:
    """The beginning of both rules: float32, queries and keys for every head, of length one."""
    times = net.heads // net.key_heads
    query = query.repeat(times)
    key = key.repeat(times)
    query, key, value, beta, decay = [x.to("fp32") for x in (query, key, value, beta, g)]
    query = _unit(net, query)
    key = _unit(net, key)
    return query * SCALE, key, value, beta, decay


def _unit(net: DeltaNet, x: Tensor) -> Tensor:
    """l2norm."""
    inverse = ((x * x).total(x.elements // net.key_dim) + EPS).rsqrt()
    return x * inverse


def _chunked(
    net: DeltaNet, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Pass
) -> Ruled:
    """torch_chunk_gated_delta_rule: what chunks need of themselves at once, then the state from
    chunk to chunk."""
    tape, given = state.tape, query.dtype
    chunks = -(-state.queries // CHUNK)
    pairs = state.batch * net.heads  # of a sequence and a head, each with a state
    rows = pairs * chunks * CHUNK
    of_key, of_value, of_scores = (pairs * CHUNK * n for n in (net.key_dim, net.head_dim, CHUNK))
    states = pairs * net.key_dim * net.head_dim
    # Without casts and padding nothing has put heads before tokens, so that products copy it.
    loose = given == "fp32" and not state.queries % CHUNK
    apart = state.batch > 1 and net.heads != net.key_heads
    whole, one = (loose and (apart or chunks > 1),) * 2, (loose and apart, False)
    query, key, value, beta, decay = _prepared(net, query, key, value, g, beta)
    query, key, value = [
        _padded(x, chunks * size) for x, size in ((query, of_key), (key, of_key), (value, of_value))
    ]
    beta, decay = [_padded(x, rows) for x in (beta, decay)]
    v_beta = value * beta.viewed()
    k_beta = key * beta.viewed()
    query, key, decay = query.viewed(), key.viewed(), decay.viewed()
    # The solver's gradient has columns first in each chunk and is copied.
    k_beta, v_beta = [x.transposed() if chunks > 1 else x.viewed() for x in (k_beta, v_beta)]
    tape.operation("ones")
    ones = tape.new(CHUNK * CHUNK, "bool", "ones")
    upper = tape.new(CHUNK * CHUNK, "bool", "triu")  # what a token of a chunk may not see
    del ones
    cum_decay = decay.cumsum()
    pairwise = cum_decay.viewed().sub(cum_decay.viewed(), chunks * of_scores)
    pairwise = pairwise.masked_fill(upper)
    pairwise = pairwise.exp()
    system = matmul(k_beta, key.viewed(), chunks * of_scores, whole) * pairwise
    intra = matmul(query, key.viewed(), chunks * of_scores, whole) * pairwise
    decayed = k_beta * cum_decay.exp()
    new_values = solve_triangular(system, v_beta)
    k_cumdecay = solve_triangular(system, decayed)
    last = tape.new(states, "fp32", "zeros")
    output = tape.new(new_values.elements, "fp32", "zeros_like")
    query = query * cum_decay.exp()
    key = key * (cum_decay.part(pairs * chunks) - cum_decay).exp()
    chunk_decay = cum_decay.part(pairs * chunks).exp()
    for _ in tape.turns(chunks):
        v_new = new_values.part(of_value) - bmm(k_cumdecay.part(of_key), last, of_value)
        inter = matmul(query.part(of_key), last, of_value, one)
        output = write(output, inter + bmm(intra.part(of_scores), v_new, of_value), of_value)
        last = last * chunk_decay.part(pairs) + matmul(key.part(of_key), v_new, states, one)
    kept = None if state.cache is None else last
    del last
    if chunks > 1:  # the solver's layout has columns first in each chunk
        output = output.clone()
    if state.queries % CHUNK:
        output = output.part(state.tokens * net.heads * net.head_dim)
    if given == "fp32" and chunks == 1:  # what looks like "channels last" to torch
        return output.clone(), kept
    return output.to(given), kept


def _padded(x: Tensor, elements: int) -> Tensor:
    """`F.pad` of the tokens, which copies even if there is nothing to add."""
    return x.op("constant_pad_nd", "constant_pad_nd", elements)


def _recurrent(
    net: DeltaNet, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Pass
) -> Ruled:
    """torch_recurrent_gated_delta_rule of one token after those of a cache."""
    tape, given = state.tape, query.dtype
    assert state.cache is not None
    query, key, value, beta, decay = _prepared(net, query, key, value, g, beta)
    states = value.elements * net.key_dim
    output = tape.new(value.elements, "fp32", "zeros_like")
    decay_t = decay.exp()
    last = state.cache.states[tape.layer][1] * decay_t
    kv_mem = (last * key).total(value.elements)
    _delta = (value - kv_mem) * beta
    last = last + tape.new(states, "fp32", "mul")
    (last * query).total(value.elements)
    return output.to(given), last


def _normalized(weights: Weights, spec: Norm, x: Tensor, gate: Tensor) -> Tensor:
    """Qwen3_5RMSNormGated.forward: LlamaRMSNorm's, then times the activated gate in float32."""
    tape, given = x.tape, x.dtype
    before, tape.path = tape.path, spec.name
    x = x.to("fp32")
    variance = x.pow(2).mean(x.elements // spec.size)
    x = x * (variance + EPS).rsqrt()
    x = weights[f"{spec.name}.weight"] * x.to(given)
    x = x * gate.to("fp32").from_input("silu")
    tape.path = before
    return x.to(given)
