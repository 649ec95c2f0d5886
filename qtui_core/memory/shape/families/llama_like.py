"""Families similar to Llama: a row for each, and the parts of their layers.

Their transformers classes differ in defaults, biases, norms and scales, and have the same names of
modules: model.embed_tokens, model.layers.N.self_attn.q_proj, ...mlp.gate_proj, model.norm, lm_head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.memory.formulas.size import letter
from qtui_core.memory.shape.config_reader import (
    LARGEST_COUNT,
    LARGEST_LENGTH,
    Config,
    kinds_of_layers,
    layer_count,
    stored_dtype,
)
from qtui_core.memory.shape.families.sizes import Sizes, rotary_buffers, rotated
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Moe,
    Norm,
    Parameter,
)

#: Bytes of the factor of Gemma's embeddings, one element in the dtype of the weights: four, or two
#: for 16 bits; the allocator takes one block for either.
SCALE_BUFFER: Final = 4


@dataclass(frozen=True)
class Defaults:
    """The defaults of the configuration class of a family.

    Attributes:
        kv_heads: None means as many as heads.
        head_dim: None means hidden / heads.
        activation_key: the key of config.json with the name of the activation function.
        rotary_part: share of a head that is rotated, if config.json can set it
            (partial_rotary_factor); None means all of it in every model.
        whole_heads: whether heads must divide hidden even if head_dim is given.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocabulary: int
    kv_heads: int | None = None
    head_dim: int | None = None
    activation: str = "silu"
    activation_key: str = "hidden_act"
    tied: bool = False
    positions: int = 2048
    rotary_part: float | None = None
    whole_heads: bool = False


def read_sizes(config: Config, defaults: Defaults) -> Sizes:
    """The sizes, checked against each other.

    Raises UsageError if they are missing, too large or contradictory.
    """
    hidden = config.needed("hidden_size", defaults.hidden)
    heads = config.needed("num_attention_heads", defaults.heads, most=LARGEST_COUNT)
    kv_heads = config.optional_size("num_key_value_heads", defaults.kv_heads, most=LARGEST_COUNT)
    head_dim = config.optional_size("head_dim", defaults.head_dim)
    if hidden % heads and (head_dim is None or defaults.whole_heads):
        raise config.refuse(
            f"hidden_size {hidden:,} cannot be divided among {heads:,} attention heads."
        )
    kv_heads = heads if kv_heads is None else kv_heads
    if heads % kv_heads:
        raise config.refuse(
            f"num_attention_heads {heads:,} cannot share {kv_heads:,} heads of keys and values "
            "(num_key_value_heads)."
        )
    head_dim = letter("D", hidden // heads) if head_dim is None else head_dim
    part = defaults.rotary_part
    return Sizes(
        hidden=hidden,
        intermediate=config.needed("intermediate_size", defaults.intermediate),
        layers=layer_count(config, defaults.layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dims=(
            head_dim if part is None else rotated(config, head_dim, "partial_rotary_factor", part)
        ),
        vocabulary=config.needed("vocab_size", defaults.vocabulary),
        positions=config.optional_size(
            "max_position_embeddings", defaults.positions, most=LARGEST_LENGTH
        ),
        activation=config.text(defaults.activation_key, defaults.activation),
        attention_dropout=config.probability("attention_dropout"),
    )


def attention(
    sizes: Sizes,
    *,
    bias: bool = False,
    out_bias: bool = False,
    rotary_dims: int | None = None,
    window: int | None = None,
    query_norm: Norm | None = None,
    key_norm: Norm | None = None,
    style: str = "llama",
) -> Attention:
    """Attention with four projections and rotary positions."""
    return Attention(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        query=Linear("self_attn.q_proj", sizes.hidden, sizes.queries, bias),
        key=Linear("self_attn.k_proj", sizes.hidden, sizes.keys, bias),
        value=Linear("self_attn.v_proj", sizes.hidden, sizes.keys, bias),
        out=Linear("self_attn.o_proj", sizes.queries, sizes.hidden, out_bias),
        query_norm=query_norm,
        key_norm=key_norm,
        rotary_dims=sizes.rotary_dims if rotary_dims is None else rotary_dims,
        window=window,
        dropout=sizes.attention_dropout,
        style=style,
    )


def gated_mlp(
    sizes: Sizes, *, intermediate: int | None = None, prefix: str = "mlp", bias: bool = False
) -> Mlp:
    """The feed-forward part down(act(gate(x)) * up(x))."""
    width = sizes.intermediate if intermediate is None else intermediate
    return Mlp(
        gate=Linear(f"{prefix}.gate_proj", sizes.hidden, width, bias),
        up=Linear(f"{prefix}.up_proj", sizes.hidden, width, bias),
        down=Linear(f"{prefix}.down_proj", width, sizes.hidden, bias),
        activation=sizes.activation,
    )


def stacked_experts(sizes: Sizes, experts: int, width: int, prefix: str) -> tuple[Parameter, ...]:
    """The stacked experts of transformers 5 (checkpoints store them separately): gate and up
    `[experts, 2 * width, hidden]`, down `[experts, hidden, width]`."""
    return (
        Parameter(f"{prefix}.gate_up_proj", (experts, 2 * width, sizes.hidden)),
        Parameter(f"{prefix}.down_proj", (experts, sizes.hidden, width)),
    )


def routed(
    config: Config,
    sizes: Sizes,
    *,
    experts: int,
    top_k: int,
    width: int,
    prefix: str,
    router: str,
    style: str,
    normalized: bool,
    shared: Mlp | None = None,
    shared_gate: Linear | None = None,
) -> Moe:
    """A mixture of stacked experts whose router is a parameter `[experts, hidden]`.

    Raises UsageError if more experts are chosen than there are.
    """
    if top_k > experts:
        raise config.refuse(f"{top_k:,} experts are chosen for a token out of {experts:,}.")
    return Moe(
        experts=experts,
        top_k=top_k,
        hidden=sizes.hidden,
        intermediate=width,
        router=Parameter(f"{prefix}.{router}.weight", (experts, sizes.hidden)),
        stacked=stacked_experts(sizes, experts, width, f"{prefix}.experts"),
        activation=sizes.activation,
        shared=shared,
        shared_gate=shared_gate,
        style=style,
        normalized=normalized,
    )


def norm_pair(sizes: Sizes, kind: str = "rms") -> tuple[Norm, Norm]:
    """The norms before attention and before the feed-forward part."""
    return (
        Norm("input_layernorm", sizes.hidden, kind),
        Norm("post_attention_layernorm", sizes.hidden, kind),
    )


def sliding_layers(config: Config, sizes: Sizes, slides: Callable[[int], bool]) -> tuple[bool, ...]:
    """Whether each layer has a window: from layer_types of config.json, else from `slides` of its
    index."""
    kinds = kinds_of_layers(
        config,
        sizes.layers,
        (
            "sliding_attention" if slides(index) else "full_attention"
            for index in range(sizes.layers)
        ),
    )
    return tuple(kind == "sliding_attention" for kind in kinds)


def layers_of_llama(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Layers that are all alike, with biases if config.json says so."""
    bias = config.flag("attention_bias", False)
    layer = Layer(
        attention=attention(sizes, bias=bias, out_bias=bias),
        mlp=gated_mlp(sizes, bias=config.flag("mlp_bias", False)),
        norms=norm_pair(sizes),
    )
    return (layer,) * sizes.layers


@dataclass(frozen=True)
class DecoderFamily:
    """The row of a family: how it differs from Llama. Called with a configuration, it gives the
    shape, whose final norm is of the same kind as those in the layers.

    Attributes:
        architecture: the class for language models.
        defaults: of its configuration class.
        layers: makes the layers of a model.
        sizes: reads the sizes, if the class reads config.json in its own way.
        rotary_kind: of the rotary tables (`ModelShape.rotary_kind`).
        embedding_scale, logit_scale: whether the model multiplies embeddings, logits by a factor.
        embedding_scales_itself: whether the embedding module does, by a factor in a buffer of the
            weights' dtype (Gemma).
        logit_softcap: if logits can be capped, the key for the cap and its default; null means no
            cap.
        router_buffers: whether each router keeps a float32 for each expert (DeepSeek V3).
    """

    architecture: str
    defaults: Defaults
    layers: Callable[[Config, Sizes], Iterable[Layer]] = layers_of_llama
    sizes: Callable[[Config, Defaults], Sizes] = read_sizes
    rotary_kind: Literal["cast", "float32", "interleaved", "complex"] = "cast"
    embedding_scale: bool = False
    embedding_scales_itself: bool = False
    logit_scale: bool = False
    logit_softcap: tuple[str, float | None] | None = None
    router_buffers: bool = False

    def __call__(self, config: Config) -> ModelShape:
        """Raises UsageError for sizes that are missing or contradict each other, and if an odd
        number of elements is rotated."""
        sizes = self.sizes(config, self.defaults)
        layers = tuple(self.layers(config, sizes))
        if sizes.rotary_dims % 2:
            raise config.refuse(
                f"{sizes.rotary_dims:,} elements of a head cannot be rotated in pairs."
            )
        attentions = (layer.attention for layer in layers)
        tables = len({part.table if isinstance(part, Attention) else 0 for part in attentions})
        cap = self.logit_softcap
        return ModelShape(
            family=config.text("model_type", ""),
            architecture=self.architecture,
            hidden=sizes.hidden,
            vocabulary=sizes.vocabulary,
            embeddings=(Embedding("model.embed_tokens", sizes.vocabulary, sizes.hidden),),
            layers=layers,
            layer_prefix="model.layers",
            final_norm=replace(layers[0].norms[0], name="model.norm"),
            head=Linear("lm_head", sizes.hidden, sizes.vocabulary),
            tied=config.flag("tie_word_embeddings", self.defaults.tied),
            embedding_scale=self.embedding_scale or self.embedding_scales_itself,
            embedding_scales_itself=self.embedding_scales_itself,
            logit_scale=self.logit_scale,
            logit_softcap=cap is not None and config.number(*cap) is not None,
            rotary_dims=sizes.rotary_dims,
            rotary_tables=tables,
            rotary_kind=self.rotary_kind,
            buffers=(
                *(
                    4 * layer.mlp.experts
                    for layer in layers
                    if self.router_buffers and isinstance(layer.mlp, Moe)
                ),
                *rotary_buffers(sizes.rotary_dims) * tables,
                *(SCALE_BUFFER,) * self.embedding_scales_itself,
            ),
            dtype=stored_dtype(config),
            max_positions=sizes.positions,
        )


def of_text(family: str, build: Callable[[Config], ModelShape], config: Config) -> ModelShape:
    """The shape of the language model in a multimodal config.json, from its text_config; the dtype
    is that of the whole if the part has none. The vision part is not counted."""
    part = config.within("text_config")
    values = {"model_type": family, "dtype": stored_dtype(config), **(part.values if part else {})}
    shape = build(Config(values, "text_config of config.json", part=True))
    note = "the language model alone is counted; the part that sees images is not."
    return replace(shape, notes=(note, *shape.notes))
