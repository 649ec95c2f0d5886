"""Parts of a layer under `RunPlan.kernels`: rotary embeddings in place; with "fused", adapters over
4-bit weights as one function; with "liger", a gate in one kernel. Other parts run as usual."""

from __future__ import annotations

from qtui_core.memory.shape.model_shape import Attention, Linear, Mlp
from qtui_core.memory.tape.blocks.attention.attention import Attended, attend, by_hand
from qtui_core.memory.tape.blocks.feedforward.mlp import gated
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.fused import rope, silu_times
from qtui_core.memory.tape.operations.fused_lora import Adapted, gated_mlp, several, single
from qtui_core.memory.tape.tape import Tape, Tensor


def attention(
    tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass
) -> Attended:
    """LlamaAttention.forward with queries and keys rotated in place, and with all three products in
    one function if all have adapters."""
    query, key, value = _projected(tape, weights, spec, hidden)
    if spec.query_norm is not None:
        query = normalize(tape, weights, spec.query_norm, query)
    if spec.key_norm is not None:
        key = normalize(tape, weights, spec.key_norm, key)
    if spec.positions == "rope":
        cosines, sines = state.tables[0]
        query = rope(tape, query, cosines, sines)
        key = rope(tape, key, cosines, sines)
    key = by_hand(tape, spec, key, state)
    value = by_hand(tape, spec, value, state)
    output, scores = attend(tape, spec, query, key, value, state)
    own = _adapted(weights, spec.out)
    if own is None:
        return project(tape, weights, spec.out, output), scores
    tape.operation("LoRA_W")
    return single(tape, output, own, weights.plan.lora_dropout), scores


def feed_forward(tape: Tape, weights: Weights, spec: Mlp, x: Tensor) -> Tensor:
    """LlamaMLP.forward with SiLU: in one function if all three layers have adapters, or with the
    gate in one kernel (LigerSwiGLUMLP.forward)."""
    if spec.activation not in ("silu", "swish") or spec.gate is None or spec.up is None:
        return gated(tape, weights, spec, x)
    if weights.plan.kernels == "liger":
        gate_result = project(tape, weights, spec.gate, x)
        product = silu_times(tape, gate_result, project(tape, weights, spec.up, x))
        del gate_result
        return project(tape, weights, spec.down, product)
    gate, up, down = (_adapted(weights, layer) for layer in (spec.gate, spec.up, spec.down))
    if gate is None or up is None or down is None:
        return gated(tape, weights, spec, x)
    return gated_mlp(tape, x, gate, up, down, weights.plan.lora_dropout)


def _projected(
    tape: Tape, weights: Weights, spec: Attention, hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    assert spec.query is not None
    assert spec.key is not None
    assert spec.value is not None
    parts = (spec.query, spec.key, spec.value)
    adapted = [own for part in parts if (own := _adapted(weights, part)) is not None]
    if len(adapted) == len(parts):
        query, key, value = several(tape, hidden, adapted, weights.plan.lora_dropout)
    else:
        query, key, value = (project(tape, weights, part, hidden) for part in parts)
    return query, key, value


def _adapted(weights: Weights, spec: Linear) -> Adapted | None:
    """The layer for a kernel that includes its adapter: one over a 4-bit weight; else None."""
    own = weights.linear(spec)
    apart = weights.plan.kernels != "fused" or own.quant in (None, "int8")
    if apart or own.down is None or own.up is None:
        return None
    return Adapted(spec.inputs, spec.outputs, weights.plan.lora_rank, own.down, own.up)
