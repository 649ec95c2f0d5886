"""GPT-2, and GPT-BigCode (StarCoder 1), which is GPT-2 with linear layers and one head of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.shape.config_reader import (
    LARGEST_COUNT,
    LARGEST_LENGTH,
    Config,
    UnknownFamily,
    layer_count,
    stored_dtype,
)
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Norm,
)


def gpt2(config: Config) -> ModelShape:
    """GPT2LMHeadModel. Its linear layers are Conv1D, whose weights are `[inputs, outputs]`."""
    return _gpt(config, "gpt2", "GPT2LMHeadModel", "gelu_new")


def gpt_bigcode(config: Config) -> ModelShape:
    """GPTBigCodeForCausalLM: keys and values of one head, unless `multi_query` is off."""
    return _gpt(config, "gpt_bigcode", "GPTBigCodeForCausalLM", "gelu_pytorch_tanh")


def _gpt(config: Config, family: str, architecture: str, activation: str) -> ModelShape:
    hidden = config.needed(("hidden_size", "n_embd"), 768)
    layers = layer_count(config, 12, ("num_hidden_layers", "n_layer"))
    heads = config.needed(("num_attention_heads", "n_head"), 12, most=LARGEST_COUNT)
    positions = config.size(("max_position_embeddings", "n_positions"), 1024, most=LARGEST_LENGTH)
    head_dim = divided(config, hidden, heads)
    refuse_cross_attention(config)
    bigcode = family == "gpt_bigcode"
    kv_heads = 1 if bigcode and config.flag("multi_query", True) else heads
    inner = config.optional_size("n_inner") or 4 * hidden
    dropout = config.probability("resid_pdrop", 0.1)
    vocabulary = config.needed("vocab_size", 50257)

    def product(name: str, inputs: int, outputs: int) -> Linear:
        return Linear(name, inputs, outputs, bias=True, transposed=not bigcode)

    layer = Layer(
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            fused=product("attn.c_attn", hidden, hidden + 2 * kv_heads * head_dim),
            out=product("attn.c_proj", hidden, hidden),
            positions="learned",
            dropout=config.probability("attn_pdrop", 0.1),
            residual_dropout=dropout,
            style=family,
        ),
        mlp=Mlp(
            up=product("mlp.c_fc", hidden, inner),
            down=product("mlp.c_proj", inner, hidden),
            activation=config.text("activation_function", activation),
            dropout=dropout,
            style=family,
        ),
        norms=(layer_norm("ln_1", hidden), layer_norm("ln_2", hidden)),
    )
    return ModelShape(
        family=family,
        architecture=architecture,
        hidden=hidden,
        vocabulary=vocabulary,
        embeddings=(
            Embedding("transformer.wte", vocabulary, hidden),
            Embedding("transformer.wpe", positions, hidden),
        ),
        layers=(layer,) * layers,
        layer_prefix="transformer.h",
        final_norm=layer_norm("transformer.ln_f", hidden),
        head=Linear("lm_head", hidden, vocabulary),
        tied=config.flag("tie_word_embeddings", True),
        embedding_dropout=config.probability("embd_pdrop", 0.1),
        buffers=(positions * positions,) if bigcode else (),
        dtype=stored_dtype(config),
        max_positions=positions,
    )


def layer_norm(name: str, size: int, affine: bool = True) -> Norm:
    """torch's layer norm over `size` elements, with weight and bias where `affine`."""
    return Norm(name, size, kind="layer", weight=affine, bias=affine)


def divided(config: Config, hidden: int, heads: int) -> int:
    """Elements of a head. Raises UsageError where heads do not divide the hidden size."""
    if hidden % heads:
        raise config.refuse(
            f"{heads} heads cannot share a hidden size of {hidden:,}, which is no multiple of them."
        )
    return hidden // heads


def refuse_cross_attention(config: Config) -> None:
    """Raises UnknownFamily for a decoder with cross attention, which has no shape here."""
    if config.flag("add_cross_attention", False):
        raise UnknownFamily(
            "Decoders with cross attention (add_cross_attention in config.json) have no shape "
            "here. Use --trace, which runs the class of transformers itself."
        )


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
}
