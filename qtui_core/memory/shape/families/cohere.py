"""Cohere 1 and 2 (Command R). Defaults are those of transformers 5.23."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from qtui_core.memory.shape.config_reader import Config, kinds_of_layers
from qtui_core.memory.shape.families.decoder import (
    Defaults,
    Sizes,
    attention,
    decoder,
    gated_mlp,
    norm_pair,
    read_sizes,
)
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


def cohere(config: Config) -> ModelShape:
    """Attention and feed-forward part side by side after one norm; some with norms of heads."""
    sizes = read_sizes(config, _COHERE)
    bias = config.flag("attention_bias", False)
    attend = attention(sizes, bias=bias, out_bias=bias, style="cohere")
    if config.flag("use_qk_norm", False):
        attend = replace(
            attend,
            query_norm=_head_norm("self_attn.q_norm", sizes.heads, sizes),
            key_norm=_head_norm("self_attn.k_norm", sizes.kv_heads, sizes),
        )
    return _cohere(config, sizes, (attend,) * sizes.layers, "CohereForCausalLM")


def cohere2(config: Config) -> ModelShape:
    """Three layers with a window and rotation to one with neither."""
    sizes = read_sizes(config, _COHERE)
    bias = config.flag("attention_bias", False)
    window = config.optional_size("sliding_window", 4096)
    pattern = config.size("sliding_window_pattern", 4)
    kinds = kinds_of_layers(
        config,
        sizes.layers,
        (
            "sliding_attention" if (index + 1) % pattern else "full_attention"
            for index in range(sizes.layers)
        ),
    )
    full = replace(
        attention(sizes, bias=bias, out_bias=bias, rotary_dims=0, style="cohere"),
        positions="none",
    )
    near = attention(sizes, bias=bias, out_bias=bias, window=window, style="cohere")
    attends = tuple(
        near if kind == "sliding_attention" and window is not None else full for kind in kinds
    )
    return _cohere(config, sizes, attends, "Cohere2ForCausalLM")


def _cohere(
    config: Config, sizes: Sizes, attends: tuple[Attention, ...], architecture: str
) -> ModelShape:
    return decoder(
        config,
        sizes,
        (
            Layer(
                attention=attend,
                mlp=gated_mlp(sizes),
                norms=norm_pair(sizes, "layer-plain")[:1],
                arrangement="parallel",
            )
            for attend in attends
        ),
        architecture=architecture,
        defaults=_COHERE,
        final_norm=Norm("model.norm", sizes.hidden, "layer-plain"),
        rotary_kind="interleaved",
        logit_scale=True,
    )


def _head_norm(name: str, heads: int, sizes: Sizes) -> Norm:
    return Norm(name, sizes.head_dim, "layer-plain", shape=(heads, sizes.head_dim))


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "cohere": cohere,
    "cohere2": cohere2,
}
