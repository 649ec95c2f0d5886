"""Which function runs an attention, and which a feed-forward part, by the style of its spec."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

from qtui_core.memory.tape.blocks.attention.attention import Attended
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.tape import Tape, Tensor

Attend = Callable[[Tape, Weights, Any, Tensor, Pass], Attended]
Feed = Callable[[Tape, Weights, Any, Tensor], Tensor]

#: Module of this package and function for each style of attention.
_ATTENTIONS: Final[dict[str, tuple[str, str]]] = {
    "fused": ("fused_kernels", "attention"),
    "llama": ("attention", "llama"),
    "gemma2": ("attention", "llama"),
    "gemma3": ("attention_kinds", "gemma3"),
    "olmo": ("attention_kinds", "olmo"),
    "cohere": ("attention_kinds", "cohere"),
    "phi3": ("attention_kinds", "phi3"),
    "stablelm": ("attention_kinds", "stablelm"),
    "llama4": ("attention_kinds", "llama4"),
    "llama4-tuned": ("attention_kinds", "llama4"),
    "gpt2": ("attention", "gpt2"),
    "gpt_bigcode": ("attention", "gpt2"),
    "gpt_neox": ("partly_rotated", "gpt_neox"),
    "phi": ("partly_rotated", "phi"),
    "opt": ("partly_rotated", "opt"),
    "bert": ("partly_rotated", "bert"),
    "falcon": ("falcon", "attention"),
    "falcon_grouped": ("falcon", "attention"),
    "deepseek_v2": ("latent", "latent"),
    "deepseek_v3": ("latent", "latent"),
}

#: The same for each style of feed-forward part.
_MLPS: Final[dict[str, tuple[str, str]]] = {
    "fused": ("fused_kernels", "feed_forward"),
    "llama": ("mlp", "gated"),
    "phi3": ("mlp", "fused"),
    "mixtral": ("moe", "mixtral"),
    "granitemoe": ("moe", "mixtral"),
    "qwen3_moe": ("moe", "mixtral"),
    "qwen2_moe": ("moe", "qwen2"),
    "deepseek_v2": ("moe", "deepseek"),
    "deepseek_v3": ("moe", "deepseek"),
    "gpt2": ("mlp", "plain"),
    "gpt_bigcode": ("mlp", "plain"),
    "gpt_neox": ("mlp", "plain"),
    "phi": ("mlp", "plain"),
    "falcon": ("mlp", "plain"),
}


@cache
def attention_style(style: str) -> Attend:
    """How a style of attention runs. Its module is imported with the first of them."""
    function: Attend = _found(*_ATTENTIONS[style])
    return function


@cache
def feed_forward_style(style: str) -> Feed:
    """How a style of feed-forward part runs. Its module is imported with the first of them."""
    function: Feed = _found(*_MLPS[style])
    return function


def _found(module: str, name: str) -> Any:
    return getattr(import_module(f"qtui_core.memory.tape.blocks.{module}"), name)
