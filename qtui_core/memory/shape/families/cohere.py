"""Cohere 1 and 2 (Command R): attention and feed-forward part in parallel after one norm. Defaults
are those of transformers 5.23."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from qtui_core.memory.shape.config_reader import Config
from qtui_core.memory.shape.families.llama_like import (
    DecoderFamily,
    Defaults,
    attention,
    gated_mlp,
    norm_pair,
    sliding_layers,
)
from qtui_core.memory.shape.families.sizes import Sizes
from qtui_core.memory.shape.model_shape import Attention, Layer, ModelShape, Norm

_COHERE: Final = Defaults(
    hidden=8192,
    intermediate=22528,
    layers=40,
    heads=64,
    vocabulary=256000,
    tied=True,
    positions=8192,
)


def _cohere(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Some models have norms of queries and keys, with weights for each head."""
    bias = config.flag("attention_bias", False)
    attend = attention(sizes, bias=bias, out_bias=bias, style="cohere")
    if config.flag("use_qk_norm", False):
        attend = replace(
            attend,
            query_norm=_head_norm("self_attn.q_norm", sizes.heads, sizes),
            key_norm=_head_norm("self_attn.k_norm", sizes.kv_heads, sizes),
        )
    return (_parallel(sizes, attend),) * sizes.layers


def _cohere2(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Of each four layers, three have a window and rotary positions, one has neither."""
    bias = config.flag("attention_bias", False)
    window = config.optional_size("sliding_window", 4096)
    pattern = config.size("sliding_window_pattern", 4)
    near = attention(sizes, bias=bias, out_bias=bias, window=window, style="cohere")
    full = replace(near, rotary_dims=0, window=None, positions="none")
    for slides in sliding_layers(config, sizes, lambda index: (index + 1) % pattern != 0):
        yield _parallel(sizes, near if slides and window is not None else full)


def _parallel(sizes: Sizes, attend: Attention) -> Layer:
    return Layer(
        attention=attend,
        mlp=gated_mlp(sizes),
        norms=norm_pair(sizes, "layer-plain")[:1],
        arrangement="parallel",
    )


def _head_norm(name: str, heads: int, sizes: Sizes) -> Norm:
    return Norm(name, sizes.head_dim, "layer-plain", shape=(heads, sizes.head_dim))


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "cohere": DecoderFamily(
        "CohereForCausalLM", _COHERE, _cohere, rotary_kind="interleaved", logit_scale=True
    ),
    "cohere2": DecoderFamily(
        "Cohere2ForCausalLM", _COHERE, _cohere2, rotary_kind="interleaved", logit_scale=True
    ),
}
