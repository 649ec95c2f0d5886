"""Qwen 3.5 and Qwen3-Next: of each four layers, three have a gated delta net in place of
attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, Literal

from qtui_core.memory.shape.config_reader import LARGEST_COUNT, Config
from qtui_core.memory.shape.families.decoder import DecoderFamily, Sizes, sizes_of, with_attention
from qtui_core.memory.shape.model_shape import (
    Attention,
    CachedTensor,
    DeltaNet,
    Layer,
    Linear,
    Norm,
    Parameter,
)

#: What a gated delta net keeps of a sequence: the last columns of its convolution, and its state.
KEPT: Final = ("2 · heads_k · dim_k · kernel + heads_v · dim_v · kernel", "heads_v · dim_k · dim_v")

NOTE: Final = (
    "layers of linear attention are counted in the operations of torch that transformers runs "
    "where the package fla is missing; with its kernels they need less."
)


def sizes_of_mixture(row: DecoderFamily, config: Config) -> Sizes:
    """A mixture in all layers need not say how wide a dense feed-forward part would be."""
    return sizes_of(row, replace(config, values={"intermediate_size": 1, **config.values}))


def layers_of(
    usual_layers: Callable[[DecoderFamily, Config, Sizes], Iterable[Layer]], apart: bool,
    row: DecoderFamily, config: Config, sizes: Sizes,
) -> list[Layer]:  # fmt: skip
    """Usual layers, whose attention gets a gate; most have a gated delta net in its place. `apart`:
    with a product for each of its inputs.

    Raises UsageError if heads of keys cannot be shared among those of values.
    """
    period = config.size("full_attention_interval", 4, most=LARGEST_COUNT)
    usual = (
        "linear_attention" if (index + 1) % period else "full_attention"
        for index in range(sizes.layers)
    )  # fmt: skip
    kinds = config.each("layer_types", str, sizes.layers, usual)
    given = list(usual_layers(row, config, sizes))
    net = _delta_net(config, sizes, apart=apart)
    near = with_attention(given, lambda _: net)
    far = with_attention(given, _gated)
    return [
        linear if kind == "linear_attention" else full
        for kind, linear, full in zip(kinds, near, far, strict=True)
    ]


def _gated(attend: Attention) -> Attention:
    query: Any = attend.query
    return replace(attend, query=replace(query, outputs=2 * query.outputs))


def _delta_net(config: Config, sizes: Sizes, *, apart: bool) -> Attention:
    """A token reads and writes its state, which is as much work as attention that sees as many
    positions as a head of keys has elements."""
    heads_k = config.size("linear_num_key_heads", 16, most=LARGEST_COUNT)
    heads_v = config.size("linear_num_value_heads", 32, most=LARGEST_COUNT)
    if heads_v % heads_k:
        raise config.refuse(
            f"linear_num_value_heads {heads_v:,} cannot share {heads_k:,} heads of keys "
            "(linear_num_key_heads)."
        )
    dim_k = config.size("linear_key_head_dim", 128)
    dim_v = config.size("linear_value_head_dim", 128)
    kernel = config.size("linear_conv_kernel_dim", 4, most=LARGEST_COUNT)
    keys, values = heads_k * dim_k, heads_v * dim_v
    channels = 2 * keys + values
    named = {"heads_k": heads_k, "dim_k": dim_k, "heads_v": heads_v, "dim_v": dim_v,
             "kernel": kernel}  # fmt: skip

    def kept(what: str, formula: str, dtype: Literal["activations", "fp32"]) -> CachedTensor:
        used = tuple((word, named[word]) for word in formula.split() if word in named)
        return CachedTensor(f"linear attention, {what}", formula, used, "sequence", dtype=dtype)

    names = {"mixed": ("qkv", channels), "gate": ("z", values), "beta": ("b", heads_v),
             "decay": ("a", heads_v)} if apart else {
             "mixed": ("qkvz", channels + values), "beta": ("ba", 2 * heads_v)}  # fmt: skip
    products: dict[str, Any] = {
        field: Linear(f"linear_attn.in_proj_{name}", sizes.hidden, outputs)
        for field, (name, outputs) in names.items()
    }
    net = DeltaNet(
        **products,
        heads=heads_v,
        key_heads=heads_k,
        head_dim=dim_v,
        key_dim=dim_k,
        kernel=kernel,
        norm=Norm("linear_attn.norm", dim_v, "rms-gated"),
        extra=(
            Parameter("linear_attn.conv1d.weight", (channels, 1, kernel)),
            Parameter("linear_attn.dt_bias", (heads_v,)),
            Parameter("linear_attn.A_log", (heads_v,)),
        ),
        activation=sizes.activation,
    )
    return Attention(
        heads=heads_v,
        kv_heads=heads_k,
        head_dim=dim_v,
        window=dim_k,
        positions="none",
        out=Linear("linear_attn.out_proj", values, sizes.hidden),
        keeps=(kept("convolution", KEPT[0], "activations"), kept("state", KEPT[1], "fp32")),
        style="delta",
        net=net,
    )
