"""Which function runs an attention, and which a feed-forward part, by the style of its spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qtui_core.memory.blocks import (
    attention,
    attention_kinds,
    falcon,
    latent,
    mlp,
    moe,
    partly_rotated,
)
from qtui_core.memory.blocks.attention import Attended
from qtui_core.memory.blocks.state import Pass
from qtui_core.memory.blocks.weights import Weights
from qtui_core.memory.tape import Tape, Tensor

#: How each style of attention runs.
ATTENTIONS: Final[dict[str, Callable[[Tape, Weights, Any, Tensor, Pass], Attended]]] = {
    "llama": attention.llama,
    "gemma2": attention.llama,
    "gemma3": attention_kinds.gemma3,
    "olmo": attention_kinds.olmo,
    "cohere": attention_kinds.cohere,
    "phi3": attention_kinds.phi3,
    "stablelm": attention_kinds.stablelm,
    "llama4": attention_kinds.llama4,
    "llama4-tuned": attention_kinds.llama4,
    "gpt2": attention.gpt2,
    "gpt_bigcode": attention.gpt2,
    "gpt_neox": partly_rotated.gpt_neox,
    "phi": partly_rotated.phi,
    "opt": partly_rotated.opt,
    "bert": partly_rotated.bert,
    "falcon": falcon.attention,
    "falcon_grouped": falcon.attention,
    "deepseek_v2": latent.latent,
    "deepseek_v3": latent.latent,
}

#: How each style of feed-forward part runs.
MLPS: Final[dict[str, Callable[[Tape, Weights, Any, Tensor], Tensor]]] = {
    "llama": mlp.gated,
    "phi3": mlp.fused,
    "mixtral": moe.mixtral,
    "granitemoe": moe.mixtral,
    "qwen3_moe": moe.mixtral,
    "qwen2_moe": moe.qwen2,
    "deepseek_v2": moe.deepseek,
    "deepseek_v3": moe.deepseek,
    "gpt2": mlp.plain,
    "gpt_bigcode": mlp.plain,
    "gpt_neox": mlp.plain,
    "phi": mlp.plain,
    "falcon": mlp.plain,
}
