"""Families similar to GPT, including BERT: a row for each, and what their layers share.

Their transformers classes have layer norms with bias, and a feed-forward part of two products. They
read different keys of config.json and name their modules differently, which a row states. For other
differences, a row has functions that change the sizes, the layer or the whole model.
"""

from __future__ import annotations

from collections.abc import Callable

from qtui_core.dataclass import dataclass
from qtui_core.memory.shape.config_reader import (
    LARGEST_COUNT,
    LARGEST_DEPTH,
    LARGEST_LENGTH,
    Config,
    Flag,
    Keys,
    UnknownFamily,
    flag,
    stored_dtype,
)
from qtui_core.memory.shape.families.sizes import Sizes, divided, rotary_buffers, rotated
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Norm,
)


@dataclass(frozen=True)
class Names:
    """The names of a class for its modules; those of a layer without the layer's prefix.

    Attributes:
        layers: the prefix, without the index.
        attention: one name, if one product gives queries, keys and values, or three.
        norms: of a layer, in the order of their use.
        final_norm: "" if there is none.
        positions: the table of learned positions, "" if there is none.
    """

    embedding: str
    layers: str
    attention: tuple[str, ...]
    out: str
    up: str
    down: str
    norms: tuple[str, ...]
    final_norm: str = ""
    positions: str = ""


@dataclass(frozen=True)
class GptFamily:
    """The row of a family. Called with a configuration, it gives the shape.

    Most fields are a key of config.json, or several of which the first that is present counts;
    those that it may leave out together with the default of the configuration class.

    Attributes:
        architecture: the class for language models.
        intermediate: width of the feed-forward part.
        four_times: whether that may be left out, and is then four times the hidden size.
        positions: the longest sequence.
        dropout: of the outputs of attention and feed-forward part.
        embedding_dropout: of the input of the first layer.
        rotary: share of a head that is rotated, None for other kinds of positions.
        bias, mlp_bias: whether products of attention, and of the feed-forward part, have one.
        transposed: whether weights of products are `[inputs, outputs]` (Conv1D).
        tp_plan: see ModelShape.
        crosses: whether the class can attend to an encoder, which is refused.
        sizes, layer, model: functions that change the sizes, the layer and the whole model.
    """

    architecture: str
    names: Names
    activation: tuple[str, str]
    hidden: Keys = "hidden_size"
    heads: Keys = "num_attention_heads"
    layers: Keys = "num_hidden_layers"
    intermediate: str = "intermediate_size"
    four_times: bool = False
    positions: tuple[Keys, int] = ("max_position_embeddings", 2048)
    attention_dropout: tuple[str, float] = ("attention_dropout", 0.0)
    dropout: tuple[str, float] = ("hidden_dropout", 0.0)
    embedding_dropout: tuple[str, float] | None = None
    rotary: tuple[str, float] | None = None
    bias: Flag = True
    mlp_bias: Flag = True
    transposed: bool = False
    tied: bool = True
    tp_plan: bool = False
    crosses: bool = False
    sizes: Callable[[Config, Sizes], Sizes] = lambda config, sizes: sizes
    layer: Callable[[Config, Sizes, Layer], Layer] = lambda config, sizes, layer: layer
    model: Callable[[Config, Sizes, ModelShape], ModelShape] = lambda config, sizes, shape: shape

    def __call__(self, config: Config) -> ModelShape:
        """Raises UsageError for sizes that are missing or contradict each other, and UnknownFamily
        for a decoder that attends to an encoder."""
        if self.crosses and config.flag("add_cross_attention", False):
            raise UnknownFamily(
                "Decoders with cross attention (add_cross_attention in config.json) have no shape "
                "here. Use --trace, which runs the class of transformers itself."
            )
        family = config.text("model_type", "")
        sizes = self.sizes(config, self._sizes(config))
        layer = self.layer(config, sizes, self._layer(config, sizes, family))
        attend = layer.attention
        rotates = isinstance(attend, Attention) and attend.positions == "rope"
        names, hidden, vocabulary = self.names, sizes.hidden, sizes.vocabulary
        tables = [Embedding(names.embedding, vocabulary, hidden)]
        if names.positions:
            assert sizes.positions is not None
            tables.append(Embedding(names.positions, sizes.positions, hidden))
        shape = ModelShape(
            family=family,
            architecture=self.architecture,
            hidden=hidden,
            vocabulary=vocabulary,
            embeddings=tuple(tables),
            layers=(layer,) * sizes.layers,
            layer_prefix=names.layers,
            final_norm=layer_norm(names.final_norm, hidden) if names.final_norm else None,
            head=Linear("lm_head", hidden, vocabulary),
            tied=config.flag("tie_word_embeddings", self.tied),
            embedding_dropout=(
                config.probability(*self.embedding_dropout) if self.embedding_dropout else 0.0
            ),
            rotary_dims=sizes.rotary_dims,
            buffers=rotary_buffers(sizes.rotary_dims) if rotates else (),
            tp_plan=self.tp_plan,
            dtype=stored_dtype(config),
            max_positions=sizes.positions,
        )
        return self.model(config, sizes, shape)

    def _sizes(self, config: Config) -> Sizes:
        hidden = config.needed(self.hidden)
        heads = config.needed(self.heads, most=LARGEST_COUNT)
        head_dim = divided(config, hidden, heads)
        read = config.optional_size if self.four_times else config.needed
        return Sizes(
            hidden=hidden,
            intermediate=read(self.intermediate) or 4 * hidden,
            layers=config.needed(self.layers, most=LARGEST_DEPTH),
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            rotary_dims=rotated(config, head_dim, *self.rotary) if self.rotary else 0,
            vocabulary=config.needed("vocab_size"),
            positions=config.size(*self.positions, most=LARGEST_LENGTH),
            activation=config.text(*self.activation),
            attention_dropout=config.probability(*self.attention_dropout),
        )

    def _layer(self, config: Config, sizes: Sizes, family: str) -> Layer:
        names, hidden = self.names, sizes.hidden
        bias, mlp_bias = flag(config, self.bias), flag(config, self.mlp_bias)
        dropout = config.probability(*self.dropout)

        def product(name: str, inputs: int, outputs: int, bias: bool = bias) -> Linear:
            return Linear(name, inputs, outputs, bias, self.transposed)

        fused = query = key = value = None
        if len(names.attention) == 1:
            fused = product(names.attention[0], hidden, sizes.queries + 2 * sizes.keys)
        else:
            query, key, value = (
                product(name, hidden, width)
                for name, width in zip(
                    names.attention, (sizes.queries, sizes.keys, sizes.keys), strict=True
                )
            )
        return Layer(
            attention=Attention(
                heads=sizes.heads,
                kv_heads=sizes.kv_heads,
                head_dim=sizes.head_dim,
                fused=fused,
                query=query,
                key=key,
                value=value,
                out=product(names.out, sizes.queries, hidden),
                positions="learned" if names.positions else "rope",
                rotary_dims=sizes.rotary_dims,
                dropout=sizes.attention_dropout,
                residual_dropout=dropout,
                style=family,
            ),
            mlp=Mlp(
                up=product(names.up, hidden, sizes.intermediate, mlp_bias),
                down=product(names.down, sizes.intermediate, hidden, mlp_bias),
                activation=sizes.activation,
                dropout=dropout,
                style=family,
            ),
            norms=tuple(layer_norm(name, hidden) for name in names.norms),
        )


def layer_norm(name: str, size: int) -> Norm:
    """torch's layer norm over `size` elements, with weight and bias."""
    return Norm(name, size, kind="layer", bias=True)
