"""What the families of Llama's descent share: sizes, attention, feed-forward, and the whole.

Their classes in transformers differ in defaults, biases, norms and scales, and name their modules
alike: model.embed_tokens, model.layers.N.self_attn.q_proj, ...mlp.gate_proj, model.norm, lm_head.
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
    layer_count,
    stored_dtype,
)
from qtui_core.memory.shape.families.rotary import rotary_buffers
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

RotaryKind = Literal["cast", "float32", "interleaved", "complex"]

#: Bytes of the factor of Gemma's embeddings, one element of the type of the weights: four, or two
#: for 16 bits, and one block of the allocator either way.
SCALE_BUFFER: Final = 4


@dataclass(frozen=True)
class Defaults:
    """What the configuration class of a family assumes. None of `kv_heads` is as many as heads,
    of `head_dim` hidden / heads."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocabulary: int
    kv_heads: int | None = None
    head_dim: int | None = None
    activation: str = "silu"
    tied: bool = False
    positions: int = 2048


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder, as its config.json says or its class assumes."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    activation: str
    attention_dropout: float

    @property
    def queries(self) -> int:
        """Elements of the queries of a token."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Elements of the keys, or of the values, of a token."""
        return self.kv_heads * self.head_dim


def read_sizes(
    config: Config,
    defaults: Defaults,
    *,
    activation: str = "hidden_act",
    whole_heads: bool = False,
) -> Sizes:
    """The sizes, checked against each other.

    `whole_heads` is for classes that want hidden / heads without rest even where head_dim is given.
    Raises UsageError for what is missing, absurd or contradictory.
    """
    hidden = config.needed("hidden_size", defaults.hidden)
    heads = config.needed("num_attention_heads", defaults.heads, most=LARGEST_COUNT)
    kv_heads = config.optional_size("num_key_value_heads", defaults.kv_heads, most=LARGEST_COUNT)
    head_dim = config.optional_size("head_dim", defaults.head_dim)
    if hidden % heads and (head_dim is None or whole_heads):
        raise config.refuse(
            f"hidden_size {hidden:,} cannot be divided among {heads:,} attention heads."
        )
    kv_heads = heads if kv_heads is None else kv_heads
    if heads % kv_heads:
        raise config.refuse(
            f"num_attention_heads {heads:,} cannot share {kv_heads:,} heads of keys and values "
            "(num_key_value_heads)."
        )
    return Sizes(
        hidden=hidden,
        intermediate=config.needed("intermediate_size", defaults.intermediate),
        layers=layer_count(config, defaults.layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=letter("D", hidden // heads) if head_dim is None else head_dim,
        vocabulary=config.needed("vocab_size", defaults.vocabulary),
        activation=config.text(activation, defaults.activation),
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
    """Attention with four projections and rotary positions (None of `rotary_dims` is all)."""
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
        rotary_dims=sizes.head_dim if rotary_dims is None else rotary_dims,
        window=window,
        dropout=sizes.attention_dropout,
        style=style,
    )


def gated_mlp(
    sizes: Sizes, *, intermediate: int | None = None, prefix: str = "mlp", bias: bool = False
) -> Mlp:
    """down(act(gate(x)) * up(x))."""
    width = sizes.intermediate if intermediate is None else intermediate
    return Mlp(
        gate=Linear(f"{prefix}.gate_proj", sizes.hidden, width, bias),
        up=Linear(f"{prefix}.up_proj", sizes.hidden, width, bias),
        down=Linear(f"{prefix}.down_proj", width, sizes.hidden, bias),
        activation=sizes.activation,
    )


def stacked_experts(sizes: Sizes, experts: int, width: int, prefix: str) -> tuple[Parameter, ...]:
    """The experts of transformers 5, which stacks what checkpoints keep apart: gate and up
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

    Raises UsageError where more experts are chosen than there are.
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


def decoder(
    config: Config,
    sizes: Sizes,
    layers: Iterable[Layer],
    *,
    architecture: str,
    defaults: Defaults,
    final_norm: Norm | None = None,
    rotary_dims: int | None = None,
    rotary_tables: int = 1,
    rotary_kind: RotaryKind = "cast",
    embedding_scale: bool = False,
    embedding_scales_itself: bool = False,
    logit_scale: bool = False,
    logit_softcap: bool = False,
) -> ModelShape:
    """The whole model around its layers.

    Inverse frequencies are kept for each pair of tables. `embedding_scales_itself` is for
    embeddings that keep their factor in a buffer, which has the type of the weights.
    Raises UsageError for a rotation of an odd number of elements.
    """
    tied = config.flag("tie_word_embeddings", defaults.tied)
    rotary = sizes.head_dim if rotary_dims is None else rotary_dims
    if rotary % 2:
        raise config.refuse(f"{rotary:,} elements of a head cannot be rotated in pairs.")
    return ModelShape(
        family=config.text("model_type", ""),
        architecture=architecture,
        hidden=sizes.hidden,
        vocabulary=sizes.vocabulary,
        embeddings=(Embedding("model.embed_tokens", sizes.vocabulary, sizes.hidden),),
        layers=tuple(layers),
        layer_prefix="model.layers",
        final_norm=final_norm or Norm("model.norm", sizes.hidden),
        head=Linear("lm_head", sizes.hidden, sizes.vocabulary),
        tied=tied,
        embedding_scale=embedding_scale or embedding_scales_itself,
        embedding_scales_itself=embedding_scales_itself,
        logit_scale=logit_scale,
        logit_softcap=logit_softcap,
        rotary_dims=rotary,
        rotary_tables=rotary_tables,
        rotary_kind=rotary_kind,
        buffers=rotary_buffers(rotary) * rotary_tables + (SCALE_BUFFER,) * embedding_scales_itself,
        dtype=stored_dtype(config),
        max_positions=config.optional_size(
            "max_position_embeddings", defaults.positions, most=LARGEST_LENGTH
        ),
    )


def layers_of_llama(config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Layers that are all alike, with biases where the configuration says so."""
    bias = config.flag("attention_bias", False)
    layer = Layer(
        attention=attention(sizes, bias=bias, out_bias=bias),
        mlp=gated_mlp(sizes, bias=config.flag("mlp_bias", False)),
        norms=norm_pair(sizes),
    )
    return (layer,) * sizes.layers


@dataclass(frozen=True)
class DecoderFamily:
    """The row of a family: what it has otherwise than Llama. Called with a configuration, it gives
    the shape.

    Attributes:
        architecture: the class for language models.
        defaults: what its configuration class assumes.
        layers: those of a model.
        whole_heads: whether hidden / heads must leave no rest (`read_sizes`).
        embedding_scale, logit_scale: whether there are factors there.
    """

    architecture: str
    defaults: Defaults
    layers: Callable[[Config, Sizes], Iterable[Layer]] = layers_of_llama
    whole_heads: bool = False
    embedding_scale: bool = False
    logit_scale: bool = False

    def __call__(self, config: Config) -> ModelShape:
        sizes = read_sizes(config, self.defaults, whole_heads=self.whole_heads)
        return decoder(
            config,
            sizes,
            self.layers(config, sizes),
            architecture=self.architecture,
            defaults=self.defaults,
            embedding_scale=self.embedding_scale,
            logit_scale=self.logit_scale,
        )


def of_text(config: Config, family: str, build: Callable[[Config], ModelShape]) -> ModelShape:
    """The shape of the language model of a multimodal config.json, from its text_config; the type
    of the whole stands where the part says none."""
    part = config.within("text_config")
    values = {"model_type": family, "dtype": stored_dtype(config), **(part.values if part else {})}
    shape = build(Config(values, "text_config of config.json", part=True))
    note = "the language model alone is counted; the part that sees images is not."
    return replace(shape, notes=(note, *shape.notes))
