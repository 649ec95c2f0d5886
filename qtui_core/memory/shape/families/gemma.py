"""Gemma 1, 2 and 3: scaled embeddings, norms of one plus the weight; 2 and 3 with norms before and
after each part and windows in turn. Defaults are those of transformers 5.23."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    of_text,
    read_sizes,
)
from qtui_core.memory.shape.model_shape import Layer, ModelShape, Norm

_KIND: Final = "rms-one-plus"

_GEMMA: Final = Defaults(
    hidden=3072,
    intermediate=24576,
    layers=28,
    heads=16,
    kv_heads=16,
    head_dim=256,
    vocabulary=256000,
    activation="gelu_pytorch_tanh",
    tied=True,
    positions=8192,
)
_GEMMA2: Final = replace(_GEMMA, hidden=2304, intermediate=9216, layers=26, heads=8, kv_heads=4)
_GEMMA3: Final = replace(_GEMMA2, vocabulary=262_208, positions=131_072)


def gemma(config: Config) -> ModelShape:
    sizes = read_sizes(config, _GEMMA)
    if sizes.activation == "gelu":  # what the first releases say; the class means tanh's
        sizes = replace(sizes, activation="gelu_pytorch_tanh")
    bias = config.flag("attention_bias", False)
    layer = Layer(
        attention=attention(sizes, bias=bias, out_bias=bias),
        mlp=gated_mlp(sizes),
        norms=norm_pair(sizes, _KIND),
    )
    return decoder(
        config,
        sizes,
        (layer,) * sizes.layers,
        architecture="GemmaForCausalLM",
        defaults=_GEMMA,
        final_norm=Norm("model.norm", sizes.hidden, _KIND),
        embedding_scales_itself=True,
    )


def gemma2(config: Config) -> ModelShape:
    """Scores and logits are capped by a tanh; the class knows eager attention and flash-attn."""
    sizes = read_sizes(config, _GEMMA2, activation="hidden_activation", whole_heads=True)
    window = config.optional_size("sliding_window", 4096)
    bias = config.flag("attention_bias", False)
    attend = replace(
        attention(sizes, bias=bias, out_bias=bias, style="gemma2"),
        eager=True,
        softcap=config.number("attn_logit_softcapping", 50.0) is not None,
    )
    kinds = kinds_of_layers(config, sizes.layers, _every(2, sizes.layers))
    return decoder(
        config,
        sizes,
        (
            Layer(
                attention=replace(attend, window=window if kind == "sliding_attention" else None),
                mlp=gated_mlp(sizes),
                norms=_four_norms(sizes),
                arrangement="sandwich",
            )
            for kind in kinds
        ),
        architecture="Gemma2ForCausalLM",
        defaults=_GEMMA2,
        final_norm=Norm("model.norm", sizes.hidden, _KIND),
        embedding_scales_itself=True,
        logit_softcap=config.number("final_logit_softcapping", 30.0) is not None,
    )


def gemma3_text(config: Config) -> ModelShape:
    """Norms of queries and keys; five layers with a window to one without, each kind with tables
    of positions of its own."""
    sizes = read_sizes(config, _GEMMA3, activation="hidden_activation", whole_heads=True)
    window = config.optional_size("sliding_window", 4096)
    both_ways = config.flag("use_bidirectional_attention", False)
    if both_ways and window is not None:
        window = window // 2 + 1
    bias = config.flag("attention_bias", False)
    attend = replace(
        attention(
            sizes,
            bias=bias,
            out_bias=bias,
            query_norm=Norm("self_attn.q_norm", sizes.head_dim, _KIND),
            key_norm=Norm("self_attn.k_norm", sizes.head_dim, _KIND),
            style="gemma3",
        ),
        causal=not both_ways,
    )
    pattern = config.size("sliding_window_pattern", 6)
    kinds = kinds_of_layers(config, sizes.layers, _every(pattern, sizes.layers))
    tables = sorted(set(kinds))
    return decoder(
        config,
        sizes,
        (
            Layer(
                attention=replace(
                    attend,
                    window=window if kind == "sliding_attention" else None,
                    table=tables.index(kind),
                ),
                mlp=gated_mlp(sizes),
                norms=_four_norms(sizes),
                arrangement="sandwich",
            )
            for kind in kinds
        ),
        architecture="Gemma3ForCausalLM",
        defaults=_GEMMA3,
        final_norm=Norm("model.norm", sizes.hidden, _KIND),
        rotary_tables=len(tables),
        embedding_scales_itself=True,
        logit_softcap=config.number("final_logit_softcapping", None) is not None,
    )


def gemma3(config: Config) -> ModelShape:
    """The language model of a multimodal Gemma 3; what sees images is not counted."""
    return of_text(config, "gemma3_text", gemma3_text)


def _four_norms(sizes: Sizes) -> tuple[Norm, ...]:
    """The norms before and after attention, before and after the feed-forward part."""
    return (
        *norm_pair(sizes, _KIND),
        Norm("pre_feedforward_layernorm", sizes.hidden, _KIND),
        Norm("post_feedforward_layernorm", sizes.hidden, _KIND),
    )


def _every(period: int, layers: int) -> Iterator[str]:
    """Windows in all layers but each `period`-th."""
    for index in range(layers):
        yield "sliding_attention" if (index + 1) % period else "full_attention"


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma3_text": gemma3_text,
}
