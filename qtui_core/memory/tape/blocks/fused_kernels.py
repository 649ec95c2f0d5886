"""Parts of a layer under `RunPlan.kernels`: rotary embeddings in place; with "fused", adapters over
4-bit weights as one function; with "liger", a gate in one kernel. Other parts run as usual."""

from __future__ import annotations

from qtui_core.memory.shape.model_shape import Attention, Linear, Mlp
from qtui_core.memory.tape.blocks.attention import Attended, Three, attend, by_hand, products
from qtui_core.memory.tape.blocks.modules import gated, normalize, project
from qtui_core.memory.tape.blocks.state import Pass
from qtui_core.memory.tape.blocks.weights import Weights
from qtui_core.memory.tape.fused import Adapted, gated_mlp, rope, several, silu_times, single
from qtui_core.memory.tape.tensors import Tensor


def attention(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
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


def feed_forward(weights: Weights, spec: Mlp, x: Tensor) -> Tensor:
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
