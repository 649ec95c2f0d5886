"""What determines the memory of a model: its modules, their sizes, and how a layer combines them.

It is made from config.json by `families`. Names are those of the parameters in transformers, so
that adapters and exceptions from quantization can be chosen by name, and a test can compare every
parameter with the real class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from importlib import import_module
from math import prod
from typing import Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.memory.formulas.size import plain
from qtui_core.memory.shape.packings import Layout, Packing


@dataclass(frozen=True)
class Linear:
    """A matrix product. `weight` is `[outputs, inputs]`, or `[inputs, outputs]` if `transposed`
    (GPT-2's Conv1D). `bias_apart`: the bias is added after the product in an operation of its own
    (a head that gets tokens apart in memory). `layout` is how the checkpoint packs the weight, None
    if it does not. `clipped`: training takes the weight clipped, without an adapter (AltUp).
    `last`: bitsandbytes leaves it unpacked, as the last of a tied model."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    transposed: bool = False
    clipped: bool = False
    last: bool = False
    bias_apart: bool = False
    layout: Layout | None = None


@dataclass(frozen=True)
class Norm:
    """A normalization over the last `size` elements.

    Attributes:
        kind: "rms" computes in float32 and casts back before the weight (Llama); "rms-cast-last"
            multiplies by the weight in float32 and casts afterwards (OLMo 2); "rms-one-plus"
            multiplies by one plus the weight, both in float32, and casts afterwards (Gemma);
            "rms-weight-last" is "rms" with the weight as second factor (Llama 4); "rms-power" is
            all in float32, with a power for the root (Gemma 4); "layer" is torch's layer norm
            kernel; "layer-plain" computes in float32 in separate operations, without bias (Cohere);
            other kinds have the name of the family that needs them.
        weight, bias: whether it has them.
        shape: of the weight, if it is not `[size]`.
    """

    name: str
    size: int
    kind: str = "rms"
    weight: bool = True
    bias: bool = False
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Embedding:
    """A table `[rows, columns]` for look-ups. `no_adapter`: why adapters over it do not work."""

    name: str
    rows: int
    columns: int
    no_adapter: str = ""


@dataclass(frozen=True)
class Parameter:
    """A parameter of none of the modules above: `[shape]`, for example the stacked experts of a
    mixture `[experts, outputs, inputs]`, which no library quantizes like a linear layer. `layout`
    is as in Linear."""

    name: str
    shape: tuple[int, ...]
    layout: Layout | None = None


@dataclass(frozen=True)
class CachedTensor:
    """What a layer keeps of each sequence for the tokens to come, in the cache of an inference.

    Attributes:
        kind: of the layer, and of what it keeps.
        formula: of its elements, a sum of products of numbers and names; a sentence without them.
        sizes: (name in the formula, number).
        each: whether the elements are kept for each token, or once for a sequence.
        window: how many tokens back one is seen; None for all.
        dtype: "cache" is that of --kv-dtype, "activations" that of the model.
    """

    kind: str
    formula: str
    sizes: tuple[tuple[str, int], ...] = ()
    each: Literal["token", "sequence"] = "token"
    window: int | None = None
    dtype: Literal["cache", "activations", "fp32"] = "cache"

    @property
    def numbers(self) -> str:
        """The formula with numbers in place of names; empty if it has none."""
        known = dict(self.sizes)
        words = [str(known.get(word, word)) for word in self.formula.split() if known]
        return " ".join(words)

    @property
    def elements(self) -> int:
        products = self.numbers.split(" + ") if self.sizes else ()
        return sum(prod(map(int, product.split(" · "))) for product in products)


#: What a layer keeps that uses the keys and values of another one.
SHARED_CACHE: Final = CachedTensor("shared", "nothing: it reads the cache of another layer")


@dataclass(frozen=True)
class DeltaNet:
    """A gated delta net (Qwen 3.5, Qwen3-Next): linear attention, of whose tokens a state is kept.

    Attributes:
        heads, key_heads, head_dim, key_dim: heads of values, and of queries and keys, and elements
            of each.
        kernel: tokens that the convolution sees.
        mixed, gate, beta, decay: the products for queries, keys and values, for the gate of the
            output, for what a token writes, and for what the state loses; if there are only two,
            `mixed` has that of the gate and `beta` that of the decay.
        norm: of each head of the output, before the gate.
        activation: after the convolution.
        extra: weight of the convolution, bias and logarithms of the decay.
    """

    heads: int
    key_heads: int
    head_dim: int
    key_dim: int
    kernel: int
    mixed: Linear
    beta: Linear
    norm: Norm
    extra: tuple[Parameter, ...]
    gate: Linear | None = None
    decay: Linear | None = None
    activation: str = "silu"


@dataclass(frozen=True)
class Attention:
    """Attention over the sequence.

    Attributes:
        heads, kv_heads, head_dim: heads of queries, heads of keys and values, elements of each.
        query, key, value: the projections; None if they are one, which is then `fused`.
        fused: queries, keys and values in one product.
        out: the output projection.
        query_norm, key_norm: norms of queries and keys, if any: over one head, or over all heads if
            their size is that of all. value_norm: of each head of values (Gemma 4).
        head_norms: a norm for each head of queries, then for each head of keys (StableLM 2 12B).
        unit_norm: whether queries and keys are scaled to length one after the rotation, without a
            weight (Llama 4).
        positions: how positions enter.
        rotary_dims: how many elements of a head are rotated ("rope").
        window: how many positions back a query sees; None for all.
        softcap: whether scores are capped by a tanh (Gemma 2), which needs eager attention.
        eager: whether the class supports no torch kernel, so that "sdpa" is eager (Gemma 2).
        sinks: a score for each head beside those of the keys, which draws attention to nothing
            (gpt-oss).
        table: which of the pairs of rotary tables it uses.
        chunked: whether `window` is a chunk of the sequence, outside of which queries see nothing
            (Llama 4).
        keeps: what an inference keeps of it, if that is not the keys and values of its heads.
        shares: 0 if later layers use its keys and values too; else, if it uses those of the last
            such layer with its table, the number of that use, from 1 on; None if neither.
        net: what stands in place of attention, which then says as how much attention it counts.
        causal: whether later positions are hidden.
        dropout: of the scores, in training; residual_dropout: of the output projection's result.
        style: the family whose code it follows, if the order of operations differs from Llama's.
    """

    heads: int
    kv_heads: int
    head_dim: int
    out: Linear
    query: Linear | None = None
    key: Linear | None = None
    value: Linear | None = None
    fused: Linear | None = None
    sinks: Parameter | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    positions: Literal["rope", "learned", "none"] = "rope"
    rotary_dims: int = 0
    window: int | None = None
    softcap: bool = False
    causal: bool = True
    dropout: float = 0.0
    residual_dropout: float = 0.0
    style: str = "llama"
    extra: tuple[Parameter | Embedding, ...] = ()
    head_norms: tuple[Norm, ...] = ()
    unit_norm: bool = False
    eager: bool = False
    table: int = 0
    chunked: bool = False
    keeps: tuple[CachedTensor, ...] | None = None
    shares: int | None = None
    net: DeltaNet | None = None

    @property
    def kept(self) -> tuple[CachedTensor, ...]:
        """What an inference keeps (DynamicLayer and DynamicSlidingWindowLayer of transformers)."""
        sizes = (("heads_kv", self.kv_heads), ("head_dim", self.head_dim))
        kind = "chunks" if self.chunked else "sliding window" if self.window else "full attention"
        usual = (CachedTensor(kind, "2 · heads_kv · head_dim", sizes, window=self.window),)
        return usual if self.keeps is None else self.keeps


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek V2, V3): queries, keys and values from low ranks.

    `query_down` and `query_norm` are None if `query_up` alone projects queries. A head of queries
    and keys has nope_dim + rope_dim elements, a head of values value_dim. `interleaved`: elements
    that are rotated together are adjacent. `index_dim`: elements of a key of the indexer, which
    chooses the tokens to see (DeepSeek V3.2); 0 without.
    """

    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    query_up: Linear
    latent_down: Linear
    latent_norm: Norm
    latent_up: Linear
    out: Linear
    query_down: Linear | None = None
    query_norm: Norm | None = None
    dropout: float = 0.0
    residual_dropout: float = 0.0
    interleaved: bool = True
    style: str = "deepseek_v3"
    extra: tuple[Parameter, ...] = ()
    index_dim: int = 0

    @property
    def kept(self) -> tuple[CachedTensor, ...]:
        """What an inference keeps: latents, from which keys and values are made again for every
        token, and the keys of the indexer."""
        sizes = (("kv_lora_rank", self.latent_norm.size), ("qk_rope_head_dim", self.rope_dim))
        found = [CachedTensor("latent attention", "kv_lora_rank + qk_rope_head_dim", sizes)]
        if self.index_dim:
            index = (("index_head_dim", self.index_dim),)
            found.append(
                CachedTensor("keys of the indexer", "index_head_dim", index, dtype="activations")
            )
        return tuple(found)


@dataclass(frozen=True)
class Mlp:
    """The feed-forward part. With `gate`, down(act(gate(x)) * up(x)); with `fused`, gate and up in
    one product; with neither, down(act(up(x))).

    `activation` is the name in config.json (silu, gelu, gelu_new, gelu_pytorch_tanh, relu...).
    """

    down: Linear
    up: Linear | None = None
    gate: Linear | None = None
    fused: Linear | None = None
    activation: str = "silu"
    dropout: float = 0.0
    style: str = "llama"


@dataclass(frozen=True)
class Moe:
    """A mixture of experts: `router` scores all; `top_k` of `experts` work on each token.

    Attributes:
        stacked: the parameters of all experts, stacked, in the order of the class.
        intermediate: width of one expert.
        shared: the expert that works on every token, and shared_gate its gate, if any.
        biases: of all experts, stacked like `stacked`, if they have any.
        extra: other parameters of the router, and buffers that count as such.
        normalized: whether the weights of the chosen experts are divided by their sum.
        groups, chosen_groups: the number of groups of experts, and of the best groups from which
            experts are chosen (DeepSeek); 0 if all experts are considered.
    """

    experts: int
    top_k: int
    hidden: int
    intermediate: int
    router: Linear | Parameter
    stacked: tuple[Parameter, ...]
    biases: tuple[Parameter, ...] = ()
    activation: str = "silu"
    dropout: float = 0.0
    shared: Mlp | None = None
    shared_gate: Linear | None = None
    extra: tuple[Parameter, ...] = ()
    style: str = "mixtral"
    normalized: bool = False
    groups: int = 0
    chosen_groups: int = 0


Arrangement = Literal["pre", "parallel", "sandwich", "post", "post-add", "altup"]


@dataclass(frozen=True)
class Layer:
    """One layer: norms, attention, feed-forward part, and their arrangement.

    Attributes:
        arrangement: "pre" (norm, attention, add, norm, mlp, add), "parallel" (attention and mlp
            both on the layer's input), "sandwich" (norms before and after each: Gemma 2, 3), "post"
            (norms of the outputs: OLMo2), "post-add" (norms of the sums: BERT), "altup" (on one of
            several streams: Gemma 3n).
        norms: in the order of their use.
        gates: of a part that multiplies an embedding of the layer's own: into its width, and back;
            of "altup" also a product of low rank, and those of its coefficients.
    """

    attention: Attention | LatentAttention
    mlp: Mlp | Moe
    norms: tuple[Norm, ...]
    arrangement: Arrangement = "pre"
    residual_scale: bool = False
    gates: tuple[Linear, ...] = ()


Module = Linear | Norm | Embedding | Parameter


@dataclass(frozen=True)
class Tower:
    """An encoder of images beside the language model, which no method trains.

    Attributes:
        modules: all of them, with what projects its output; buffers: bytes of each.
        sizes: by name: `patches` of an image token, `pixels` of a patch; and what is true if there:
            checkpointing makes patches require a gradient (`tracked`), results of all layers are
            kept (`collected`), attention has a mask (`masked`) over all images (`joined`), tokens
            of an image see each other, so that layers get masks (`blocks`).
    """

    modules: tuple[Module, ...]
    buffers: tuple[int, ...]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class ModelShape:
    """A model as the estimate sees it.

    Attributes:
        family: model_type of config.json.
        architecture: the transformers class, e.g. "LlamaForCausalLM".
        hidden, vocabulary: sizes.
        embeddings: token embedding first, then those of positions and types.
        layers: in order; the names of their modules begin with `layer_prefix` and the index, as in
            "model.layers.3.self_attn.q_proj". Only the first `own_layers` have their own weights,
            which the others use again (ALBERT).
        final_norm: before the head, if any.
        head: the product that gives logits; None if there is none (an encoder alone).
        tied: whether the head's weight is the token embedding's.
        head_modules: modules between the last layer and the head (such as BERT's transform).
        embedding_modules: norms and projections between embedding and first layer.
        embedding_scale: whether embeddings are multiplied by a constant; logit_scale: whether
            logits are; logit_softcap: whether logits are capped by a tanh.
        embedding_scales_itself: whether the embedding module does it (Gemma), not the model after
            it (Granite).
        embedding_dropout: of the input of the first layer.
        rotary_dims: elements of a row of the cosine tables; 0 if there are none.
        more_tables: the same of further pairs of tables (Gemma 3: one for each kind of layer).
        rotary_kind: "cast" to the dtype of the model (Llama), "float32" (OLMo 2), "complex" numbers
            (Llama 4), "halves", cast, with one column for both elements of a pair (gpt-oss), or
            "grids", cast, of three positions of each token (Qwen 3 VL).
        buffers: bytes of buffers that are neither parameters nor activations (inverse frequencies,
            masks).
        dtype: of the checkpoint, from config.json; None if unknown.
        max_positions: the longest sequence that it was made for.
        tp_plan: whether the class says how tensor parallelism divides embedding and output layer,
            or the latter alone ("head").
        is_encoder: whether it is bidirectional, with a head for masked tokens.
        head_activation: after the first of `head_modules` (BERT's transform).
        head_bias: the name of the head's bias, if it is one of `head_modules`.
        known: "derived" if the headers of the weights contradict it; "assumed" if it is that of the
            nearest kind of decoder (from_config.py), and `why` says why.
        described_in: its source, in the words of a sentence.
        packing: how the checkpoint stores quantized layers, None if it is not quantized.
        tower: None if the class has none, or none that is counted.
    """

    family: str
    architecture: str
    hidden: int
    vocabulary: int
    embeddings: tuple[Embedding, ...]
    layers: tuple[Layer, ...]
    layer_prefix: str
    final_norm: Norm | None
    head: Linear | None
    tied: bool
    head_modules: tuple[Module, ...] = ()
    embedding_modules: tuple[Module, ...] = ()
    own_layers: int | None = None
    embedding_scale: bool = False
    embedding_scales_itself: bool = False
    logit_scale: bool = False
    logit_softcap: bool = False
    embedding_dropout: float = 0.0
    rotary_dims: int = 0
    more_tables: tuple[int, ...] = ()
    rotary_kind: Literal["cast", "float32", "complex", "halves", "grids"] = "cast"
    buffers: tuple[int, ...] = ()
    dtype: str | None = None
    max_positions: int | None = None
    tp_plan: bool | Literal["head"] = True
    is_encoder: bool = False
    head_activation: str = ""
    head_bias: str = ""
    known: Literal["exact", "derived", "assumed"] = "exact"
    why: str = ""
    described_in: str = "config.json"
    packing: Packing | None = None
    tower: Tower | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    @staticmethod
    def from_config(config: object) -> ModelShape:
        """The shape that a parsed config.json describes. Raises what `shape_from_config` raises."""
        # By name, because that module, which has every family, is made of this one.
        reader = import_module("qtui_core.memory.shape.from_config")
        found: ModelShape = reader.shape_from_config(config)
        return found

    @cached_property
    def plain(self) -> ModelShape:
        """The same with plain numbers for sizes, which are faster if no formula is needed."""
        return plain(self)

    @property
    def packed_as(self) -> str | None:
        """The `quant` of a plan (`RunPlan.quant`) that keeps the checkpoint's weights as stored;
        None if they are not quantized."""
        return None if self.packing is None else self.packing.quant

    def packing_under(self, quant: str | None) -> Packing | None:
        """How the checkpoint stores the weights of a plan with this `quant`; None if the plan
        unpacks them, or they are plain."""
        return self.packing if self.packed_as == quant else None

    @property
    def learned_positions(self) -> int | None:
        """The longest sequence of a model with a table of positions; None for other models, which
        have no limit."""
        kinds = [getattr(layer.attention, "positions", "") for layer in self.layers[:1]]
        return self.max_positions if kinds == ["learned"] else None

    @property
    def storage_known(self) -> bool:
        """Whether it is known how the checkpoint stores every weight."""
        packing = self.packing
        if packing is None or (packing.layout_known and packing.experts != "unknown"):
            return True
        mixed = any(isinstance(layer.mlp, Moe) and layer.mlp.stacked for layer in self.layers)
        return packing.layout_known and not mixed


def modules_of_layer(layer: Layer) -> Iterator[Module]:
    """The modules of a layer; names are without the layer's prefix."""
    for part in (layer.attention, layer.mlp):
        yield from modules_of(part)
    yield from layer.norms
    yield from layer.gates


def modules_of(part: Attention | LatentAttention | DeltaNet | Mlp | Moe) -> Iterator[Module]:
    """The modules of a part of a layer, in the order of its fields."""
    for name in part.__dataclass_fields__:
        value = getattr(part, name)
        if isinstance(value, Mlp | DeltaNet):
            yield from modules_of(value)
        elif isinstance(value, Module):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Module))


def named_modules(shape: ModelShape) -> Iterator[tuple[str, Module]]:
    """(full name, module) of all modules, without a tied head."""
    for module in (*shape.embeddings, *shape.embedding_modules):
        yield module.name, module
    for index, layer in enumerate(shape.layers[: shape.own_layers]):
        for module in modules_of_layer(layer):
            yield f"{shape.layer_prefix}.{index}.{module.name}", module
    if shape.final_norm is not None:
        yield shape.final_norm.name, shape.final_norm
    for module in shape.head_modules:
        yield module.name, module
    if shape.head is not None and not shape.tied:
        yield shape.head.name, shape.head
    elif shape.head is not None and shape.head.bias:
        yield shape.head.name, Parameter(f"{shape.head.name}.bias", (shape.head.outputs,))


def parameters_of(module: Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(suffix, shape) of the parameters of a module; the suffix of a parameter without a module is
    empty."""
    match module:
        case Linear():
            sizes = (module.outputs, module.inputs)
            yield "weight", sizes[::-1] if module.transposed else sizes
            if module.bias:
                yield "bias", (module.outputs,)
        case Norm():
            if module.weight:
                yield "weight", module.shape or (module.size,)
            if module.bias:
                yield "bias", module.shape or (module.size,)
        case Embedding():
            yield "weight", (module.rows, module.columns)
        case Parameter():
            yield "", module.shape


def full_name(name: str, module: Module, suffix: str) -> str:
    """The name of a parameter of the module that `named_modules` calls `name`; the bias of a tied
    head, a parameter without a module, has another."""
    if suffix:
        return f"{name}.{suffix}"
    return name if name.endswith(module.name) else module.name


def named_parameters(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every parameter, like `named_parameters` of the transformers class, in no
    particular order."""
    tower = ((module.name, module) for module in shape.tower.modules) if shape.tower else ()
    for name, module in (*named_modules(shape), *tower):
        for suffix, sizes in parameters_of(module):
            yield full_name(name, module, suffix), sizes


def parameter_count(shape: ModelShape) -> int:
    """How many parameters a model has; those of tied weights count once."""
    outside = replace(shape, layers=())
    found = sum(prod(sizes) for _, sizes in named_parameters(outside))
    # Most layers of a model are one object, whose parameters are counted once.
    alike = {id(layer): layer for layer in shape.layers}
    counts = {
        key: sum(prod(sizes) for m in modules_of_layer(layer) for _, sizes in parameters_of(m))
        for key, layer in alike.items()
    }
    return found + sum(counts[id(layer)] for layer in shape.layers[: shape.own_layers])
