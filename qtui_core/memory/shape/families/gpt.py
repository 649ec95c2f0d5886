"""Families similar to GPT: GPT-2, GPT-BigCode (StarCoder 1), GPT-NeoX (Pythia), Phi 1 to 2, OPT,
and the encoders BERT and RoBERTa with a head for masked tokens. Defaults are those of transformers
5.23.

Their transformers classes have layer norms with bias, and a feed-forward part of two products. They
read different keys of config.json and name their modules differently, which a row states. For other
differences, a row has functions that change the sizes, the layer or the whole model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

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
from qtui_core.memory.shape.families.decoder import Sizes, rotary_buffers, rotated
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Norm,
    Parameter,
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
        bias, mlp_bias, head_bias: whether products of attention, of the feed-forward part, and the
            head have one.
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
    head_bias: bool = False
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
            head=Linear("lm_head", hidden, vocabulary, self.head_bias),
            tied=config.flag("tie_word_embeddings", self.tied),
            embedding_dropout=(
                config.probability(*self.embedding_dropout) if self.embedding_dropout else 0.0
            ),
            rotary_dims=sizes.rotary_dims,
            buffers=rotary_buffers(sizes.rotary_dims) if sizes.rotary_dims else (),
            tp_plan=self.tp_plan,
            dtype=stored_dtype(config),
            max_positions=sizes.positions,
        )
        return self.model(config, sizes, shape)

    def _sizes(self, config: Config) -> Sizes:
        hidden = config.needed(self.hidden)
        heads = config.needed(self.heads, most=LARGEST_COUNT)
        head_dim = hidden // heads
        if hidden % heads:
            raise config.refuse(
                f"{heads} heads cannot share a hidden size of {hidden:,}, which is no multiple of "
                "them."
            )
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
            widths = (sizes.queries, sizes.keys, sizes.keys)
            query, key, value = (
                product(*each) for each in zip(names.attention, (hidden,) * 3, widths, strict=True)
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
            ),
            norms=tuple(layer_norm(name, hidden) for name in names.norms),
        )


def layer_norm(name: str, size: int) -> Norm:
    """torch's layer norm over `size` elements, with weight and bias."""
    return Norm(name, size, kind="layer", bias=True)


def _bigcode(config: Config, sizes: Sizes, shape: ModelShape) -> ModelShape:
    """It has a buffer with a mask of all positions, one byte each."""
    assert sizes.positions is not None
    return replace(shape, buffers=(sizes.positions * sizes.positions,))


def _phi_sizes(config: Config, sizes: Sizes) -> Sizes:
    heads = sizes.heads
    kv_heads = config.optional_size("num_key_value_heads", most=LARGEST_COUNT) or heads
    head_dim = config.size("head_dim", sizes.head_dim)
    if heads % kv_heads:
        raise config.refuse(f"{kv_heads} heads of keys do not divide {heads} heads.")
    dims = rotated(config, head_dim, "partial_rotary_factor", 0.5)
    return replace(sizes, kv_heads=kv_heads, head_dim=head_dim, rotary_dims=dims)


def _phi(config: Config, sizes: Sizes, layer: Layer) -> Layer:
    """One norm for attention and feed-forward part."""
    attend = layer.attention
    assert isinstance(attend, Attention)
    if config.flag("qk_layernorm", False):
        # These norms have the size hidden / heads, whatever head_dim says.
        width = sizes.hidden // sizes.heads
        attend = replace(
            attend,
            query_norm=layer_norm("self_attn.q_layernorm", width),
            key_norm=layer_norm("self_attn.k_layernorm", width),
        )
    return replace(layer, attention=attend, arrangement="parallel")


#: Rows of OPT's position table before the first position (OPTLearnedPositionalEmbedding.offset).
_OPT_OFFSET: Final = 2
_OPT_NO_ADAPTER: Final = (
    "OPT counts positions from the attention mask, which peft looks up in their adapter as it is, "
    "so a step fails where that mask is not of whole numbers"
)


def _opt(config: Config, sizes: Sizes, layer: Layer) -> Layer:
    """In the 350M model norms follow the sums."""
    affine = config.flag("layer_norm_elementwise_affine", True)
    before = config.flag("do_layer_norm_before", True)
    return replace(
        layer,
        norms=tuple(replace(norm, weight=affine, bias=affine) for norm in layer.norms),
        arrangement="pre" if before else "post-add",
    )


def _opt_model(config: Config, sizes: Sizes, shape: ModelShape) -> ModelShape:
    """In the 350M model embeddings are narrower than the layers. Without `do_layer_norm_before`
    there is no final norm."""
    hidden, vocabulary = sizes.hidden, sizes.vocabulary
    width = config.optional_size("word_embed_proj_dim") or hidden
    narrow = width != hidden
    tokens, positions = shape.embeddings
    rows = positions.rows + _OPT_OFFSET
    final = shape.layers[0].arrangement == "pre" and not config.flag(
        "_remove_final_layer_norm", False
    )
    return replace(
        shape,
        embeddings=(
            replace(tokens, columns=width),
            replace(positions, rows=rows, no_adapter=_OPT_NO_ADAPTER),
        ),
        final_norm=(
            replace(shape.layers[0].norms[0], name="model.decoder.final_layer_norm")
            if final
            else None
        ),
        head=Linear("lm_head", width, vocabulary),
        head_modules=(Linear("model.decoder.project_out", hidden, width),) * narrow,
        embedding_modules=(Linear("model.decoder.project_in", width, hidden),) * narrow,
    )


def _encoder(config: Config, sizes: Sizes, layer: Layer) -> Layer:
    """The layer with norms after the sums; attention sees both directions unless the model is a
    decoder."""
    causal = config.flag("is_decoder", False)
    assert isinstance(layer.attention, Attention)
    return replace(
        layer,
        attention=replace(layer.attention, causal=causal, style="bert"),
        arrangement="post-add",
    )


def _masked(config: Config, sizes: Sizes, shape: ModelShape) -> ModelShape:
    """The model with token types and a head for masked tokens. Positions of RoBERTa begin after
    that of the padding token (create_position_ids_from_input_ids)."""
    roberta = shape.family == "roberta"
    padding = config.optional_size("pad_token_id", 1, least=0) if roberta else None
    offset = 0 if padding is None else padding + 1
    prefix, dense, norm = "cls.predictions", "transform.dense", "transform.LayerNorm"
    if roberta:
        prefix, dense, norm = "lm_head", "dense", "layer_norm"
    hidden, vocabulary, positions = sizes.hidden, sizes.vocabulary, sizes.positions
    assert positions is not None
    if positions <= offset:
        raise config.refuse(
            f"of {positions:,} positions (max_position_embeddings) the first {offset:,} are those "
            "of padding (pad_token_id), and none is left."
        )
    body = f"{shape.family}.embeddings"
    types = config.size("type_vocab_size", 2)
    return replace(
        shape,
        embeddings=(*shape.embeddings, Embedding(f"{body}.token_type_embeddings", types, hidden)),
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
        head_activation="gelu" if roberta else sizes.activation,
        head_bias=f"{prefix}.bias" if shape.tied else "",
    )


#: The linear layers of GPT-2 are Conv1D, whose weights are `[inputs, outputs]`.
_GPT2: Final = GptFamily(
    "GPT2LMHeadModel",
    Names(
        embedding="transformer.wte", positions="transformer.wpe", layers="transformer.h",
        attention=("attn.c_attn",), out="attn.c_proj", up="mlp.c_fc", down="mlp.c_proj",
        norms=("ln_1", "ln_2"), final_norm="transformer.ln_f",
    ),
    ("activation_function", "gelu_new"),
    hidden=("hidden_size", "n_embd"), heads=("num_attention_heads", "n_head"),
    layers=("num_hidden_layers", "n_layer"),
    positions=(("max_position_embeddings", "n_positions"), 1024),
    intermediate="n_inner", four_times=True, attention_dropout=("attn_pdrop", 0.1),
    dropout=("resid_pdrop", 0.1), embedding_dropout=("embd_pdrop", 0.1), transposed=True,
    crosses=True,
)  # fmt: skip
_BERT: Final = GptFamily(
    "BertForMaskedLM",
    Names(
        embedding="bert.embeddings.word_embeddings",
        positions="bert.embeddings.position_embeddings", layers="bert.encoder.layer",
        attention=("attention.self.query", "attention.self.key", "attention.self.value"),
        out="attention.output.dense", up="intermediate.dense", down="output.dense",
        norms=("attention.output.LayerNorm", "output.LayerNorm"),
    ),
    ("hidden_act", "gelu"), positions=("max_position_embeddings", 512),
    attention_dropout=("attention_probs_dropout_prob", 0.1), dropout=("hidden_dropout_prob", 0.1),
    embedding_dropout=("hidden_dropout_prob", 0.1), crosses=True, layer=_encoder, model=_masked,
)  # fmt: skip

GPTS: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "gpt2": _GPT2,
    "gpt_bigcode": replace(
        _GPT2, architecture="GPTBigCodeForCausalLM", transposed=False,
        activation=("activation_function", "gelu_pytorch_tanh"),
        # One head of keys and values, unless `multi_query` is off.
        sizes=lambda c, sizes: replace(sizes, kv_heads=1) if c.flag("multi_query", True) else sizes,
        model=_bigcode,
    ),
    "gpt_neox": GptFamily(
        "GPTNeoXForCausalLM",
        Names(
            embedding="gpt_neox.embed_in", layers="gpt_neox.layers",
            attention=("attention.query_key_value",), out="attention.dense",
            up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h",
            norms=("input_layernorm", "post_attention_layernorm"),
            final_norm="gpt_neox.final_layer_norm",
        ),
        ("hidden_act", "gelu"), embedding_dropout=("hidden_dropout", 0.0),
        rotary=("rotary_pct", 0.25), bias=("attention_bias", True), tied=False, tp_plan=True,
        layer=lambda c, _, layer: replace(
            layer, arrangement="parallel" if c.flag("use_parallel_residual", True) else "pre"
        ),
    ),
    "phi": GptFamily(
        "PhiForCausalLM",
        Names(
            embedding="model.embed_tokens", layers="model.layers",
            attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            out="self_attn.dense", up="mlp.fc1", down="mlp.fc2", norms=("input_layernorm",),
            final_norm="model.final_layernorm",
        ),
        ("hidden_act", "gelu_new"), dropout=("resid_pdrop", 0.0),
        embedding_dropout=("embd_pdrop", 0.0), tied=False, tp_plan=True, sizes=_phi_sizes,
        layer=_phi, head_bias=True,
    ),
    "opt": GptFamily(
        "OPTForCausalLM",
        Names(
            embedding="model.decoder.embed_tokens", positions="model.decoder.embed_positions",
            layers="model.decoder.layers",
            attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            out="self_attn.out_proj", up="fc1", down="fc2",
            norms=("self_attn_layer_norm", "final_layer_norm"),
        ),
        ("activation_function", "relu"), intermediate="ffn_dim", dropout=("dropout", 0.1),
        bias=("enable_bias", True), mlp_bias=("enable_bias", True), layer=_opt, model=_opt_model,
    ),
    "bert": _BERT,
    "roberta": replace(
        _BERT, architecture="RobertaForMaskedLM",
        names=replace(
            _BERT.names, embedding="roberta.embeddings.word_embeddings",
            positions="roberta.embeddings.position_embeddings", layers="roberta.encoder.layer",
        ),
    ),
}  # fmt: skip
