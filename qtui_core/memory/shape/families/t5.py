"""T5 1.0 and 1.1 (Flan): an encoder and a decoder that share an embedding, relative positions in
the first layer of each, norms without mean, no biases.

This is a function, not a row: no other family has two stacks of layers of which one attends to the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.shape.config_reader import (
    LARGEST_COUNT,
    LARGEST_DEPTH,
    LARGEST_LENGTH,
    Config,
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


def t5(config: Config) -> ModelShape:
    """T5ForConditionalGeneration.

    The head is always tied to the embeddings. If config.json says that it is not (1.1), its input
    is not scaled (T5Config.__post_init__).
    """
    hidden = config.needed(("hidden_size", "d_model"), 512)
    vocabulary = config.needed("vocab_size", 32128)
    keys, most = ("num_hidden_layers", "num_layers"), LARGEST_DEPTH // 2  # of two stacks
    layers = config.needed(keys, 6, most=most)
    decoder_layers = config.optional_size("num_decoder_layers", most=most) or layers
    dropout = config.probability("dropout_rate", 0.1)
    return ModelShape(
        family="t5",
        architecture="T5ForConditionalGeneration",
        hidden=hidden,
        vocabulary=vocabulary,
        embeddings=(Embedding("shared", vocabulary, hidden),),
        layers=_stack(config, hidden, decoder_layers, decoder=True),
        layer_prefix="decoder.block",
        final_norm=_norm("decoder.final_layer_norm", hidden),
        head=Linear("lm_head", hidden, vocabulary),
        tied=True,
        embedding_dropout=dropout,
        encoder=_stack(config, hidden, layers, decoder=False),
        encoder_prefix="encoder.block",
        encoder_norm=_norm("encoder.final_layer_norm", hidden),
        dtype=stored_dtype(config),
        max_positions=config.optional_size("n_positions", most=LARGEST_LENGTH),
        final_dropout=dropout,
        head_scale=config.flag("tie_word_embeddings", True),
    )


def _stack(config: Config, hidden: int, layers: int, *, decoder: bool) -> tuple[Layer, ...]:
    """The layers of one side; only the first has the table of relative positions."""
    first = _layer(config, hidden, first=True, decoder=decoder)
    later = _layer(config, hidden, first=False, decoder=decoder)
    return (first,) + (later,) * (layers - 1)


def _layer(config: Config, hidden: int, *, first: bool, decoder: bool) -> Layer:
    last = 2 if decoder else 1
    dropout = config.probability("dropout_rate", 0.1)
    norms = tuple(_norm(f"layer.{index}.layer_norm", hidden) for index in range(last + 1))
    return Layer(
        attention=_attention(config, hidden, "layer.0.SelfAttention", first, causal=decoder),
        mlp=_feed_forward(config, hidden, f"layer.{last}.DenseReluDense"),
        norms=norms,
        dropout=dropout,
        cross=(
            _attention(config, hidden, "layer.1.EncDecAttention", False, causal=False)
            if decoder
            else None
        ),
    )


def _attention(config: Config, hidden: int, name: str, table: bool, *, causal: bool) -> Attention:
    heads = config.needed(("num_attention_heads", "num_heads"), 8, most=LARGEST_COUNT)
    head_dim = config.size(("head_dim", "d_kv"), 64)
    width = heads * head_dim
    buckets = config.size("relative_attention_num_buckets", 32)
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        query=Linear(f"{name}.q", hidden, width),
        key=Linear(f"{name}.k", hidden, width),
        value=Linear(f"{name}.v", hidden, width),
        out=Linear(f"{name}.o", width, hidden),
        positions="relative",
        causal=causal,
        dropout=config.probability("dropout_rate", 0.1),
        style="t5",
        extra=(Embedding(f"{name}.relative_attention_bias", buckets, heads),) if table else (),
    )


def _feed_forward(config: Config, hidden: int, name: str) -> Mlp:
    """The layers wi and wo (1.0), or wi_0, wi_1 and wo (1.1), as feed_forward_proj says."""
    inner = config.needed("d_ff", 2048)
    kind = config.text("feed_forward_proj", "relu")
    gate, _, act = kind.rpartition("-")
    if gate not in ("", "gated"):
        raise config.refuse(
            f"feed_forward_proj is {kind!r}; it is the name of a function, or gated- and a name."
        )
    return Mlp(
        gate=Linear(f"{name}.wi_0", hidden, inner) if gate else None,
        up=Linear(f"{name}.wi_1" if gate else f"{name}.wi", hidden, inner),
        down=Linear(f"{name}.wo", inner, hidden),
        activation="gelu_new" if kind == "gated-gelu" else act,
        dropout=config.probability("dropout_rate", 0.1),
        style="t5",
    )


def _norm(name: str, size: int) -> Norm:
    return Norm(name, size, kind="rms-promoted")


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {"t5": t5}
