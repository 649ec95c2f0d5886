"""One layer: norms, attention and feed-forward part. The second result of attention, `_weights`,
lives as long as `_` in the real code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qtui_core.memory.shape.model_shape import Attention, Layer, Linear, Mlp, Moe, Norm
from qtui_core.memory.tape.blocks import experts
from qtui_core.memory.tape.blocks.attention import (
    ATTENTIONS,
    Attended,
    Three,
    attend,
    by_hand,
    latent,
    products,
)
from qtui_core.memory.tape.blocks.delta import delta_net
from qtui_core.memory.tape.blocks.modules import MLPS, activation, gated, normalize, project
from qtui_core.memory.tape.blocks.state import Pass
from qtui_core.memory.tape.blocks.weights import Weights
from qtui_core.memory.tape.operations import (
    Adapted,
    bmm,
    gated_mlp,
    linear,
    rope,
    several,
    silu_times,
    single,
    write,
)
from qtui_core.memory.tape.tensors import SCALE, Tensor

Runner = Callable[[Weights, Layer, Tensor, Pass], Tensor]

#: The function of each style of attention, and of feed-forward part.
_ATTENTIONS: Final[dict[str, Callable[[Weights, Any, Tensor, Pass], Attended]]] = {
    **ATTENTIONS, "deepseek_v2": latent, "deepseek_v3": latent, "delta": delta_net,
}  # fmt: skip
_MLPS: Final = {**MLPS, **experts.EXPERTS}


def attention_of(weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Attended:
    """The layer's attention on `hidden`."""
    spec: Any = layer.attention
    if spec.style == "llama" and state.plan.kernels != "torch":
        return fused_attention(weights, spec, hidden, state)
    return _ATTENTIONS[spec.style](weights, spec, hidden, state)


def feed_forward_of(weights: Weights, layer: Layer, hidden: Tensor) -> Tensor:
    """The layer's feed-forward part on `hidden`."""
    spec: Any = layer.mlp
    if spec.style == "llama" and weights.plan.kernels != "torch":
        return fused_feed_forward(weights, spec, hidden)
    return _MLPS[spec.style](weights, spec, hidden)


def pre(weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """LlamaDecoderLayer.forward: norm, attention, sum, norm, feed-forward, sum. In gpt-oss the
    scores of the router take the name of those of the attention."""
    residual = hidden
    hidden = normalize(weights, layer.norms[0], hidden)
    hidden, _weights = attention_of(weights, layer, hidden, state)
    hidden = _sum(layer, residual, hidden)
    residual = hidden
    hidden = normalize(weights, layer.norms[1], hidden)
    if isinstance(layer.mlp, Moe) and layer.mlp.style == "gpt_oss":
        hidden, _weights = experts.gpt_oss(weights, layer.mlp, hidden)
    else:
        hidden = feed_forward_of(weights, layer, hidden)
    return _sum(layer, residual, hidden)


def sandwich(weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """Gemma2DecoderLayer.forward: norms before and after each part. In Gemma 4 experts may work
    beside the dense part, and an embedding of the layer's own be a part; in the end the sum is
    multiplied in place by a buffer, which lives as long as the weight that is saved here for it."""
    norms = iter(layer.norms)
    residual = hidden
    hidden = normalize(weights, next(norms), hidden)
    hidden, _weights = attention_of(weights, layer, hidden, state)
    hidden = normalize(weights, next(norms), hidden)
    hidden = residual + hidden
    residual = hidden
    hidden = normalize(weights, next(norms), hidden)
    if isinstance(layer.mlp, Moe):
        hidden = gated(weights, layer.mlp.shared, hidden)
        first = normalize(weights, next(norms), hidden)
        flat = experts.seen_again(residual)
        _weights, top_weights, top_index = experts.route_gemma4(weights, layer.mlp, flat)
        second = normalize(weights, next(norms), flat)
        second = experts.grouped(weights, layer.mlp, second, top_index, top_weights)
        second = normalize(weights, next(norms), second)
        hidden = first + second
    else:
        hidden = feed_forward_of(weights, layer, hidden)
    hidden = normalize(weights, next(norms), hidden)
    hidden = residual + hidden
    if state.own is not None:
        residual = hidden
        hidden = residual + _own_part(weights, layer, hidden, state, next(norms))
    if layer.attention.style != "gemma4":
        return hidden
    return hidden.op("mul_", "mul", saved=weights[f"{layer.norms[0].name}.weight"], view=True)


def altup(weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """Gemma3nTextDecoderLayer.forward: works on one of the streams in `hidden`, from which all are
    predicted before, and corrected by its result. In training the weight of the coefficients of
    that is clipped, without its adapter."""
    left, right, correction, prediction, router = layer.gates[2:]
    first, second, third, fourth, router_norm, laurel_norm, last = layer.norms
    (scale,) = layer.attention.extra
    factor, streams = weights[scale.name], prediction.inputs
    size = hidden.elements // streams

    def modalities(x: Tensor) -> Tensor:
        """compute_router_modalities; what it multiplies by is a buffer, saved as a weight is."""
        inputs = normalize(weights, router_norm, x).op("mul", "mul", saved=factor)
        routed = project(weights, router, inputs)
        return routed.to("fp32").tanh().to(x.dtype)

    of = modalities(hidden.part(size))
    coefs = project(weights, prediction, of).transposed()
    predictions = bmm(hidden, coefs, hidden.elements)
    predictions = write(predictions, hidden, hidden.elements, adds=True)
    predictions = predictions.clone().to(hidden.dtype)
    del of, coefs
    active = predictions.part(size)
    normed = normalize(weights, first, active)
    product = project(weights, right, project(weights, left, normed))
    laurel_output = normed + normalize(weights, laurel_norm, product)
    del product
    attended, _weights = attention_of(weights, layer, normed, state)
    attended = normalize(weights, second, attended)
    attended_gated = active + attended
    attended_laurel = (attended_gated + laurel_output) * SCALE
    attended_normed = normalize(weights, third, attended_laurel)
    fed = feed_forward_of(weights, layer, attended_normed)
    fed_normed = normalize(weights, fourth, fed)
    activated = attended_laurel + fed_normed
    of = modalities(activated)
    innovation = (activated - predictions.part(size)).op("repeat", "sum", hidden.elements)
    weight = weights[f"{correction.name}.weight"].clamp(2) if weights.plan.trains else None
    if weight is None:
        coefs = project(weights, correction, of) + 1.0
    else:
        coefs = linear(of, weight, None, streams, streams) + 1.0
    corrected = (innovation * coefs).add_(predictions).to(activated.dtype)
    del of, innovation, coefs, weight
    own = _own_part(weights, layer, corrected.part(size).clone(), state, last, factor)
    others = corrected.elements - size
    corrected = write(corrected, own, others, adds=True)
    return write(corrected, corrected.part(others), others)


def _own_part(
    weights: Weights, layer: Layer, x: Tensor, state: Pass, norm: Norm, factor: Tensor | None = None
) -> Tensor:
    """What multiplies an embedding of the layer's own, of `x` times the factor."""
    assert state.own is not None
    gate, back = layer.gates[:2]
    if factor is not None:
        x = (x.to(factor.dtype) * factor).to(x.dtype)
    x = project(weights, gate, x)
    x = activation(layer.mlp.activation, x)
    x = x * state.own
    x = project(weights, back, x)
    return normalize(weights, norm, x)


def post(weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """Olmo2DecoderLayer.forward: norms of the outputs of each part."""
    residual = hidden
    hidden, _weights = attention_of(weights, layer, hidden, state)
    hidden = normalize(weights, layer.norms[0], hidden)
    hidden = residual + hidden
    residual = hidden
    hidden = feed_forward_of(weights, layer, hidden)
    hidden = normalize(weights, layer.norms[1], hidden)
    return residual + hidden


def parallel(weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """CohereDecoderLayer.forward: one norm for both parts, whose outputs have names until it
    returns."""
    residual = hidden
    hidden = normalize(weights, layer.norms[0], hidden)
    attended, _weights = attention_of(weights, layer, hidden, state)
    fed = feed_forward_of(weights, layer, hidden)
    fed = fed.dropout(layer.mlp.dropout)
    return residual + attended + fed


def phi3(weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """Phi3DecoderLayer.forward: dropout is applied to each part's output after the part has
    returned."""
    residual = hidden
    hidden = normalize(weights, layer.norms[0], hidden)
    hidden, _weights = attention_of(weights, layer, hidden, state)
    hidden = residual + hidden.dropout(layer.attention.residual_dropout)
    residual = hidden
    hidden = normalize(weights, layer.norms[1], hidden)
    hidden = feed_forward_of(weights, layer, hidden)
    return residual + hidden.dropout(layer.mlp.dropout)


def stablelm(weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """StableLmDecoderLayer.forward, one part after the other: names are not reused, so more tensors
    live until it returns."""
    if layer.arrangement == "parallel":
        return parallel(weights, layer, hidden, state)
    residual = hidden
    hidden = normalize(weights, layer.norms[0], hidden)
    attended, _weights = attention_of(weights, layer, hidden, state)
    residual = residual + attended
    fed = feed_forward_of(weights, layer, normalize(weights, layer.norms[1], residual))
    fed = fed.dropout(layer.mlp.dropout)
    return residual + fed


def llama4(weights: Weights, layer: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """Llama4TextDecoderLayer.forward: the router's logits, as `_`, and the attention's result have
    names until it returns."""
    residual = hidden
    hidden = normalize(weights, layer.norms[0], hidden)
    attended, _weights = attention_of(weights, layer, hidden, state)
    hidden = residual + attended
    residual = hidden
    hidden = normalize(weights, layer.norms[1], hidden)
    if isinstance(layer.mlp, Moe):
        hidden, _weights = experts.llama4(weights, layer.mlp, hidden)
    else:
        hidden = feed_forward_of(weights, layer, hidden)
    return residual + hidden


def _sum(layer: Layer, residual: Tensor, hidden: Tensor) -> Tensor:
    """`residual + hidden`; `hidden` is multiplied by a constant in some families (Granite)."""
    if layer.residual_scale:
        return residual + hidden * SCALE
    return residual + hidden


def gpt_neox(weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """GPTNeoXLayer.forward: each part has its own norm. Without use_parallel_residual the parts are
    sequential."""
    before, after = spec.norms
    attended, _weights = attention_of(weights, spec, normalize(weights, before, hidden), state)
    attended = attended.dropout(spec.attention.residual_dropout)
    if spec.arrangement == "parallel":
        fed = feed_forward_of(weights, spec, normalize(weights, after, hidden))
        return fed + attended + hidden
    attended = attended + hidden
    fed = feed_forward_of(weights, spec, normalize(weights, after, attended))
    return fed + attended


def gpt2(weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """GPT2Block.forward, and GPT-BigCode's. The output of each part keeps its name."""
    residual = hidden
    hidden = normalize(weights, spec.norms[0], hidden)
    attended, _weights = attention_of(weights, spec, hidden, state)
    hidden = attended + residual
    residual = hidden
    hidden = normalize(weights, spec.norms[1], hidden)
    fed = feed_forward_of(weights, spec, hidden)
    return residual + fed


def phi(weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """PhiDecoderLayer.forward: one norm for both parts."""
    residual = hidden
    hidden = normalize(weights, spec.norms[0], hidden)
    attended, _weights = attention_of(weights, spec, hidden, state)
    attended = attended.dropout(spec.attention.residual_dropout)
    fed = feed_forward_of(weights, spec, hidden)
    return attended + fed + residual


def bert(weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """BertLayer.forward. Each part's dense layer, dropout and norm of the sum are a module, whose
    input the layer holds until it returns."""
    assert isinstance(spec.mlp, Mlp)
    context, _weights = attention_of(weights, spec, hidden, state)
    output = project(weights, spec.attention.out, context)
    output = output.dropout(spec.attention.residual_dropout)
    attended = normalize(weights, spec.norms[0], output + hidden)
    del output, context
    intermediate = project(weights, spec.mlp.up, attended)
    intermediate = activation(spec.mlp.activation, intermediate)
    output = project(weights, spec.mlp.down, intermediate)
    output = output.dropout(spec.mlp.dropout)
    return normalize(weights, spec.norms[1], output + attended)


def opt(weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """OPTDecoderLayer.forward, with norms before the parts or (350M) after the sums. The
    feed-forward part is no module: each result replaces the one before. It works on `[tokens,
    hidden]`."""
    assert isinstance(spec.mlp, Mlp)
    first, second = spec.norms
    before = spec.arrangement == "pre"
    residual = hidden
    if before:
        hidden = normalize(weights, first, hidden)
    hidden, _weights = attention_of(weights, spec, hidden, state)
    hidden = hidden.dropout(spec.attention.residual_dropout)
    hidden = residual + hidden
    if not before:
        hidden = normalize(weights, first, hidden)
    hidden = hidden.viewed()
    residual = hidden
    if before:
        hidden = normalize(weights, second, hidden)
    hidden.flat = True  # reshaped to [tokens, hidden]
    hidden = project(weights, spec.mlp.up, hidden)
    hidden = activation(spec.mlp.activation, hidden)
    hidden.flat = True
    hidden = project(weights, spec.mlp.down, hidden)
    hidden = hidden.dropout(spec.mlp.dropout)
    hidden = (residual + hidden).viewed()
    if not before:
        hidden = normalize(weights, second, hidden)
    return hidden


#: The function of each arrangement, and of each style of attention whose class has an order of its
#: own.
_BY_ARRANGEMENT: Final = {
    "pre": pre, "sandwich": sandwich, "post": post, "parallel": parallel, "altup": altup,
}  # fmt: skip
_BY_STYLE: Final[dict[str, Runner]] = {
    "phi3": phi3, "stablelm": stablelm, "llama4": llama4, "llama4-tuned": llama4, "gpt2": gpt2,
    "gpt_bigcode": gpt2, "gpt_neox": gpt_neox, "phi": phi, "opt": opt, "bert": bert,
}  # fmt: skip


def run_layer(weights: Weights, spec: Layer, state: Pass, hidden: Tensor) -> Tensor:
    """The output of the layer for `hidden`."""
    runner = _BY_STYLE.get(spec.attention.style) or _BY_ARRANGEMENT[spec.arrangement]
    return runner(weights, spec, hidden, state)


# ---------------------------------------------------------------------- under RunPlan.kernels
# Rotary embeddings in place; with "fused", adapters over 4-bit weights as one function; with
# "liger", a gate in one kernel. Other parts run as usual.


def fused_attention(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """LlamaAttention.forward with queries and keys rotated in place, and with all three products in
    one function if all have adapters."""
    query, key, value = _projected(weights, spec, hidden)
    query = normalize(weights, spec.query_norm, query)
    key = normalize(weights, spec.key_norm, key)
    if spec.positions == "rope":
        cosines, sines = state.tables[0]
        query = rope(query, cosines, sines)
        key = rope(key, cosines, sines)
    key = by_hand(spec, key, state)
    value = by_hand(spec, value, state)
    output, scores = attend(weights, spec, query, key, value, state)
    own = _adapted(weights, spec.out)
    if own is None:
        return project(weights, spec.out, output), scores
    hidden.tape.operation("LoRA_W")
    return single(output, own, weights.plan.lora_dropout), scores


def fused_feed_forward(weights: Weights, spec: Mlp, x: Tensor) -> Tensor:
    """LlamaMLP.forward with SiLU: in one function if all three layers have adapters, or with the
    gate in one kernel (LigerSwiGLUMLP.forward)."""
    if spec.activation not in ("silu", "swish") or spec.gate is None or spec.up is None:
        return gated(weights, spec, x)
    if weights.plan.kernels == "liger":
        gate_result = project(weights, spec.gate, x)
        product = silu_times(gate_result, project(weights, spec.up, x))
        del gate_result
        return project(weights, spec.down, product)
    gate, up, down = (_adapted(weights, layer) for layer in (spec.gate, spec.up, spec.down))
    if gate is None or up is None or down is None:
        return gated(weights, spec, x)
    return gated_mlp(x, gate, up, down, weights.plan.lora_dropout)


def _projected(weights: Weights, spec: Attention, hidden: Tensor) -> Three:
    parts = (spec.query, spec.key, spec.value)
    adapted = [own for part in parts if (own := _adapted(weights, part)) is not None]
    if len(adapted) == len(parts):
        query, key, value = several(hidden, adapted, weights.plan.lora_dropout)
        return query, key, value
    return products(weights, spec, hidden)


def _adapted(weights: Weights, spec: Linear | None) -> Adapted | None:
    """The layer for a kernel that includes its adapter: one over a 4-bit weight; else None."""
    assert spec is not None
    own = weights.linear(spec)
    apart = weights.plan.kernels != "fused" or own.quant in (None, "int8")
    if apart or own.down is None or own.up is None:
        return None
    return Adapted(spec.inputs, spec.outputs, weights.plan.lora_rank, own.down, own.up)
