"""Llama 1 to 3, and families that differ from it in biases, a window, fused products or scales:
Mistral, Phi-3, Granite, StableLM. Defaults are those of transformers 5.23."""

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
    layers_of_llama,
    norm_pair,
    read_sizes,
)
from qtui_core.memory.shape.families.sizes import Sizes, rotated
from qtui_core.memory.shape.model_shape import Attention, Layer, Linear, Mlp, ModelShape, Norm

_LLAMA: Final = Defaults(
    hidden=4096, intermediate=11008, layers=32, heads=32, vocabulary=32000, positions=2048
)
_MISTRAL: Final = replace(_LLAMA, intermediate=14336, kv_heads=8, positions=4096 * 32)
_PHI3: Final = Defaults(
    hidden=3072, intermediate=8192, layers=32, heads=32, vocabulary=32064, positions=4096,
    rotary_part=1.0,
)  # fmt: skip
_STABLELM: Final = Defaults(
    hidden=2560, intermediate=6912, layers=32, heads=32, kv_heads=32, vocabulary=50304,
    positions=4096, rotary_part=0.25, whole_heads=True,
)  # fmt: skip


def _windowed(config: Config, sizes: Sizes) -> Iterable[Layer]:
    layer = Layer(
        attention=attention(sizes, window=config.optional_size("sliding_window", 4096)),
        mlp=gated_mlp(sizes),
        norms=norm_pair(sizes),
    )
    return (layer,) * sizes.layers


def _scaled(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Each residual sum has a factor, which is multiplied even if it is one."""
    return (replace(layer, residual_scale=True) for layer in layers_of_llama(config, sizes))


def _phi3(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """One product gives queries, keys and values, another gives gate and up."""
    dropout = config.probability("resid_pdrop")
    layer = Layer(
        attention=Attention(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            fused=Linear("self_attn.qkv_proj", sizes.hidden, sizes.queries + 2 * sizes.keys),
            out=Linear("self_attn.o_proj", sizes.queries, sizes.hidden),
            rotary_dims=sizes.rotary_dims,
            window=config.optional_size("sliding_window"),
            dropout=sizes.attention_dropout,
            residual_dropout=dropout,
            style="phi3",
        ),
        mlp=Mlp(
            fused=Linear("mlp.gate_up_proj", sizes.hidden, 2 * sizes.intermediate),
            down=Linear("mlp.down_proj", sizes.intermediate, sizes.hidden),
            activation=sizes.activation,
            dropout=dropout,
            style="phi3",
        ),
        norms=norm_pair(sizes),
    )
    return (layer,) * sizes.layers


def _stablelm_sizes(config: Config, defaults: Defaults) -> Sizes:
    """A head has hidden / heads elements, whatever head_dim says."""
    sizes = read_sizes(config, defaults)
    head_dim = sizes.hidden // sizes.heads
    assert defaults.rotary_part is not None
    dims = rotated(config, head_dim, "partial_rotary_factor", defaults.rotary_part)
    return replace(sizes, head_dim=head_dim, rotary_dims=dims)


def _stablelm(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Layer norms with bias; a quarter of each head is rotated; in some models norms for each head
    of queries and keys; in some attention and feed-forward part in parallel."""
    parallel = config.flag("use_parallel_residual", False)
    attend = attention(sizes, bias=config.flag("use_qkv_bias", False), style="stablelm")
    if config.flag("qk_layernorm", False):
        attend = replace(
            attend,
            head_norms=tuple(
                Norm(f"self_attn.{side}_layernorm.norms.{head}", sizes.head_dim, "layer")
                for side, heads in (("q", sizes.heads), ("k", sizes.kv_heads))
                for head in range(heads)
            ),
        )
    norms = tuple(replace(norm, bias=True) for norm in norm_pair(sizes, "layer"))
    layer = Layer(
        attention=attend,
        mlp=replace(gated_mlp(sizes), dropout=config.probability("hidden_dropout")),
        norms=norms[:1] if parallel else norms,
        arrangement="parallel" if parallel else "pre",
    )
    return (layer,) * sizes.layers


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "llama": DecoderFamily("LlamaForCausalLM", replace(_LLAMA, whole_heads=True)),
    "mistral": DecoderFamily("MistralForCausalLM", _MISTRAL, _windowed),
    "phi3": DecoderFamily("Phi3ForCausalLM", _PHI3, _phi3),
    "granite": DecoderFamily(
        "GraniteForCausalLM", _LLAMA, _scaled, embedding_scale=True, logit_scale=True
    ),
    "stablelm": DecoderFamily("StableLmForCausalLM", _STABLELM, _stablelm, _stablelm_sizes),
}
