"""The sizes of a model, and a decoder with Llama's names of modules: what a row of decoders.py can
say, and the shape that it makes.

The names are model.embed_tokens, model.layers.N.self_attn.q_proj, ...mlp.gate_proj, model.norm,
lm_head.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.memory.formulas.size import letter
from qtui_core.memory.shape.config_reader import (
    LARGEST_COUNT,
    LARGEST_DEPTH,
    LARGEST_LENGTH,
    Config,
    Flag,
    Keys,
    flag,
    stored_dtype,
)
from qtui_core.memory.shape.model_shape import (
    Arrangement,
    Attention,
    Embedding,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Module,
    Moe,
    Norm,
    Parameter,
    Tower,
)

BIAS: Final = ("attention_bias", False)
PAIR: Final = ("input_layernorm", "post_attention_layernorm")

#: Bytes of a factor of Gemma's embeddings or layers, one element in the dtype of the weights: four,
#: or two for 16 bits; the allocator takes one block for either.
SCALE_BUFFER: Final = 4


@dataclass(frozen=True)
class Sizes:
    """The sizes in config.json, or the family's defaults.

    Attributes:
        intermediate: width of the feed-forward part.
        rotary_dims: how many elements of a head are rotated.
        positions: the longest sequence that the model was made for, None if unknown.
        activation: name of the activation function.
        attention_dropout: of the scores, in training.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dims: int
    vocabulary: int
    positions: int | None
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


def rotated(config: Config, head_dim: int, keys: Keys, default: float) -> int:
    """How many of a head's `head_dim` elements are rotated.

    The fraction is among the rope parameters, or under `keys` of config.json. Raises UsageError if
    it is not between 0 and 1, or rotates no element.
    """
    fraction = config.number(keys, default)
    for name in ("rope_parameters", "rope_scaling"):
        parameters = config.within(name)
        if parameters is not None:
            fraction = parameters.number("partial_rotary_factor", fraction)
    if fraction is None:
        fraction = default
    dims = int(head_dim * fraction) if 0.0 < fraction <= 1.0 else 0
    if not dims:
        raise config.refuse(
            f"{fraction:g} of the {head_dim:,} elements of a head cannot be rotated; that takes a "
            f"fraction up to 1, and at least one element."
        )
    return head_dim if fraction == 1.0 else letter("R", dims)


def rotary_buffers(dims: int) -> tuple[int, ...]:
    """Bytes of the buffers of a rotary embedding over `dims` elements of a head: the inverse
    frequencies and their values before scaling, float32, one for each pair of elements."""
    size = 4 * -(-dims // 2)
    return size, size


@dataclass(frozen=True)
class Experts:
    """A mixture of stacked experts whose router is a parameter `[experts, hidden]`.

    Attributes:
        style: `Moe.style`.
        count: keys of config.json for the number of experts, and the default.
        top_k: the default of how many work on a token.
        width: key and default for the width of an expert; None means that of a dense layer.
        prefix, router: names of the modules.
        normalized: `Moe.normalized`.
        shared: key and default for the width of an expert that works on every token, behind a gate.
        transposed: whether weights of experts are `[experts, inputs, outputs]`.
        biases: whether router and experts have biases.
    """

    style: str
    count: tuple[Keys, int]
    top_k: int
    width: tuple[str, int] | None = None
    prefix: str = "mlp."
    router: str = "gate"
    normalized: Flag = True
    shared: tuple[str, int] | None = None
    transposed: bool = False
    biases: bool = False


@dataclass(frozen=True)
class DecoderFamily:
    """The row of a family: how its class differs from Llama's. Called with a configuration, it
    gives the shape, whose final norm is of the same kind as those in the layers.

    Attributes:
        architecture: the class for language models.
        kv_heads: default for the heads of keys; None means as many as heads.
        head_dim: default; None means hidden / heads.
        activation: key and default for the activation function.
        tied, positions: defaults for tied embeddings and the longest sequence.
        rotary_part: share of a head that is rotated, if config.json can set it
            (partial_rotary_factor); None means all of it in every model.
        whole_heads: whether heads must divide hidden even if head_dim is given.
        bias, out_bias, mlp_bias: of the projections into heads, of that out of them (None: as
            `bias`), and of the feed-forward part.
        attention_dropout: default, of the scores.
        dropout: key and default, of the outputs of attention and feed-forward part.
        norm, norm_bias: kind of the norms, and whether they have a bias.
        norms, arrangement: those of a layer.
        eager, sinks: `Attention.eager`, and whether there are `Attention.sinks`.
        head_norms: whether queries and keys have a norm, over each head or over all.
        window: key and default for the window, None if the class has none.
        windowed: whether it is used.
        slides: whether the layer with an index has it if layer_types does not say so; None: all.
        tables_by_kind: whether layers with a window have rotary tables of their own.
        style, mlp_style: `Attention.style`, `Mlp.style`.
        experts: in place of the dense feed-forward part.
        residual_scale: `Layer.residual_scale`.
        rotary_kind, embedding_scale, embedding_scales_itself, logit_scale, tp_plan: see ModelShape.
        logit_softcap: if logits can be capped, the key for the cap and its default; null means no
            cap.
        router_buffers: whether each router keeps a float32 for each expert (DeepSeek V3).
        note: a sentence about what is counted.
        sizes, layers: functions in place of `sizes_of` and `layers_of`, for what no field says.
    """

    architecture: str
    kv_heads: int | None = None
    head_dim: int | None = None
    activation: tuple[str, str] = ("hidden_act", "silu")
    tied: bool = False
    positions: int = 2048
    rotary_part: float | None = None
    whole_heads: bool = False
    bias: Flag = BIAS
    out_bias: Flag | None = None
    mlp_bias: Flag = False
    attention_dropout: float = 0.0
    dropout: tuple[str, float] | None = None
    norm: str = "rms"
    norm_bias: bool = False
    norms: tuple[str, ...] = PAIR
    arrangement: Arrangement = "pre"
    eager: bool = False
    sinks: bool = False
    head_norms: Literal["none", "each", "all"] = "none"
    window: tuple[str, int | None] | None = None
    windowed: Flag = True
    slides: Callable[[Config, int], bool] | None = None
    tables_by_kind: bool = False
    style: str = "llama"
    mlp_style: str = "llama"
    experts: Experts | None = None
    residual_scale: bool = False
    rotary_kind: Literal["cast", "float32", "complex", "halves", "grids"] = "cast"
    embedding_scale: bool = False
    embedding_scales_itself: bool = False
    logit_scale: bool = False
    logit_softcap: tuple[str, float | None] | None = None
    router_buffers: bool = False
    tp_plan: bool | Literal["head"] = True
    note: str = ""
    sizes: Callable[[DecoderFamily, Config], Sizes] | None = None
    layers: Callable[[DecoderFamily, Config, Sizes], Iterable[Layer]] | None = None

    def __call__(self, config: Config) -> ModelShape:
        """Raises UsageError for sizes that are missing or contradict each other, and if an odd
        number of elements is rotated."""
        sizes = (self.sizes or sizes_of)(self, config)
        layers = tuple((self.layers or layers_of)(self, config, sizes))
        if sizes.rotary_dims % 2:
            raise config.refuse(
                f"{sizes.rotary_dims:,} elements of a head cannot be rotated in pairs."
            )
        attentions = (each.attention for each in layers if isinstance(each.attention, Attention))
        turned = {part.table: part.rotary_dims for part in attentions if part.rotary_dims}
        rotary_dims, *more = ({0: sizes.rotary_dims} | turned).values()
        routers = (layer.mlp for layer in layers if self.router_buffers)
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
            tied=config.flag("tie_word_embeddings", self.tied),
            embedding_scale=self.embedding_scale or self.embedding_scales_itself,
            embedding_scales_itself=self.embedding_scales_itself,
            logit_scale=self.logit_scale,
            logit_softcap=cap is not None and config.number(*cap) is not None,
            rotary_dims=rotary_dims,
            more_tables=tuple(more),
            rotary_kind=self.rotary_kind,
            buffers=(
                *(4 * part.experts for part in routers if isinstance(part, Moe)),
                *(size for dims in (rotary_dims, *more) for size in rotary_buffers(dims)),
                *(SCALE_BUFFER,) * self.embedding_scales_itself,
            ),
            tp_plan=self.tp_plan,
            dtype=stored_dtype(config),
            max_positions=sizes.positions,
            notes=(self.note,) if self.note else (),
        )


def sizes_of(row: DecoderFamily, config: Config) -> Sizes:
    """The sizes, checked against each other.

    Raises UsageError if they are missing, too large or contradictory.
    """
    hidden = config.needed("hidden_size")
    heads = config.needed("num_attention_heads", most=LARGEST_COUNT)
    kv_heads = config.optional_size("num_key_value_heads", row.kv_heads, most=LARGEST_COUNT)
    head_dim = config.optional_size("head_dim", row.head_dim)
    if hidden % heads and (head_dim is None or row.whole_heads):
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
    part = row.rotary_part
    return Sizes(
        hidden=hidden,
        intermediate=config.needed("intermediate_size"),
        layers=config.needed("num_hidden_layers", most=LARGEST_DEPTH),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dims=(
            head_dim if part is None else rotated(config, head_dim, "partial_rotary_factor", part)
        ),
        vocabulary=config.needed("vocab_size"),
        positions=config.optional_size(
            "max_position_embeddings", row.positions, most=LARGEST_LENGTH
        ),
        activation=config.text(*row.activation),
        attention_dropout=config.probability("attention_dropout", row.attention_dropout),
    )


def layers_of(row: DecoderFamily, config: Config, sizes: Sizes) -> list[Layer]:
    """Layers that differ in their windows alone."""
    bias = flag(config, row.bias)
    dropout = 0.0 if row.dropout is None else config.probability(*row.dropout)
    query_norm = key_norm = None
    if row.head_norms != "none":
        every = row.head_norms == "all"
        query_norm = Norm("self_attn.q_norm", sizes.queries if every else sizes.head_dim, row.norm)
        key_norm = Norm("self_attn.k_norm", sizes.keys if every else sizes.head_dim, row.norm)
    attend = attention(
        sizes,
        bias,
        bias if row.out_bias is None else flag(config, row.out_bias),
        query_norm=query_norm,
        key_norm=key_norm,
        residual_dropout=dropout,
        eager=row.eager,
        sinks=Parameter("self_attn.sinks", (sizes.heads,)) if row.sinks else None,
        style=row.style,
    )
    dense = gated_mlp(sizes, bias=flag(config, row.mlp_bias))
    dense = replace(dense, dropout=dropout, style=row.mlp_style)
    layer = Layer(
        attention=attend,
        mlp=dense if row.experts is None else _mixture(row.experts, config, sizes),
        norms=norms(sizes, row.norms, row.norm, row.norm_bias),
        arrangement=row.arrangement,
        residual_scale=row.residual_scale,
    )
    slides, window = row.slides, None
    if row.window is not None and flag(config, row.windowed):
        window = config.optional_size(*row.window)
    if slides is None:
        return [replace(layer, attention=replace(attend, window=window))] * sizes.layers
    usual = ("sliding_attention" if slides(config, i) else "" for i in range(sizes.layers))
    kinds = config.each("layer_types", str, sizes.layers, usual)
    slide = [kind == "sliding_attention" for kind in kinds]
    made = {
        each: replace(
            layer,
            attention=replace(
                attend, window=window if each else None, table=place * row.tables_by_kind
            ),
        )
        for place, each in enumerate(sorted(set(slide)))
    }
    return [made[each] for each in slide]


def with_attention(layers: list[Layer], change: Callable[[Attention], Attention]) -> list[Layer]:
    """The layers with their attention changed; those that were one object stay one."""
    changed: dict[int, Layer] = {}
    for layer in layers:
        assert isinstance(layer.attention, Attention)
        if id(layer) not in changed:
            changed[id(layer)] = replace(layer, attention=change(layer.attention))
    return [changed[id(layer)] for layer in layers]


def attention(sizes: Sizes, bias: bool = False, out_bias: bool = False, **others: Any) -> Attention:
    """Attention with four projections and rotary positions; `others` are more of its fields."""
    return Attention(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        query=Linear("self_attn.q_proj", sizes.hidden, sizes.queries, bias),
        key=Linear("self_attn.k_proj", sizes.hidden, sizes.keys, bias),
        value=Linear("self_attn.v_proj", sizes.hidden, sizes.keys, bias),
        out=Linear("self_attn.o_proj", sizes.queries, sizes.hidden, out_bias),
        rotary_dims=sizes.rotary_dims,
        dropout=sizes.attention_dropout,
        **others,
    )


def gated_mlp(
    sizes: Sizes, width: int | None = None, prefix: str = "mlp", bias: bool = False
) -> Mlp:
    """The feed-forward part down(act(gate(x)) * up(x))."""
    width = sizes.intermediate if width is None else width
    return Mlp(
        gate=Linear(f"{prefix}.gate_proj", sizes.hidden, width, bias),
        up=Linear(f"{prefix}.up_proj", sizes.hidden, width, bias),
        down=Linear(f"{prefix}.down_proj", width, sizes.hidden, bias),
        activation=sizes.activation,
    )


def norms(
    sizes: Sizes, names: tuple[str, ...] = PAIR, kind: str = "rms", bias: bool = False
) -> tuple[Norm, ...]:
    """The norms of a layer."""
    return tuple(Norm(name, sizes.hidden, kind, bias=bias) for name in names)


def stacked_experts(sizes: Sizes, experts: int, width: int, prefix: str) -> tuple[Parameter, ...]:
    """The stacked experts of transformers 5 (checkpoints store them separately): gate and up
    `[experts, 2 * width, hidden]`, down `[experts, hidden, width]`."""
    return (
        Parameter(f"{prefix}.gate_up_proj", (experts, 2 * width, sizes.hidden)),
        Parameter(f"{prefix}.down_proj", (experts, sizes.hidden, width)),
    )


def _mixture(row: Experts, config: Config, sizes: Sizes) -> Moe:
    """Raises UsageError if more experts are chosen than there are."""
    experts = config.size(*row.count, most=LARGEST_COUNT)
    top_k = config.size(("num_experts_per_tok", "top_k_experts"), row.top_k, most=LARGEST_COUNT)
    if top_k > experts:
        raise config.refuse(f"{top_k:,} experts are chosen for a token out of {experts:,}.")
    width = sizes.intermediate if row.width is None else config.size(*row.width)
    shared = gate = None
    if row.shared is not None:
        shared = gated_mlp(sizes, config.size(*row.shared), f"{row.prefix}shared_expert")
        gate = Linear(f"{row.prefix}shared_expert_gate", sizes.hidden, 1)
    stacked = stacked_experts(sizes, experts, width, f"{row.prefix}experts")
    biases = [Parameter(f"{each.name}_bias", each.shape[:2]) for each in stacked if row.biases]
    if row.transposed:
        stacked = tuple(replace(each, shape=(experts, *each.shape[:0:-1])) for each in stacked)
    router = f"{row.prefix}{row.router}"
    return Moe(
        experts=experts,
        top_k=top_k,
        hidden=sizes.hidden,
        intermediate=width,
        router=Parameter(f"{router}.weight", (experts, sizes.hidden)),
        stacked=stacked,
        biases=tuple(biases),
        extra=(Parameter(f"{router}.bias", (experts,)),) * row.biases,
        activation=sizes.activation,
        shared=shared,
        shared_gate=gate,
        style=row.style,
        normalized=flag(config, row.normalized),
    )


# ---------------------------------------------------------------------- encoders of images
# With what projects their output into the language model. A row of towers.json, by model_type, is a
# class of transformers 5.23: sizes, each a key of vision_config (or of the `whole` config.json)
# with its default, or a rule; modules and buffers, each as often as a rule says (# is the number).
# A rule multiplies sizes, numbers and quotients (a/b).

_ROWS: Final = json.loads(Path(__file__).with_name("towers.json").read_text(encoding="utf-8"))


def tower_of(config: Config, text: int) -> Tower | None:
    """The encoder of images in a multimodal config.json, before a language model of hidden size
    `text`; None if it has none that is known. Raises UsageError for impossible sizes."""
    row, part = _ROWS.get(config.text("model_type", ""), {}), config.within("vision_config")
    row = {**_ROWS.get(row.get("as"), {}), **row}
    part = Config(row["absent"]) if part is None and "absent" in row else part
    if not row or part is None or part.text("model_type", "") not in ("", *row["model_types"]):
        return None
    given = {key: config.values[key] for key in row.get("whole", ()) if key in config.values}
    part = replace(part, values={**given, **part.values, **row.get("fixed", {})})
    sizes = {"text": text}
    for name, rule in row["sizes"].items():
        sizes[name] = _product(rule, sizes) if isinstance(rule, str) else _read(part, *rule)
    made = [
        (kind, name.replace("#", str(index)), *(_product(rule, sizes) for rule in rules))
        for times, modules in row["modules"].items()
        for index in range(_product(times, sizes))
        for kind, name, *rules in modules
    ]
    buffers = tuple(size for kind, _, size, *_ in made if kind == "buffer")
    return Tower(tuple(_module(*each) for each in made if each[0] != "buffer"), buffers, sizes)


def _read(config: Config, key: str, default: Any) -> int:
    """A size as a plain number, whether a flag is set, or the length of a list."""
    if isinstance(default, list):
        listed = config.values.get(key)
        return len(listed if isinstance(listed, list | tuple) else default)
    if isinstance(default, bool):
        return config.flag(key, default)
    return int(config.size(key, default, most=LARGEST_COUNT))


def _product(rule: str, sizes: Mapping[str, int]) -> int:
    known = [[sizes.get(part, part) for part in word.split("/")] for word in rule.split()]
    return prod(int(first) // prod(map(int, others)) for first, *others in known)


def _module(kind: str, name: str, *shape: int) -> Module:
    """A module of a kind, with a bias if that ends in a plus."""
    bias = kind.endswith("+")
    if kind.startswith("linear"):
        return Linear(name, shape[1], shape[0], bias)
    return Norm(name, shape[0], bias=bias) if "norm" in kind else Parameter(name, shape)
