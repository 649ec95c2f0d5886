"""OPT: learned positions, and in the 350M model embeddings narrower than the layers and norms
after the sums."""

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
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    Mlp,
    ModelShape,
)

#: Rows of the table of positions before the first (OPTLearnedPositionalEmbedding.offset).
_OFFSET: Final = 2


def opt(config: Config) -> ModelShape:
    """OPTForCausalLM. Without `do_layer_norm_before` there is no final norm."""
    hidden = config.needed("hidden_size", 768)
    heads = config.needed("num_attention_heads", 12, most=LARGEST_COUNT)
    inner = config.needed("ffn_dim", 3072)
    vocabulary = config.needed("vocab_size", 50272)
    width = config.optional_size("word_embed_proj_dim") or hidden
    positions = config.size("max_position_embeddings", 2048, most=LARGEST_LENGTH)
    before = config.flag("do_layer_norm_before", True)
    affine = config.flag("layer_norm_elementwise_affine", True)
    head_dim = divided(config, hidden, heads)
    bias = config.flag("enable_bias", True)
    dropout = config.probability("dropout", 0.1)

    def projection(name: str) -> Linear:
        return Linear(f"self_attn.{name}", hidden, hidden, bias)

    layer = Layer(
        attention=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            query=projection("q_proj"),
            key=projection("k_proj"),
            value=projection("v_proj"),
            out=projection("out_proj"),
            positions="learned",
            dropout=config.probability("attention_dropout"),
            residual_dropout=dropout,
            style="opt",
        ),
        mlp=Mlp(
            up=Linear("fc1", hidden, inner, bias),
            down=Linear("fc2", inner, hidden, bias),
            activation=config.text("activation_function", "relu"),
            dropout=dropout,
            style="opt",
        ),
        norms=(
            layer_norm("self_attn_layer_norm", hidden, affine),
            layer_norm("final_layer_norm", hidden, affine),
        ),
        arrangement="pre" if before else "post-add",
    )
    final = before and not config.flag("_remove_final_layer_norm", False)
    projects = width != hidden
    return ModelShape(
        family="opt",
        architecture="OPTForCausalLM",
        hidden=hidden,
        vocabulary=vocabulary,
        embeddings=(
            Embedding("model.decoder.embed_tokens", vocabulary, width),
            Embedding("model.decoder.embed_positions", positions + _OFFSET, hidden),
        ),
        layers=(layer,) * layer_count(config, 12),
        layer_prefix="model.decoder.layers",
        final_norm=layer_norm("model.decoder.final_layer_norm", hidden, affine) if final else None,
        head=Linear("lm_head", width, vocabulary),
        tied=config.flag("tie_word_embeddings", True),
        head_modules=(Linear("model.decoder.project_out", hidden, width),) if projects else (),
        embedding_modules=(Linear("model.decoder.project_in", width, hidden),) if projects else (),
        dtype=stored_dtype(config),
        max_positions=positions,
    )


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {"opt": opt}
