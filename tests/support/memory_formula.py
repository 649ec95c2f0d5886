"""Formulas whose text is evaluated, and the letters that a model and a plan give them.

A formula is a sum of products, written without multiplication signs. Letters:

    N tokens of a micro batch     B sequences     S tokens of each, Z the same rounded up to 32
    h hidden size     I width of the MLP     a heads × their size     k the same of keys and values
    H heads     V vocabulary     L layers     P weights of the linear layers of a layer
    r rank     t adapters in a layer     m sum of their inputs     s sum of inputs and outputs
    n the same as m without the attention's output     u that, what several share counted once
    x sum of the inputs of adapters on q, k and v     D rotated elements of a head
    W trained parameters     C tokens of a chunk of the loss
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.plan.run_plan import RunPlan, adapters_of
from qtui_core.memory.shape.model_shape import (
    Attention,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    modules_of_layer,
)

_TERM: Final = re.compile(r"(\d*)([A-Za-z]*)")


@dataclass(frozen=True)
class Form:
    """A formula: its subject, its text, its value in bytes, and the reason for it."""

    name: str
    formula: str
    bytes: int
    reason: str


def evaluate(formula: str, letters: Mapping[str, int]) -> int:
    """The value of a sum of products such as "4Nh + 4N".

    Raises KeyError for a letter without a value, ValueError for a text that is no such sum.
    """
    total = 0
    for term in formula.split("+"):
        match = _TERM.fullmatch(term.strip())
        if match is None or not term.strip():
            raise ValueError(f"{formula!r} is no sum of products")
        number, names = match.groups()
        total += int(number or 1) * prod(letters[name] for name in names)
    return total


def letters_of(shape: ModelShape, plan: RunPlan) -> dict[str, int] | None:
    """The letters of a model and a plan in which every option has a value; None for a model that is
    not built like Llama, to which these formulas do not apply."""
    if not _is_llama(shape) or plan.padding_mask or plan.attention in ("eager", "efficient"):
        return None
    layer = shape.layers[0]
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(attention, Attention)
    assert isinstance(mlp, Mlp)
    adapted = _adapted(shape, plan)
    linears = [m for m in modules_of_layer(layer) if isinstance(m, Linear)]
    return {
        "N": plan.tokens,
        "B": plan.batch,
        "S": plan.sequence,
        "Z": -(-plan.sequence // 32) * 32,
        "h": shape.hidden,
        "I": mlp.down.inputs,
        "a": attention.heads * attention.head_dim,
        "k": attention.kv_heads * attention.head_dim,
        "H": attention.heads,
        "V": shape.vocabulary,
        "L": len(shape.layers),
        "P": sum(m.inputs * m.outputs for m in linears),
        "r": plan.lora_rank,
        "t": len(adapted),
        "m": sum(m.inputs for m in adapted),
        "s": sum(m.inputs + m.outputs for m in adapted),
        "n": sum(m.inputs for m in adapted if m != attention.out),
        "x": sum(m.inputs for m in adapted if m in _projections(attention)),
        "D": shape.rotary_dims,
        "u": _shared_inputs(attention, mlp, adapted),
    }


def _is_llama(shape: ModelShape) -> bool:
    """Whether every layer is norm, attention with rotated queries and keys, add, norm, gated MLP,
    add, with nothing else in it, and all layers are alike."""
    return (
        bool(shape.layers)
        and all(layer == shape.layers[0] for layer in shape.layers)
        and _is_llama_layer(shape.layers[0])
    )


def _is_llama_layer(layer: Layer) -> bool:
    attention, mlp = layer.attention, layer.mlp
    return (
        isinstance(attention, Attention)
        and isinstance(mlp, Mlp)
        and layer.arrangement == "pre"
        and not layer.residual_scale
        and attention.style == "llama"
        and attention.positions == "rope"
        and attention.rotary_dims == attention.head_dim
        and attention.query is not None
        and attention.query_norm is None
        and attention.window is None
        and not (attention.softcap or attention.dropout or attention.residual_dropout)
        and attention.causal
        and mlp.style == "llama"
        and mlp.gate is not None
        and mlp.activation == "silu"
        and not mlp.dropout
        and all(norm.kind == "rms" for norm in layer.norms)
    )


def _adapted(shape: ModelShape, plan: RunPlan) -> list[Linear]:
    prefix = f"{shape.layer_prefix}.0"
    return [
        module
        for module in modules_of_layer(shape.layers[0])
        if isinstance(module, Linear)
        and adapters_of(shape, plan).rank_on(f"{prefix}.{module.name}", module)
    ]


def _projections(attention: Attention) -> tuple[Linear | None, ...]:
    return attention.query, attention.key, attention.value


def _shared_inputs(attention: Attention, mlp: Mlp, adapted: list[Linear]) -> int:
    """Elements per token that adapters save without dropout, if none casts its own: queries, keys
    and values have one input, gate and up one, the MLP's output projection its own; that of
    attention's output projection is the output that the kernel saved."""
    total = 0
    if any(module in adapted for module in _projections(attention)):
        assert attention.query is not None
        total += attention.query.inputs
    if any(module in adapted for module in (mlp.gate, mlp.up)):
        assert mlp.gate is not None
        total += mlp.gate.inputs
    if mlp.down in adapted:
        total += mlp.down.inputs
    return total
