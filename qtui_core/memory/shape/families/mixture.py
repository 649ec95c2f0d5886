"""Mixtures of experts: Mixtral, GraniteMoe (PowerLM, PowerMoE), Llama 4. Defaults are those of
transformers 5.23."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from qtui_core.memory.shape.config_reader import LARGEST_COUNT, Config, kinds_of_layers
from qtui_core.memory.shape.families.llama_like import (
    DecoderFamily,
    Defaults,
    attention,
    gated_mlp,
    norm_pair,
    of_text,
    routed,
)
from qtui_core.memory.shape.families.sizes import Sizes
from qtui_core.memory.shape.model_shape import Layer, ModelShape, Moe, Parameter

_MIXTRAL: Final = Defaults(
    hidden=4096,
    intermediate=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    vocabulary=32000,
    positions=4096 * 32,
)
_GRANITE_MOE: Final = Defaults(
    hidden=4096, intermediate=11008, layers=32, heads=32, vocabulary=32000
)
_LLAMA4: Final = Defaults(
    hidden=5120,
    intermediate=8192,
    layers=48,
    heads=40,
    kv_heads=8,
    head_dim=128,
    vocabulary=202048,
    positions=4096 * 32,
)


def _mixtral(config: Config, sizes: Sizes) -> Iterable[Layer]:
    layer = Layer(
        attention=attention(sizes, window=config.optional_size("sliding_window")),
        mlp=routed(
            config,
            sizes,
            experts=config.size(("num_local_experts", "num_experts"), 8, most=LARGEST_COUNT),
            top_k=config.size("num_experts_per_tok", 2, most=LARGEST_COUNT),
            width=sizes.intermediate,
            prefix="mlp",
            router="gate",
            style="mixtral",
            normalized=True,
        ),
        norms=norm_pair(sizes),
    )
    return (layer,) * sizes.layers


def _granitemoe(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Granite's factors with a mixture of experts."""
    bias = config.flag("attention_bias", False)
    layer = Layer(
        attention=attention(sizes, bias=bias, out_bias=bias),
        mlp=routed(
            config,
            sizes,
            experts=config.size("num_local_experts", 8, most=LARGEST_COUNT),
            top_k=config.size("num_experts_per_tok", 2, most=LARGEST_COUNT),
            width=sizes.intermediate,
            prefix="block_sparse_moe",
            router="router",
            style="granitemoe",
            normalized=True,
        ),
        norms=norm_pair(sizes),
        residual_scale=True,
    )
    return (layer,) * sizes.layers


def _llama4(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Every expert works on every token, weighted by its score, beside a shared expert. Most layers
    rotate queries and keys and see one chunk of the sequence; each fourth does neither."""
    bias = config.flag("attention_bias", False)
    rotating = config.indices("no_rope_layers") or _but_each(
        config.size("no_rope_layer_interval", 4, most=LARGEST_COUNT), sizes.layers
    )
    if len(rotating) != sizes.layers:
        raise config.refuse(
            f"no_rope_layers speaks of {len(rotating):,} layers, num_hidden_layers is "
            f"{sizes.layers:,}."
        )
    kinds = kinds_of_layers(
        config,
        sizes.layers,
        ("chunked_attention" if rotates else "full_attention" for rotates in rotating),
    )
    chunk = config.optional_size("attention_chunk_size", 8192)
    unit_norm = config.flag("use_qk_norm", True)
    tuned = config.flag("attn_temperature_tuning", True)
    plain = attention(sizes, bias=bias, out_bias=bias, style="llama4")
    experts = _llama4_experts(config, sizes)
    dense = gated_mlp(
        sizes, intermediate=config.size("intermediate_size_mlp", 16384), prefix="feed_forward"
    )
    step = config.size("interleave_moe_layer_step", 1, most=LARGEST_COUNT)
    named = config.indices("moe_layers")
    sparse = range(step - 1, sizes.layers, step) if named is None else named
    for index, (rotates, kind) in enumerate(zip(rotating, kinds, strict=True)):
        chunked = kind == "chunked_attention"
        yield Layer(
            attention=replace(
                plain,
                positions="rope" if rotates else "none",
                rotary_dims=sizes.rotary_dims if rotates else 0,
                unit_norm=bool(rotates) and unit_norm,
                window=chunk if chunked else None,
                chunked=chunked,
                style="llama4" if rotates or not tuned else "llama4-tuned",
            ),
            mlp=experts if index in sparse else dense,
            norms=norm_pair(sizes, "rms-weight-last"),
        )


def _llama4_experts(config: Config, sizes: Sizes) -> Moe:
    """Experts with transposed weights, `[experts, inputs, outputs]`.

    The router is derived from a linear layer but returns two results: neither an adapter nor a
    quantized layer can replace it, so it is a parameter here.
    """
    moe = routed(
        config,
        sizes,
        experts=config.size("num_local_experts", 16, most=LARGEST_COUNT),
        top_k=config.size("num_experts_per_tok", 1, most=LARGEST_COUNT),
        width=sizes.intermediate,
        prefix="feed_forward",
        router="router",
        style="llama4",
        normalized=False,
        shared=gated_mlp(sizes, prefix="feed_forward.shared_expert"),
    )
    first, second = moe.stacked
    return replace(moe, stacked=(_turned(first), _turned(second)))


def _turned(experts: Parameter) -> Parameter:
    count, outputs, inputs = experts.shape
    return replace(experts, shape=(count, inputs, outputs))


def _but_each(period: int, layers: int) -> tuple[int, ...]:
    """1 for all layers except each `period`-th."""
    return tuple(int((index + 1) % period != 0) for index in range(layers))


_LLAMA4_TEXT: Final = DecoderFamily("Llama4ForCausalLM", _LLAMA4, _llama4, rotary_kind="complex")

FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "mixtral": DecoderFamily("MixtralForCausalLM", _MIXTRAL, _mixtral),
    "granitemoe": DecoderFamily(
        "GraniteMoeForCausalLM", _GRANITE_MOE, _granitemoe, embedding_scale=True, logit_scale=True
    ),
    "llama4": partial(of_text, "llama4_text", _LLAMA4_TEXT),
    "llama4_text": _LLAMA4_TEXT,
}
