"""BERT and RoBERTa: encoders with a head for masked tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from qtui_core.memory.shape.config_reader import Config
from qtui_core.memory.shape.families.gpt_like import GptFamily, Names, layer_norm
from qtui_core.memory.shape.families.sizes import Sizes
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    ModelShape,
    Parameter,
)


def _layer(config: Config, sizes: Sizes, layer: Layer) -> Layer:
    """The layer with norms after the sums; attention sees both directions unless the model is a
    decoder."""
    causal = config.flag("is_decoder", False)
    assert isinstance(layer.attention, Attention)
    return replace(
        layer,
        attention=replace(layer.attention, causal=causal, style="bert"),
        mlp=replace(layer.mlp, style="bert"),
        arrangement="post-add",
    )


def _bert(config: Config, sizes: Sizes, shape: ModelShape) -> ModelShape:
    modules = ("cls.predictions", "transform.dense", "transform.LayerNorm")
    return _masked(config, sizes, shape, modules, sizes.activation, offset=0)


def _roberta(config: Config, sizes: Sizes, shape: ModelShape) -> ModelShape:
    # Its positions begin after that of the padding token (create_position_ids_from_input_ids).
    padding = config.optional_size("pad_token_id", 1, least=0)
    offset = 0 if padding is None else padding + 1
    return _masked(config, sizes, shape, ("lm_head", "dense", "layer_norm"), "gelu", offset)


def _masked(
    config: Config,
    sizes: Sizes,
    shape: ModelShape,
    modules: tuple[str, str, str],
    activation: str,
    offset: int,
) -> ModelShape:
    """The model with token types and a head for masked tokens.

    Args:
        modules: the prefix of the names in the head, and the names of its linear layer and norm.
        activation: of the head.
        offset: positions that no token has.
    """
    hidden, vocabulary, positions = sizes.hidden, sizes.vocabulary, sizes.positions
    assert positions is not None
    if positions <= offset:
        raise config.refuse(
            f"of {positions:,} positions (max_position_embeddings) the first {offset:,} are those "
            "of padding (pad_token_id), and none is left."
        )
    prefix, dense, norm = modules
    body = f"{shape.family}.embeddings"
    types = config.size("type_vocab_size", 2)
    return replace(
        shape,
        embeddings=(
            *shape.embeddings,
            Embedding(f"{body}.token_type_embeddings", types, hidden),
        ),
        # The decoder's bias is the parameter beside it if the weight is tied.
        head=Linear(f"{prefix}.decoder", hidden, vocabulary, bias=not shape.tied),
        head_modules=(
            Linear(f"{prefix}.{dense}", hidden, hidden, bias=True),
            layer_norm(f"{prefix}.{norm}", hidden),
            Parameter(f"{prefix}.bias", (vocabulary,)),
        ),
        embedding_modules=(layer_norm(f"{body}.LayerNorm", hidden),),
        # Position ids and token types, int64, one for each position.
        buffers=(8 * positions, 8 * positions),
        max_positions=positions - offset,
        is_encoder=True,
        head_activation=activation,
        head_bias=f"{prefix}.bias" if shape.tied else "",
    )


def _family(
    architecture: str,
    body: str,
    vocabulary: int,
    model: Callable[[Config, Sizes, ModelShape], ModelShape],
) -> GptFamily:
    return GptFamily(
        architecture,
        Names(
            embedding=f"{body}.embeddings.word_embeddings",
            positions=f"{body}.embeddings.position_embeddings",
            layers=f"{body}.encoder.layer",
            attention=("attention.self.query", "attention.self.key", "attention.self.value"),
            out="attention.output.dense",
            up="intermediate.dense",
            down="output.dense",
            norms=("attention.output.LayerNorm", "output.LayerNorm"),
        ),
        hidden=("hidden_size", 768),
        heads=("num_attention_heads", 12),
        layers=("num_hidden_layers", 12),
        positions=("max_position_embeddings", 512),
        intermediate=("intermediate_size", 3072),
        vocabulary=vocabulary,
        activation=("hidden_act", "gelu"),
        attention_dropout=("attention_probs_dropout_prob", 0.1),
        dropout=("hidden_dropout_prob", 0.1),
        embedding_dropout=("hidden_dropout_prob", 0.1),
        crosses=True,
        layer=_layer,
        model=model,
    )


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "bert": _family("BertForMaskedLM", "bert", 30522, _bert),
    "roberta": _family("RobertaForMaskedLM", "roberta", 50265, _roberta),
}
