"""Falcon: one fused product for queries, keys and values in three layouts, and no SDPA flags of
its own, so its attention takes a mask that is always made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.shape.config_reader import (
    LARGEST_COUNT,
    LARGEST_LENGTH,
    Config,
    layer_count,
    stored_dtype,
)
from qtui_core.memory.shape.families.gpt import divided, layer_norm
from qtui_core.memory.shape.families.rotary import rotary_buffers
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Norm,
)


def falcon(config: Config) -> ModelShape:
    """FalconForCausalLM: 40B and 180B (`new_decoder_architecture`, groups of heads), 7B
    (`multi_query`, one head of keys), RW (neither; alibi, norms before each part).

    The rotary module is built with alibi too, and so are its buffers.
    """
    hidden = config.needed(("n_embed", "hidden_size"), 4544)
    heads = config.needed("num_attention_heads", 71, most=LARGEST_COUNT)
    vocabulary = config.needed("vocab_size", 65024)
    inner = config.optional_size("ffn_hidden_size") or 4 * hidden
    head_dim = divided(config, hidden, heads)
    grouped = config.flag("new_decoder_architecture", False)
    bias = config.flag("bias", False)
    alibi = config.flag("alibi", False)
    groups = config.optional_size("num_kv_heads", most=LARGEST_COUNT) or heads
    kv_heads = groups if grouped else 1 if config.flag("multi_query", True) else heads
    if heads % kv_heads:
        raise config.refuse(f"{kv_heads} heads of keys do not divide {heads} heads.")
    parallel = config.flag("parallel_attn", True)
    dims = 0 if alibi else head_dim

    def product(name: str, inputs: int, outputs: int) -> Linear:
        return Linear(name, inputs, outputs, bias, bias_apart=bias)

    layer = Layer(
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            fused=product(
                "self_attention.query_key_value", hidden, hidden + 2 * kv_heads * head_dim
            ),
            out=product("self_attention.dense", hidden, hidden),
            positions="alibi" if alibi else "rope",
            rotary_dims=dims,
            dropout=config.probability("attention_dropout"),
            # Not hidden_dropout: FalconDecoderLayer hands attention_dropout to that dropout_add.
            residual_dropout=0.0 if parallel else config.probability("attention_dropout"),
            style="falcon_grouped" if grouped else "falcon",
        ),
        mlp=Mlp(
            up=product("mlp.dense_h_to_4h", hidden, inner),
            down=product("mlp.dense_4h_to_h", inner, hidden),
            activation=config.text("activation", "gelu"),
            style="falcon",
        ),
        norms=_norms(config, hidden, grouped, parallel),
        arrangement="parallel" if parallel else "pre",
        dropout=config.probability("hidden_dropout"),
    )
    return ModelShape(
        family="falcon",
        architecture="FalconForCausalLM",
        hidden=hidden,
        vocabulary=vocabulary,
        embeddings=(Embedding("transformer.word_embeddings", vocabulary, hidden),),
        layers=(layer,) * layer_count(config, 32),
        layer_prefix="transformer.h",
        final_norm=layer_norm("transformer.ln_f", hidden),
        head=Linear("lm_head", hidden, vocabulary),
        tied=config.flag("tie_word_embeddings", True),
        rotary_dims=dims,
        buffers=rotary_buffers(head_dim),
        dtype=stored_dtype(config),
        max_positions=config.size("max_position_embeddings", 2048, most=LARGEST_LENGTH),
    )


def _norms(config: Config, hidden: int, grouped: bool, parallel: bool) -> tuple[Norm, ...]:
    """The norms of a layer, in the order they are used."""
    names: tuple[str, ...]
    if not parallel:
        names = ("input_layernorm", "post_attention_layernorm")
    elif (config.optional_size("num_ln_in_parallel_attn") or (2 if grouped else 1)) == 2:
        names = ("ln_attn", "ln_mlp")
    else:
        names = ("input_layernorm",)
    if len(names) == 2 and parallel and not grouped:
        raise config.refuse(
            "num_ln_in_parallel_attn is 2, which only the new decoder architecture has."
        )
    if grouped and not parallel:
        raise config.refuse("the new decoder architecture needs parallel_attn.")
    return tuple(layer_norm(name, hidden) for name in names)


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {"falcon": falcon}
