"""Gemma 1, 2 and 3: scaled embeddings, norms that multiply by one plus the weight; 2 and 3 with
norms before and after each part and alternating windows. Defaults are those of transformers
5.23."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from qtui_core.memory.shape.config_reader import Config
from qtui_core.memory.shape.families.llama_like import (
    DecoderFamily,
    Defaults,
    attention,
    gated_mlp,
    norm_pair,
    of_text,
    read_sizes,
    sliding_layers,
)
from qtui_core.memory.shape.families.sizes import Sizes
from qtui_core.memory.shape.model_shape import Attention, Layer, ModelShape, Norm

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
_GEMMA2: Final = replace(
    _GEMMA,
    hidden=2304,
    intermediate=9216,
    layers=26,
    heads=8,
    kv_heads=4,
    activation_key="hidden_activation",
    whole_heads=True,
)
_GEMMA3: Final = replace(_GEMMA2, vocabulary=262_208, positions=131_072)


def _gemma_sizes(config: Config, defaults: Defaults) -> Sizes:
    """In the first releases "gelu" means the tanh approximation, which the class uses."""
    sizes = read_sizes(config, defaults)
    tanh = sizes.activation == "gelu"
    return replace(sizes, activation="gelu_pytorch_tanh") if tanh else sizes


def _gemma(config: Config, sizes: Sizes) -> Iterable[Layer]:
    bias = config.flag("attention_bias", False)
    layer = Layer(
        attention=attention(sizes, bias=bias, out_bias=bias),
        mlp=gated_mlp(sizes),
        norms=norm_pair(sizes, _KIND),
    )
    return (layer,) * sizes.layers


def _gemma2(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Scores and logits are capped by a tanh; the class supports eager attention and flash-attn
    only."""
    window = config.optional_size("sliding_window", 4096)
    bias = config.flag("attention_bias", False)
    attend = replace(
        attention(sizes, bias=bias, out_bias=bias, style="gemma2"),
        eager=True,
        softcap=config.number("attn_logit_softcapping", 50.0) is not None,
    )
    for slides in sliding_layers(config, sizes, lambda index: index % 2 == 0):
        yield _sandwich(sizes, replace(attend, window=window if slides else None))


def _gemma3(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Norms of queries and keys; of each six layers five have a window and one has none, and each
    kind has its own rotary tables."""
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
    slide = sliding_layers(config, sizes, lambda index: (index + 1) % pattern != 0)
    tables = sorted(set(slide))
    for slides in slide:
        seen = window if slides else None
        yield _sandwich(sizes, replace(attend, window=seen, table=tables.index(slides)))


def _sandwich(sizes: Sizes, attend: Attention) -> Layer:
    """A layer with norms before and after attention, and before and after the feed-forward part."""
    return Layer(
        attention=attend,
        mlp=gated_mlp(sizes),
        norms=(
            *norm_pair(sizes, _KIND),
            Norm("pre_feedforward_layernorm", sizes.hidden, _KIND),
            Norm("post_feedforward_layernorm", sizes.hidden, _KIND),
        ),
        arrangement="sandwich",
    )


_GEMMA3_TEXT: Final = DecoderFamily(
    "Gemma3ForCausalLM",
    _GEMMA3,
    _gemma3,
    embedding_scales_itself=True,
    logit_softcap=("final_logit_softcapping", None),
)

FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "gemma": DecoderFamily(
        "GemmaForCausalLM", _GEMMA, _gemma, _gemma_sizes, embedding_scales_itself=True
    ),
    "gemma2": DecoderFamily(
        "Gemma2ForCausalLM",
        _GEMMA2,
        _gemma2,
        embedding_scales_itself=True,
        logit_softcap=("final_logit_softcapping", 30.0),
    ),
    "gemma3": partial(of_text, "gemma3_text", _GEMMA3_TEXT),
    "gemma3_text": _GEMMA3_TEXT,
}
