"""BLOOM: alibi, a norm of the embeddings, and attention that always makes the matrix of scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.shape.config_reader import LARGEST_COUNT, Config, layer_count, stored_dtype
from qtui_core.memory.shape.families.gpt import divided, layer_norm
from qtui_core.memory.shape.model_shape import Attention, Embedding, Layer, Linear, Mlp, ModelShape


def bloom(config: Config) -> ModelShape:
    """BloomForCausalLM. `n_embed` of old configurations is the hidden size."""
    hidden = config.needed(("n_embed", "hidden_size"), 64)
    heads = config.needed(("num_attention_heads", "n_head"), 8, most=LARGEST_COUNT)
    vocabulary = config.needed("vocab_size", 250880)
    head_dim = divided(config, hidden, heads)
    dropout = config.probability("hidden_dropout")
    layer = Layer(
        attention=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            fused=Linear("self_attention.query_key_value", hidden, 3 * hidden, bias=True),
            out=Linear("self_attention.dense", hidden, hidden, bias=True),
            positions="alibi",
            eager=True,
            dropout=config.probability("attention_dropout"),
            residual_dropout=dropout,
            style="bloom",
        ),
        mlp=Mlp(
            up=Linear("mlp.dense_h_to_4h", hidden, 4 * hidden, bias=True),
            down=Linear("mlp.dense_4h_to_h", 4 * hidden, hidden, bias=True),
            activation="bloom_gelu",
            dropout=dropout,
            style="bloom",
        ),
        norms=(
            layer_norm("input_layernorm", hidden),
            layer_norm("post_attention_layernorm", hidden),
        ),
        normed_residual=config.flag("apply_residual_connection_post_layernorm", False),
    )
    return ModelShape(
        family="bloom",
        architecture="BloomForCausalLM",
        hidden=hidden,
        vocabulary=vocabulary,
        embeddings=(Embedding("transformer.word_embeddings", vocabulary, hidden),),
        layers=(layer,) * layer_count(config, 2, ("num_hidden_layers", "n_layer")),
        layer_prefix="transformer.h",
        final_norm=layer_norm("transformer.ln_f", hidden),
        head=Linear("lm_head", hidden, vocabulary),
        tied=config.flag("tie_word_embeddings", True),
        embedding_modules=(layer_norm("transformer.word_embeddings_layernorm", hidden),),
        dtype=stored_dtype(config),
    )


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {"bloom": bloom}
