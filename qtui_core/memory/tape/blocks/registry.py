"""The function for each style of attention and of feed-forward part."""

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

#: For each style of attention, its module in this package and its function.
_ATTENTIONS: Final[dict[str, tuple[str, str]]] = {
    "fused": ("layers.fused_kernels", "attention"),
    "llama": ("attention.attention", "llama"),
    "gemma2": ("attention.attention", "llama"),
    "gemma3": ("attention.llama_like", "gemma3"),
    "olmo": ("attention.llama_like", "olmo"),
    "cohere": ("attention.llama_like", "cohere"),
    "phi3": ("attention.llama_like", "phi3"),
    "stablelm": ("attention.llama_like", "stablelm"),
    "llama4": ("attention.llama_like", "llama4"),
    "llama4-tuned": ("attention.llama_like", "llama4"),
    "gpt2": ("attention.attention", "gpt2"),
    "gpt_bigcode": ("attention.attention", "gpt2"),
    "gpt_neox": ("attention.gpt_like", "gpt_neox"),
    "phi": ("attention.gpt_like", "phi"),
    "opt": ("attention.gpt_like", "opt"),
    "bert": ("attention.gpt_like", "bert"),
    "falcon": ("layers.falcon", "attention"),
    "falcon_grouped": ("layers.falcon", "attention"),
    "deepseek_v2": ("attention.latent", "latent"),
    "deepseek_v3": ("attention.latent", "latent"),
}

#: The same for each style of feed-forward part.
_MLPS: Final[dict[str, tuple[str, str]]] = {
    "fused": ("layers.fused_kernels", "feed_forward"),
    "llama": ("feedforward.mlp", "gated"),
    "phi3": ("feedforward.mlp", "fused"),
    "mixtral": ("feedforward.moe", "mixtral"),
    "granitemoe": ("feedforward.moe", "mixtral"),
    "qwen3_moe": ("feedforward.moe", "mixtral"),
    "qwen2_moe": ("feedforward.moe", "qwen2"),
    "deepseek_v2": ("feedforward.moe", "deepseek"),
    "deepseek_v3": ("feedforward.moe", "deepseek"),
    "gpt2": ("feedforward.mlp", "plain"),
    "gpt_bigcode": ("feedforward.mlp", "plain"),
    "gpt_neox": ("feedforward.mlp", "plain"),
    "phi": ("feedforward.mlp", "plain"),
    "falcon": ("feedforward.mlp", "plain"),
}


@cache
def attention_style(style: str) -> Attend:
    """The function for a style of attention. Its module is imported at the first use."""
    function: Attend = _found(*_ATTENTIONS[style])
    return function


@cache
def feed_forward_style(style: str) -> Feed:
    """The function for a style of feed-forward part. Its module is imported at the first use."""
    function: Feed = _found(*_MLPS[style])
    return function


def _found(module: str, name: str) -> Any:
    return getattr(import_module(f"qtui_core.memory.tape.blocks.{module}"), name)
