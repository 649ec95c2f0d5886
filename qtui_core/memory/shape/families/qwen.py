"""Qwen 1.5 to 3, dense and mixtures of experts. Defaults are those of transformers 5.23, which has
no class for Qwen 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from qtui_core.memory.shape.config_reader import LARGEST_COUNT, Config, UnknownFamily
from qtui_core.memory.shape.families.llama_like import (
    DecoderFamily,
    Defaults,
    attention,
    gated_mlp,
    norm_pair,
    routed,
    sliding_layers,
)
from qtui_core.memory.shape.families.sizes import Sizes
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


def _qwen1(config: Config) -> ModelShape:
    """Raises UnknownFamily: the code of Qwen 1 is stored with its weights."""
    raise UnknownFamily(
        "Qwen 1 (model type 'qwen') has no class in transformers; its code comes with the weights "
        "and is never executed here. Qwen 1.5 and later are of type 'qwen2' and are known."
    )


def _qwen2(config: Config, sizes: Sizes) -> Iterable[Layer]:
    return _dense(config, sizes, attention(sizes, bias=True))


def _qwen3(config: Config, sizes: Sizes) -> Iterable[Layer]:
    return _dense(config, sizes, _normed(config, sizes))


def _qwen2_moe(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Routed experts, and a shared expert with its own gate."""
    window = _window(config)
    first = _first_windowed(config)
    windowed = config.flag("use_sliding_window", False)
    slide = sliding_layers(
        config, sizes, lambda index: windowed and index % 2 == 0 and index < first
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
    for slides, part in zip(slide, _sparse(config, sizes, experts), strict=True):
        yield _layer(sizes, replace(attend, window=window if slides else None), part)


def _qwen3_moe(config: Config, sizes: Sizes) -> Iterable[Layer]:
    attend = replace(_normed(config, sizes), window=_window(config))
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
    for part in _sparse(config, sizes, experts):
        yield _layer(sizes, attend, part)


def _layer(sizes: Sizes, attend: Attention, part: Mlp | Moe) -> Layer:
    return Layer(attention=attend, mlp=part, norms=norm_pair(sizes))


def _normed(config: Config, sizes: Sizes) -> Attention:
    """Attention of Qwen 3, with norms for each head of queries and keys."""
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
    window = _window(config)
    first = _first_windowed(config)
    for slides in sliding_layers(
        config, sizes, lambda index: window is not None and index >= first
    ):
        seen = window if slides else None
        yield _layer(sizes, replace(attend, window=seen), gated_mlp(sizes))


def _window(config: Config) -> int | None:
    """How many positions back a query sees; None for models without use_sliding_window."""
    windowed = config.flag("use_sliding_window", False)
    return config.optional_size("sliding_window", 4096) if windowed else None


def _first_windowed(config: Config) -> int:
    return config.size("max_window_layers", 28, least=0, most=LARGEST_COUNT)


def _sparse(config: Config, sizes: Sizes, experts: Moe) -> Iterator[Mlp | Moe]:
    """The feed-forward part of each layer: experts in each decoder_sparse_step-th layer that
    mlp_only_layers does not name, else dense."""
    step = config.size("decoder_sparse_step", 1, most=LARGEST_COUNT)
    dense = config.indices("mlp_only_layers") or ()
    for index in range(sizes.layers):
        sparse = index not in dense and (index + 1) % step == 0
        yield experts if sparse else gated_mlp(sizes)


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "qwen": _qwen1,
    "qwen2": DecoderFamily("Qwen2ForCausalLM", _QWEN2, _qwen2),
    "qwen3": DecoderFamily("Qwen3ForCausalLM", _QWEN3, _qwen3),
    "qwen2_moe": DecoderFamily("Qwen2MoeForCausalLM", _QWEN2_MOE, _qwen2_moe),
    "qwen3_moe": DecoderFamily("Qwen3MoeForCausalLM", _QWEN3_MOE, _qwen3_moe),
}
