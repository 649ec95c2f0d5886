"""BERT and RoBERTa: encoders with a head for masked tokens."""

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
from qtui_core.memory.shape.families.gpt import divided, layer_norm, refuse_cross_attention
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Module,
    Parameter,
)


def bert(config: Config) -> ModelShape:
    """BertForMaskedLM."""
    return _encoder(config, "bert", "Bert", vocabulary=30522)


def roberta(config: Config) -> ModelShape:
    """RobertaForMaskedLM."""
    # Its positions begin after that of the padding token (create_position_ids_from_input_ids).
    padding = config.optional_size("pad_token_id", 1, least=0)
    offset = 0 if padding is None else padding + 1
    return _encoder(config, "roberta", "Roberta", vocabulary=50265, offset=offset)


def _encoder(
    config: Config, family: str, title: str, *, vocabulary: int, offset: int = 0
) -> ModelShape:
    hidden = config.needed("hidden_size", 768)
    heads = config.needed("num_attention_heads", 12, most=LARGEST_COUNT)
    inner = config.needed("intermediate_size", 3072)
    vocabulary = config.needed("vocab_size", vocabulary)
    positions = config.size("max_position_embeddings", 512, most=LARGEST_LENGTH)
    types = config.size("type_vocab_size", 2)
    if positions <= offset:
        raise config.refuse(
            f"of {positions:,} positions (max_position_embeddings) the first {offset:,} are those "
            "of padding (pad_token_id), and none is left."
        )
    head_dim = divided(config, hidden, heads)
    dropout = config.probability("hidden_dropout_prob", 0.1)
    activation = config.text("hidden_act", "gelu")
    refuse_cross_attention(config)

    def linear(name: str, inputs: int = hidden, outputs: int = hidden) -> Linear:
        return Linear(name, inputs, outputs, bias=True)

    layer = Layer(
        attention=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            query=linear("attention.self.query"),
            key=linear("attention.self.key"),
            value=linear("attention.self.value"),
            out=linear("attention.output.dense"),
            positions="learned",
            causal=config.flag("is_decoder", False),
            dropout=config.probability("attention_probs_dropout_prob", 0.1),
            residual_dropout=dropout,
            style="bert",
        ),
        mlp=Mlp(
            up=linear("intermediate.dense", hidden, inner),
            down=linear("output.dense", inner, hidden),
            activation=activation,
            dropout=dropout,
            style="bert",
        ),
        norms=(
            layer_norm("attention.output.LayerNorm", hidden),
            layer_norm("output.LayerNorm", hidden),
        ),
        arrangement="post-add",
    )
    tied = config.flag("tie_word_embeddings", True)
    prefix = f"{family}."
    modules, decoder, bias = _head(family, hidden, vocabulary)
    return ModelShape(
        family=family,
        architecture=f"{title}ForMaskedLM",
        hidden=hidden,
        vocabulary=vocabulary,
        embeddings=(
            Embedding(f"{prefix}embeddings.word_embeddings", vocabulary, hidden),
            Embedding(f"{prefix}embeddings.position_embeddings", positions, hidden),
            Embedding(f"{prefix}embeddings.token_type_embeddings", types, hidden),
        ),
        layers=(layer,) * layer_count(config, 12),
        layer_prefix=f"{prefix}encoder.layer",
        final_norm=None,
        # The bias of the decoder is tied to the parameter beside it together with the weight.
        head=Linear(decoder, hidden, vocabulary, bias=not tied),
        tied=tied,
        head_modules=modules,
        embedding_modules=(layer_norm(f"{prefix}embeddings.LayerNorm", hidden),),
        embedding_dropout=dropout,
        # Positions and types of tokens, int64, as far as positions go.
        buffers=(8 * positions, 8 * positions),
        dtype=stored_dtype(config),
        max_positions=positions - offset,
        is_encoder=True,
        head_activation=activation if family == "bert" else "gelu",
        head_bias=bias if tied else "",
    )


def _head(family: str, hidden: int, vocabulary: int) -> tuple[tuple[Module, ...], str, str]:
    """The modules before the decoder of the head for masked tokens with the parameter of its
    bias, the name of the decoder, and that of the bias."""
    if family == "bert":
        prefix, dense, norm = "cls.predictions", "transform.dense", "transform.LayerNorm"
    else:
        prefix, dense, norm = "lm_head", "dense", "layer_norm"
    modules = (
        Linear(f"{prefix}.{dense}", hidden, hidden, bias=True),
        layer_norm(f"{prefix}.{norm}", hidden),
        Parameter(f"{prefix}.bias", (vocabulary,)),
    )
    return modules, f"{prefix}.decoder", f"{prefix}.bias"


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {"bert": bert, "roberta": roberta}
