"""GPT-NeoX (Pythia) and Phi 1 to 2: rotary positions over a part of a head, attention and
feed-forward side by side."""

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
from qtui_core.memory.shape.families.rotary import rotary_buffers, rotated
from qtui_core.memory.shape.model_shape import Attention, Embedding, Layer, Linear, Mlp, ModelShape


def gpt_neox(config: Config) -> ModelShape:
    """GPTNeoXForCausalLM. `use_parallel_residual` off makes it a usual pre-norm layer."""
    hidden = config.needed("hidden_size", 6144)
    heads = config.needed("num_attention_heads", 64, most=LARGEST_COUNT)
    inner = config.needed("intermediate_size", 24576)
    vocabulary = config.needed("vocab_size", 50432)
    head_dim = divided(config, hidden, heads)
    dims = rotated(config, head_dim, "rotary_pct", 0.25)
    dropout = config.probability("hidden_dropout")
    bias = config.flag("attention_bias", True)
    layer = Layer(
        attention=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            fused=Linear("attention.query_key_value", hidden, 3 * hidden, bias),
            out=Linear("attention.dense", hidden, hidden, bias),
            rotary_dims=dims,
            dropout=config.probability("attention_dropout"),
            residual_dropout=dropout,
            style="gpt_neox",
        ),
        mlp=Mlp(
            up=Linear("mlp.dense_h_to_4h", hidden, inner, bias=True),
            down=Linear("mlp.dense_4h_to_h", inner, hidden, bias=True),
            activation=config.text("hidden_act", "gelu"),
            dropout=dropout,
            style="gpt_neox",
        ),
        norms=(
            layer_norm("input_layernorm", hidden),
            layer_norm("post_attention_layernorm", hidden),
        ),
        arrangement="parallel" if config.flag("use_parallel_residual", True) else "pre",
    )
    return ModelShape(
        family="gpt_neox",
        architecture="GPTNeoXForCausalLM",
        hidden=hidden,
        vocabulary=vocabulary,
        embeddings=(Embedding("gpt_neox.embed_in", vocabulary, hidden),),
        layers=(layer,) * layer_count(config, 44),
        layer_prefix="gpt_neox.layers",
        final_norm=layer_norm("gpt_neox.final_layer_norm", hidden),
        head=Linear("lm_head", hidden, vocabulary),
        tied=config.flag("tie_word_embeddings", False),
        embedding_dropout=dropout,
        rotary_dims=dims,
        buffers=rotary_buffers(dims),
        dtype=stored_dtype(config),
        max_positions=config.size("max_position_embeddings", 2048, most=LARGEST_LENGTH),
    )


def phi(config: Config) -> ModelShape:
    """PhiForCausalLM (Phi-1, 1.5, 2): one norm for attention and feed-forward, a bias on the
    head."""
    hidden = config.needed("hidden_size", 2048)
    heads = config.needed("num_attention_heads", 32, most=LARGEST_COUNT)
    kv_heads = config.optional_size("num_key_value_heads", most=LARGEST_COUNT) or heads
    inner = config.needed("intermediate_size", 8192)
    vocabulary = config.needed("vocab_size", 51200)
    head_dim = config.size("head_dim", divided(config, hidden, heads))
    if heads % kv_heads:
        raise config.refuse(f"{kv_heads} heads of keys do not divide {heads} heads.")
    dims = rotated(config, head_dim, "partial_rotary_factor", 0.5)
    dropout = config.probability("resid_pdrop")
    normed = config.flag("qk_layernorm", False)
    # The norms are built for a head of hidden / heads whatever head_dim says.
    width = hidden // heads
    layer = Layer(
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            query=Linear("self_attn.q_proj", hidden, heads * head_dim, bias=True),
            key=Linear("self_attn.k_proj", hidden, kv_heads * head_dim, bias=True),
            value=Linear("self_attn.v_proj", hidden, kv_heads * head_dim, bias=True),
            out=Linear("self_attn.dense", heads * head_dim, hidden, bias=True),
            query_norm=layer_norm("self_attn.q_layernorm", width) if normed else None,
            key_norm=layer_norm("self_attn.k_layernorm", width) if normed else None,
            rotary_dims=dims,
            dropout=config.probability("attention_dropout"),
            residual_dropout=dropout,
            style="phi",
        ),
        mlp=Mlp(
            up=Linear("mlp.fc1", hidden, inner, bias=True),
            down=Linear("mlp.fc2", inner, hidden, bias=True),
            activation=config.text("hidden_act", "gelu_new"),
            dropout=dropout,
            style="phi",
        ),
        norms=(layer_norm("input_layernorm", hidden),),
        arrangement="parallel",
    )
    return ModelShape(
        family="phi",
        architecture="PhiForCausalLM",
        hidden=hidden,
        vocabulary=vocabulary,
        embeddings=(Embedding("model.embed_tokens", vocabulary, hidden),),
        layers=(layer,) * layer_count(config, 24),
        layer_prefix="model.layers",
        final_norm=layer_norm("model.final_layernorm", hidden),
        head=Linear("lm_head", hidden, vocabulary, bias=True),
        tied=config.flag("tie_word_embeddings", False),
        embedding_dropout=config.probability("embd_pdrop"),
        rotary_dims=dims,
        buffers=rotary_buffers(dims),
        dtype=stored_dtype(config),
        max_positions=config.size("max_position_embeddings", 2048, most=LARGEST_LENGTH),
    )


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {"gpt_neox": gpt_neox, "phi": phi}
