"""Qwen 1.5 to 3, dense and mixtures of experts. Defaults are those of transformers 5.23, which has
no class of Qwen 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from qtui_core.memory.shape.config_reader import (
    LARGEST_COUNT,
    Config,
    UnknownFamily,
    kinds_of_layers,
)
from qtui_core.memory.shape.families.decoder import (
    DecoderFamily,
    Defaults,
    Sizes,
    attention,
    decoder,
    gated_mlp,
    norm_pair,
    read_sizes,
    routed,
)
from qtui_core.memory.shape.model_shape import Attention, Layer, Linear, Mlp, ModelShape, Moe, Norm

_QWEN2: Final = Defaults(
    hidden=4096,
    intermediate=22016,
    layers=32,
    heads=32,
    kv_heads=32,
    vocabulary=151936,
    positions=32768,
)
_QWEN3: Final = replace(_QWEN2, head_dim=128)
_QWEN2_MOE: Final = replace(
    _QWEN2, hidden=2048, intermediate=5632, layers=24, heads=16, kv_heads=16
)
_QWEN3_MOE: Final = replace(_QWEN2_MOE, intermediate=6144, heads=32, kv_heads=4)


def qwen1(config: Config) -> ModelShape:
    """Raises UnknownFamily: the code of Qwen 1 lies beside its weights."""
    raise UnknownFamily(
        "Qwen 1 (model type 'qwen') has no class in transformers; its code comes with the weights "
        "and is never executed here. Qwen 1.5 and later are of type 'qwen2' and are known."
    )


def _qwen2_layers(config: Config, sizes: Sizes) -> Iterator[Layer]:
    return _dense(config, sizes, attention(sizes, bias=True))


def _qwen3_layers(config: Config, sizes: Sizes) -> Iterator[Layer]:
    return _dense(config, sizes, _normed(config, sizes))


def qwen2_moe(config: Config) -> ModelShape:
    """Routed experts beside a shared one with a gate of its own."""
    sizes = read_sizes(config, _QWEN2_MOE)
    windowed = config.flag("use_sliding_window", False)
    first = config.size("max_window_layers", 28, least=0, most=LARGEST_COUNT)
    window = config.optional_size("sliding_window", 4096) if windowed else None
    kinds = kinds_of_layers(
        config,
        sizes.layers,
        (
            "sliding_attention" if windowed and index % 2 == 0 and index < first else "full"
            for index in range(sizes.layers)
        ),
    )
    attend = attention(sizes, bias=config.flag("qkv_bias", True))
    experts = routed(
        config,
        sizes,
        experts=config.size(("num_experts", "num_local_experts"), 60, most=LARGEST_COUNT),
        top_k=config.size("num_experts_per_tok", 4, most=LARGEST_COUNT),
        width=config.size("moe_intermediate_size", 1408),
        prefix="mlp",
        router="gate",
        style="qwen2_moe",
        normalized=config.flag("norm_topk_prob", False),
        shared=gated_mlp(
            sizes,
            intermediate=config.size("shared_expert_intermediate_size", 5632),
            prefix="mlp.shared_expert",
        ),
        shared_gate=Linear("mlp.shared_expert_gate", sizes.hidden, 1),
    )
    return decoder(
        config,
        sizes,
        (
            Layer(
                attention=replace(attend, window=window if kind == "sliding_attention" else None),
                mlp=part,
                norms=norm_pair(sizes),
            )
            for kind, part in zip(kinds, _sparse(config, sizes, experts), strict=True)
        ),
        architecture="Qwen2MoeForCausalLM",
        defaults=_QWEN2_MOE,
    )


def qwen3_moe(config: Config) -> ModelShape:
    sizes = read_sizes(config, _QWEN3_MOE)
    windowed = config.flag("use_sliding_window", False)
    attend = replace(
        _normed(config, sizes),
        window=config.optional_size("sliding_window", 4096) if windowed else None,
    )
    experts = routed(
        config,
        sizes,
        experts=config.size(("num_local_experts", "num_experts"), 128, most=LARGEST_COUNT),
        top_k=config.size("num_experts_per_tok", 8, most=LARGEST_COUNT),
        width=config.size("moe_intermediate_size", 768),
        prefix="mlp",
        router="gate",
        style="qwen3_moe",
        normalized=config.flag("norm_topk_prob", False),
    )
    return decoder(
        config,
        sizes,
        (
            Layer(attention=attend, mlp=part, norms=norm_pair(sizes))
            for part in _sparse(config, sizes, experts)
        ),
        architecture="Qwen3MoeForCausalLM",
        defaults=_QWEN3_MOE,
    )


def _normed(config: Config, sizes: Sizes) -> Attention:
    """Attention of Qwen 3, with norms of each head of queries and keys."""
    bias = config.flag("attention_bias", False)
    return attention(
        sizes,
        bias=bias,
        out_bias=bias,
        query_norm=Norm("self_attn.q_norm", sizes.head_dim),
        key_norm=Norm("self_attn.k_norm", sizes.head_dim),
    )


def _dense(config: Config, sizes: Sizes, attend: Attention) -> Iterator[Layer]:
    """Dense layers; with use_sliding_window, those from max_window_layers on have a window."""
    windowed = config.flag("use_sliding_window", False)
    window = config.optional_size("sliding_window", 4096) if windowed else None
    first = config.size("max_window_layers", 28, least=0, most=LARGEST_COUNT)
    kinds = kinds_of_layers(
        config,
        sizes.layers,
        (
            "sliding_attention" if window is not None and index >= first else "full_attention"
            for index in range(sizes.layers)
        ),
    )
    for kind in kinds:
        yield Layer(
            attention=replace(attend, window=window if kind == "sliding_attention" else None),
            mlp=gated_mlp(sizes),
            norms=norm_pair(sizes),
        )


def _sparse(config: Config, sizes: Sizes, experts: Moe) -> Iterator[Mlp | Moe]:
    """The feed-forward part of each layer: experts in each decoder_sparse_step-th that
    mlp_only_layers does not name, dense in others."""
    step = config.size("decoder_sparse_step", 1, most=LARGEST_COUNT)
    dense = config.indices("mlp_only_layers") or ()
    for index in range(sizes.layers):
        sparse = index not in dense and (index + 1) % step == 0
        yield experts if sparse else gated_mlp(sizes)


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "qwen": qwen1,
    "qwen2": DecoderFamily("Qwen2ForCausalLM", _QWEN2, _qwen2_layers),
    "qwen3": DecoderFamily("Qwen3ForCausalLM", _QWEN3, _qwen3_layers),
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
}
