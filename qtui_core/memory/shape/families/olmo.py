"""OLMo 1 and 2. Defaults are those of transformers 5.23."""

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
)
from qtui_core.memory.shape.families.sizes import Sizes
from qtui_core.memory.shape.model_shape import Layer, ModelShape, Norm

_OLMO: Final = Defaults(hidden=4096, intermediate=11008, layers=32, heads=32, vocabulary=50304)


def _olmo(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Layer norms without weights; rotary tables stay in float32."""
    bias = config.flag("attention_bias", False)
    layer = Layer(
        attention=replace(
            attention(sizes, bias=bias, out_bias=bias, style="olmo"),
            clip=config.number("clip_qkv", None) is not None,
        ),
        mlp=gated_mlp(sizes),
        norms=tuple(replace(norm, weight=False) for norm in norm_pair(sizes, "layer-fp32")),
    )
    return (layer,) * sizes.layers


def _olmo2(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Norms after attention and feed-forward part, and over all heads of queries and of keys."""
    bias = config.flag("attention_bias", False)
    kind = "rms-cast-last"
    layer = Layer(
        attention=attention(
            sizes,
            bias=bias,
            out_bias=bias,
            query_norm=Norm("self_attn.q_norm", sizes.queries, kind),
            key_norm=Norm("self_attn.k_norm", sizes.keys, kind),
            style="olmo",
        ),
        mlp=gated_mlp(sizes),
        norms=(
            Norm("post_attention_layernorm", sizes.hidden, kind),
            Norm("post_feedforward_layernorm", sizes.hidden, kind),
        ),
        arrangement="post",
    )
    return (layer,) * sizes.layers


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "olmo": DecoderFamily("OlmoForCausalLM", _OLMO, _olmo, rotary_kind="float32"),
    "olmo2": DecoderFamily("Olmo2ForCausalLM", _OLMO, _olmo2, rotary_kind="float32"),
}
