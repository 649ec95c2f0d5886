"""Finds the family of a config.json and makes the shape of the model.

Built in is the language model of a family: its head predicts the next token or, of an encoder, the
masked ones. A class with another head has another step and other parameters; of those that
config.json names under architectures, --trace runs the ones whose inputs are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.shape.config_reader import (
    LARGEST_COUNT,
    LARGEST_DEPTH,
    LARGEST_LENGTH,
    LARGEST_SIZE,
    Config,
    UnknownFamily,
    is_whole,
    stored_dtype,
)
from qtui_core.memory.shape.families.decoder import (
    Sizes,
    attention,
    gated_mlp,
    norms,
    rotary_buffers,
    stacked_experts,
)
from qtui_core.memory.shape.families.decoders import DECODERS
from qtui_core.memory.shape.families.deepseek import latent_attention
from qtui_core.memory.shape.families.delta import KEPT
from qtui_core.memory.shape.families.gpt import GPTS
from qtui_core.memory.shape.model_shape import (
    SHARED_CACHE,
    Attention,
    CachedTensor,
    Embedding,
    LatentAttention,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Moe,
    Parameter,
    parameter_count,
)
from qtui_core.memory.shape.packed import packed
from qtui_core.memory.shape.packings import packing_of
from qtui_core.models.tensors import DESCRIBED_IN

#: Endings of the names of language models.
LANGUAGE_MODELS: Final = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
#: Endings of the names of classes that classify sequences, classify tokens, and find the span of an
#: answer.
SEQUENCES: Final = "ForSequenceClassification"
TOKENS: Final = "ForTokenClassification"
ANSWERS: Final = "ForQuestionAnswering"
#: Classes that tell whether one sentence follows another: alone, and together with masked tokens.
NEXT_SENTENCES: Final = "ForNextSentencePrediction"
PRETRAINING: Final = "ForPreTraining"
#: Endings of the names of classes whose inputs --trace knows.
_TRACEABLE: Final = (*LANGUAGE_MODELS, SEQUENCES, TOKENS, ANSWERS, NEXT_SENTENCES, PRETRAINING)
#: What --trace cannot run: this class counts end tokens in a sequence, which tensors without values
#: do not allow.
_COUNTS_TOKENS: Final = "T5ForSequenceClassification"


def of_named_class(shape: ModelShape, config: Config) -> ModelShape:
    """The shape of a family's language model, if that is the class that config.json names under
    architectures.

    If config.json names another language model than the one counted, a note says so and the basis
    is no longer exact. Raises UnknownFamily for a class with another head.
    """
    named = config.listed("architectures", str) or ()
    if not named or shape.architecture in named:
        return shape
    name, title = named[0], shape.architecture
    for end in LANGUAGE_MODELS:
        title = title.removesuffix(end)
    # BERT and RoBERTa as decoders, with the same head, see earlier tokens only.
    decodes = shape.is_encoder and name.startswith(title)
    if decodes or not name.endswith(LANGUAGE_MODELS):
        raise UnknownFamily(
            f"config.json names {name}, whose shape is not built in; that of {shape.architecture} "
            "is, but it would be another model."
        )
    if config.within("text_config") is not None:  # its note says that only the text part is counted
        return shape
    note = (
        f"config.json names {name}; what is counted is {shape.architecture}, so nothing that "
        "follows from it is exact."
    )
    return replace(shape, known="derived", notes=(note, *shape.notes))


def is_body(name: str) -> bool:
    """Whether a class of transformers has no head, and with it no loss."""
    return name.endswith("Model") and not name.endswith(("HeadModel", "HeadsModel", "DecoderModel"))


def is_traceable(name: str) -> bool:
    """Whether --trace knows the inputs of a class: for a step, or for an inference of a body."""
    return (is_body(name) or name.endswith(_TRACEABLE)) and name != _COUNTS_TOKENS


#: model_type of config.json -> what makes the shape.
FAMILIES: Final = DECODERS | GPTS


def shape_from_config(config: object) -> ModelShape:
    """The shape of the model that a parsed config.json describes.

    Raises:
        UnknownFamily: a family that is not built in.
        UsageError: a configuration that lacks what is needed or contradicts itself.
    """
    if not isinstance(config, Mapping):
        raise UsageError(
            f"A config.json is an object in braces; this one is {type(config).__name__}."
        )
    reader = Config(config, str(config.get(DESCRIBED_IN) or "config.json"))
    family = reader.text("model_type", "")
    if family not in FAMILIES:
        raise _unknown(reader, family)
    shape = of_named_class(FAMILIES[family](reader), reader)
    if reader.where != "config.json":
        shape = replace(shape, described_in=reader.where)
    packing = packing_of(config)
    return shape if packing is None else packed(shape, packing)


def families() -> tuple[str, ...]:
    """The model types that have a shape, in alphabetical order."""
    return tuple(sorted(FAMILIES))


def _unknown(config: Config, family: str) -> UnknownFamily:
    if not family:
        return UnknownFamily(
            "config.json does not say model_type, so the family of the model is unknown. Take the "
            "config.json that belongs to the weights."
        )
    if config.values.get("auto_map"):
        return UnknownFamily(
            f"Models of type {family!r} bring their own code, which is never executed here, and no "
            "shape of them is built in."
        )
    return UnknownFamily(f"No shape of models of type {family!r} is built in.")


# ---------------------------------------------------------------------- the nearest kind of decoder
# For a config.json whose family is not built in. Sizes, kinds of layers, experts and low ranks are
# read from the keys that published configurations have for them. What a layer keeps for its
# backward pass is taken from the decoder that is most alike: Llama's, DeepSeek's with low ranks, a
# mixture with experts. A layer with a state in place of keys and values (Mamba, linear attention,
# convolutions) counts as attention that sees one position, with projections of about as many
# parameters.

#: Keys that configurations have for a size, the most usual first.
_HIDDEN: Final = ("hidden_size", "n_embd", "n_embed", "d_model", "dim", "model_dim", "emb_dim")
_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers")
#: A list with a kind for each layer.
_LISTED: Final = ("layer_types", "layers_block_type", "block_types")
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
_KV_HEADS: Final = ("num_key_value_heads", "n_head_kv", "num_kv_heads", "num_attention_groups",
                    "num_query_groups", "multi_query_group_num")  # fmt: skip
_WIDTH: Final = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff",
                 "decoder_ffn_dim", "mlp_hidden_size", "intermediate_dim",
                 "moe_intermediate_size")  # fmt: skip
_VOCABULARY: Final = ("vocab_size", "n_vocab", "padded_vocab_size", "tgt_vocab_size")
_EXPERTS: Final = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_CHOSEN: Final = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token",
                  "top_k_experts", "moe_topk", "moe_top_k", "moe_k")  # fmt: skip
_PERIOD: Final = ("full_attention_interval", "attn_layer_period", "sliding_window_pattern")
_EXPERT_WIDTH: Final = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size",
                        "expert_hidden_size", "expert_ffn_hidden_size")  # fmt: skip
_SHARED_WIDTH: Final = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                        "shared_intermediate_size", "share_expert_dim")  # fmt: skip
_SHARED: Final = ("n_shared_experts", "num_shared_experts", "num_shared_expert",
                  "moe_num_shared_experts")  # fmt: skip
_DENSE_LAYERS: Final = ("first_k_dense_replace", "num_dense_layers", "n_dense_layers")

#: Keys of the activation of a feed-forward part, and those that have no gate.
_ACTIVATION: Final = ("mlp_hidden_act", "hidden_act", "activation_function", "activation",
                      "feed_forward_proj", "ff_activation", "afn")  # fmt: skip
_UNGATED: Final = ("relu2", "relu", "gelu", "gelu_new", "gelu_fast", "quick_gelu", "xielu")

#: The parts of a multimodal configuration that hold its language model.
_TEXT: Final = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")

#: Words in a kind of layer, and what it is: keys and values of a window, a state, or all of them.
_KINDS: Final = (
    ("sliding", "window"), ("local", "window"), ("chunked", "window"), ("swa", "window"),
    ("linear", "state"), ("mamba", "state"), ("conv", "state"), ("recurrent", "state"),
    ("ssm", "state"), ("rwkv", "state"), ("delta", "state"), ("kda", "state"),
)  # fmt: skip
#: Letters of hybrid_override_pattern (Nemotron-H); "-" and "E" are feed-forward parts.
_LETTERS: Final = {"M": "state", "*": "full", "-": "dense", "E": "experts"}
#: Words for the same in a list of parts.
_PARTS: Final = {"mlp": "dense", "moe": "experts", "linear_attention": "state", "mamba": "state"}


#: What a layer with a state keeps of a sequence, by the first kind whose sizes config.json has: the
#: last columns of a convolution, and a state that the torch code of the classes computes in fp32.
_STATES: Final = (
    ("linear attention", KEPT),
    ("Mamba 2", ("heads · dim · kernel + 2 · groups · state · kernel", "heads · dim · state")),
    ("Mamba", ("expand · hidden · kernel", "expand · hidden · state")),
    ("convolution", ("hidden · kernel", "")),
)  # fmt: skip
#: The keys of the sizes in these formulas.
_STATE_SIZES: Final = {
    "heads_k": ("linear_num_key_heads",), "dim_k": ("linear_key_head_dim",),
    "heads_v": ("linear_num_value_heads",), "dim_v": ("linear_value_head_dim",),
    "kernel": ("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv", "conv_L_cache"),
    "heads": ("mamba_num_heads", "mamba_n_heads", "num_heads"),
    "dim": ("mamba_head_dim", "mamba_d_head", "head_dim"),
    "groups": ("n_groups", "mamba_n_groups"),
    "state": ("ssm_state_size", "mamba_d_state", "state_size"),
    "expand": ("expand", "mamba_expand"), "hidden": _HIDDEN,
}  # fmt: skip
_COMPRESSED: Final = CachedTensor("compressed tokens", "unknown: not built in")
_UNKNOWN_STATE: Final = CachedTensor("state", "unknown: config.json does not say its sizes")


@dataclass(frozen=True)
class _Keyed:
    """The language part of a configuration, whose values may stand under other keys, or in a list
    with one for each layer."""

    config: Config

    def value(self, keys: Sequence[str]) -> Any:
        """What stands under the first of the keys that says something."""
        values = self.config.values
        return next((values[key] for key in keys if values.get(key) is not None), None)

    def size(self, keys: Sequence[str], default: int, *, most: int = LARGEST_SIZE) -> int:
        """A whole number from 0 on; of a list the largest."""
        found = self.value(keys)
        if isinstance(found, list | tuple):
            found = max((each for each in found if is_whole(each)), default=None)
        return found if found is not None and is_whole(found) and 0 <= found <= most else default

    def of_layer(self, keys: Sequence[str], index: int, layers: int, default: int) -> int:
        """The same for one layer, if the list has one for each."""
        found = self.value(keys)
        if isinstance(found, list | tuple) and len(found) == layers and is_whole(found[index]):
            return int(found[index])
        return self.size(keys, default)


def nearest_shape(config: Mapping[str, Any], why: str) -> ModelShape:
    """The shape of the nearest kind of decoder; `why` says why there is none of the family's own.

    Raises UsageError for a configuration without layers, widths or a vocabulary.
    """
    part = _language_part(config)
    reader = _Keyed(part)
    sizes = _sizes(reader)
    layers = list(_layers(reader, sizes))
    others = sum(
        _tower(value, sizes.hidden) for value in config.values()
        if isinstance(value, Mapping) and value is not part.values
    )  # fmt: skip
    others += _decoder_depth(reader) * 4 * sizes.hidden**2
    names = config.get("architectures")
    named = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    # Saved configurations leave out what is the default of the base class.
    tied = config.get("tie_word_embeddings", part.values.get("tie_word_embeddings", True))
    # A table of narrower rows, which a product widens (ALBERT, ELECTRA), as one of fewer rows.
    rows = sizes.vocabulary * reader.size(("embedding_size",), sizes.hidden) // sizes.hidden or 1
    own = reader.size(("num_hidden_groups",), 0) * reader.size(("inner_group_num",), 1)
    own = own or 2 * reader.size(("num_layers_per_stack",), 0)  # HRM has two stacks
    kind, head = part.text("model_type", ""), Linear("lm_head", sizes.hidden, sizes.vocabulary)
    return ModelShape(
        family="llama" if kind in families() else kind,
        architecture=named or "a decoder",
        hidden=sizes.hidden,
        vocabulary=sizes.vocabulary,
        embeddings=(Embedding("model.embed_tokens", rows, sizes.hidden),),
        layers=_with(layers, "other_parts.weight", others),
        own_layers=own or None,
        layer_prefix="model.layers",
        final_norm=replace(layers[0].norms[0], name="model.norm"),
        # Code of a model's own calls its classes what it likes.
        head=None if is_body(named) and not config.get("auto_map") else head,
        tied=tied is True,
        rotary_dims=sizes.rotary_dims,
        buffers=rotary_buffers(sizes.rotary_dims),
        dtype=stored_dtype(Config(config)),
        max_positions=sizes.positions,
        known="assumed",
        why=why,
    )


def with_parameters(shape: ModelShape, parameters: int) -> ModelShape:
    """The shape with as many parameters as the headers of the weights tell: those that no key of
    config.json explains stand beside the first layer."""
    missing = parameters - parameter_count(shape)
    return replace(shape, layers=_with(shape.layers, "unexplained.weight", missing))


def _with(layers: Sequence[Layer], name: str, count: int) -> tuple[Layer, ...]:
    """The layers, beside the first of which are `count` parameters that no operation reads."""
    first, *rest = layers
    extra: Any = (*first.attention.extra, Parameter(name, (count,)))
    beside = replace(first, attention=replace(first.attention, extra=extra))
    return (beside, *rest) if count > 0 else tuple(layers)


def _language_part(config: Mapping[str, Any]) -> Config:
    """The part of a configuration with the layers of the decoder."""
    for key in _TEXT:
        part = config.get(key)
        if isinstance(part, Mapping):
            inner = _language_part(part)
            if _depth(_Keyed(inner)):
                return inner
    return Config(config)


def _depth(reader: _Keyed) -> int:
    """The number of layers, of an encoder and a decoder together; 0 if nothing tells it."""
    layers = reader.size(_LAYERS, 0, most=LARGEST_DEPTH)
    if crossing := _decoder_depth(reader):
        layers = reader.size(("encoder_layers",), layers, most=LARGEST_DEPTH) + crossing
    if interval := reader.size(("cross_layer_interval",), 0):  # layers that look at images
        layers += layers // interval
    listed = reader.value(_LISTED)
    return layers or (len(listed) if isinstance(listed, list) else 0)


def _decoder_depth(reader: _Keyed) -> int:
    """The number of layers that attend to the output of an encoder, too."""
    if reader.config.values.get("is_encoder_decoder") is not True:
        return 0
    layers = reader.size(("encoder_layers", *_LAYERS), 0, most=LARGEST_DEPTH)
    return reader.size(("decoder_layers", "num_decoder_layers"), layers, most=LARGEST_DEPTH)


def _sizes(reader: _Keyed) -> Sizes:
    hidden, layers = reader.size(_HIDDEN, 0), min(_depth(reader), LARGEST_DEPTH)
    vocabulary = reader.size(_VOCABULARY, 0)
    missing = [
        keys[0]
        for keys, value in ((_HIDDEN, hidden), (_LAYERS, layers), (_VOCABULARY, vocabulary))
        if not value
    ]
    if missing:
        raise UsageError(
            f"config.json does not say {' or '.join(missing)}. Without it nothing can be said of "
            "the model's size; take the config.json that belongs to the weights."
        )
    heads = reader.size(_HEADS, 0, most=LARGEST_COUNT) or max(1, hidden // 128)
    one = reader.value(("multi_query",)) is True and not reader.value(("new_decoder_architecture",))
    kv_heads = 1 if one else reader.size(_KV_HEADS, heads, most=LARGEST_COUNT)
    head_dim = reader.size(("head_dim", "attention_head_dim", "d_kv"), 0) or hidden // heads
    head_dim = max(2, head_dim)  # which can be rotated
    return Sizes(
        hidden=hidden,
        intermediate=reader.size(_WIDTH, 0) or hidden * 4,
        layers=layers,
        heads=heads,
        kv_heads=_divisor(heads, kv_heads),
        head_dim=head_dim,
        rotary_dims=head_dim - head_dim % 2,
        vocabulary=vocabulary,
        positions=reader.size(("max_position_embeddings", "n_positions"), 0, most=LARGEST_LENGTH)
        or None,
        activation="silu",
        attention_dropout=0.0,
    )


def _divisor(heads: int, wanted: int) -> int:
    """The number of heads of keys nearest to a wanted one that heads of queries can share."""
    return min((n for n in range(1, heads + 1) if heads % n == 0), key=lambda n: abs(n - wanted))


def _layers(reader: _Keyed, sizes: Sizes) -> Iterator[Layer]:
    made: dict[Any, Layer] = {}
    searched = reader.value(("block_configs",))
    if isinstance(searched, list) and len(searched) == sizes.layers:
        yield from _searched_layers(searched, reader, sizes)
        return
    for mixer, feeds, index in _parts(reader, sizes.layers):
        keys = _KV_HEADS if sizes.kv_heads > 1 else ()
        kv_heads = reader.of_layer(keys, index, sizes.layers, sizes.kv_heads)
        width = reader.of_layer(_WIDTH, index, sizes.layers, sizes.intermediate)
        shares = index >= sizes.layers - reader.size(("num_kv_shared_layers",), 0)
        key = (mixer, feeds, kv_heads, width, shares)
        if key not in made:
            own = replace(sizes, kv_heads=_divisor(sizes.heads, kv_heads), intermediate=width or 1)
            mixed: Any = _mixer(reader, own, mixer)
            if shares:
                mixed = replace(mixed, keeps=(SHARED_CACHE,))
            made[key] = Layer(mixed, _feed_forward(reader, own, feeds), norms(sizes))
        yield made[key]


def _searched_layers(blocks: Sequence[Any], reader: _Keyed, sizes: Sizes) -> Iterator[Layer]:
    """Layers whose parts were searched one by one (Nemotron-NAS): a number of heads that share
    keys, a factor of the width, or no such part (modeling_decilm.py: _ffn_mult_to_intermediate)."""
    for block in blocks:
        attend, feed = (
            _Keyed(Config(part if isinstance(part, Mapping) else {}))
            for part in (block.get("attention"), block.get("ffn"))
        ) if isinstance(block, Mapping) else (reader, reader)  # fmt: skip
        grouped = attend.size(("n_heads_in_group",), 1) or 1
        factor = feed.value(("ffn_mult",))
        width = 1
        if isinstance(factor, int | float) and 0 < factor < 1000:
            width = -(-int(2 * factor * sizes.hidden / 3) // 256) * 256
        own = replace(sizes, kv_heads=_divisor(sizes.heads, sizes.heads // grouped or 1))
        mixer = "none" if attend.value(("n_heads_in_group",)) is None else "full"
        yield Layer(_mixer(reader, own, mixer), gated_mlp(own, width), norms(sizes))


def _parts(reader: _Keyed, layers: int) -> Iterator[tuple[str, str, int]]:
    """(kind of mixer, kind of feed-forward part, index) of each layer. Where config.json lists the
    parts one by one, a mixer and the feed-forward part after it are a layer."""
    pattern, listed = reader.value(("hybrid_override_pattern",)), reader.value(_LISTED)
    parts = None
    if isinstance(pattern, str) and pattern and set(pattern) <= set(_LETTERS):
        parts = [_LETTERS[letter] for letter in pattern]
    elif isinstance(listed, list) and not {"mlp", "moe"}.isdisjoint(map(str, listed)):
        parts = [_PARTS.get(str(word), "full") for word in listed]
    if parts is not None:
        held = ""
        for index, kind in enumerate(parts[:layers]):
            if kind in ("dense", "experts"):
                yield held or "none", kind, index
                held = ""
                continue
            if held:
                yield held, "none", index
            held = kind
        if held:
            yield held, "none", layers - 1
        return
    # Beside layers that are both, and in Mamba itself, a state has no feed-forward part.
    told = None not in (reader.value(_WIDTH), reader.value(_HEADS))
    told = told and not (isinstance(listed, list) and "hybrid" in listed)
    for index, kind in enumerate(_kinds(reader, layers)):
        feed = "dense" if told or kind != "state" else "none"
        yield kind, "experts" if _has_experts(reader, index, layers) else feed, index


def _kinds(reader: _Keyed, layers: int) -> list[str]:
    """The kind of the attention of each layer: "full", "window", or "state"."""
    listed = reader.value(_LISTED)
    if isinstance(listed, list) and listed:
        words = [str(each).lower() for each in listed]
        # A list that is too short is a pattern, and what it has too many of is not built.
        words = [words[index % len(words)] for index in range(layers)]
        return [next((is_a for part, is_a in _KINDS if part in word), "full") for word in words]
    if reader.size(("state_size",), 0) and reader.value(_HEADS[:1]) is None:  # Mamba itself
        return ["state"] * layers
    attending = reader.value(("attn_layer_indices",))
    if isinstance(attending, list):
        return ["full" if index in attending else "state" for index in range(layers)]
    window = reader.size(("sliding_window", "sliding_window_size"), 0)
    numbered = reader.value(("hybrid_layer_pattern", "attn_type_list"))
    if isinstance(numbered, list) and len(numbered) >= layers:
        # MiMo: 1 is a window; MiniMax 01: 0 is linear attention.
        other = ("window", 1) if "hybrid_layer_pattern" in reader.config.values else ("state", 0)
        return [other[0] if each == other[1] else "full" for each in numbered[:layers]]
    period = reader.size(_PERIOD, 0)
    if period > 1:
        far = "window" if window else "state"
        last = reader.size(("attn_layer_offset",), period - 1)
        return ["full" if index % period == last else far for index in range(layers)]
    slides = window and reader.config.values.get("use_sliding_window") is not False
    return ["window" if slides else "full"] * layers


def _has_experts(reader: _Keyed, index: int, layers: int) -> bool:
    if not reader.size(_EXPERTS, 0) or reader.config.values.get("is_moe") is False:
        return False
    listed = reader.value(("mlp_layer_types", "moe_layer_freq", "moe_layers_enum"))
    if isinstance(listed, str):
        return str(index) in listed.split(",")
    if isinstance(listed, list) and len(listed) == layers:
        return listed[index] not in (0, "dense")
    named = reader.value(("mlp_only_layers",))
    if isinstance(named, list) and index in named:
        return False
    step = reader.size(("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq",
                        "expert_layer_period", "moe_layer_interval"), 1) or 1  # fmt: skip
    first = reader.size((*_DENSE_LAYERS, "moe_layer_start_index"), 0)
    return index >= first and (step == 1 or (index + 1) % step == 0)


def _mixer(reader: _Keyed, sizes: Sizes, kind: str) -> Attention | LatentAttention:
    if kind == "none":
        least = replace(sizes, heads=1, kv_heads=1, head_dim=2, rotary_dims=2)
        return replace(attention(least, window=1), keeps=())
    if kind == "state":
        return _state(reader, sizes)
    rope = reader.size(("qk_rope_head_dim",), 0)
    if reader.size(("kv_lora_rank",), 0) and rope:
        own = replace(sizes, kv_heads=sizes.heads, rotary_dims=rope)
        latent = latent_attention(reader.config, own, "deepseek_v3")
        return replace(latent, index_dim=reader.size(("index_head_dim",), 0))
    if kind == "window":
        window = reader.size(("sliding_window", "sliding_window_size"), 4096)
        keys = reader.size(("swa_num_key_value_heads",), sizes.kv_heads)
        own = replace(sizes, kv_heads=_divisor(sizes.heads, keys))
        slides = _of_values(reader, attention(own, window=window or 4096))
        if reader.value(("compress_ratios", "compress_rates")) is None:
            return slides
        shared = replace(slides.kept[0], formula="heads_kv · head_dim")  # keys are the values, too
        return replace(slides, keeps=(shared, _COMPRESSED))
    return _of_values(reader, attention(sizes))


def _of_values(reader: _Keyed, spec: Attention) -> Attention:
    """The attention, where values are narrower than keys (MiMo)."""
    width = reader.size(("v_head_dim",), 0)
    if not width or width == spec.head_dim:
        return spec
    (usual,) = spec.kept
    formula = "heads_kv · head_dim + heads_kv · v_head_dim"
    sizes = (*usual.sizes, ("v_head_dim", width))
    return replace(spec, keeps=(replace(usual, formula=formula, sizes=sizes),))


def _state(reader: _Keyed, sizes: Sizes) -> Attention:
    """A layer with a state: the width that its projections have, as heads of attention that sees
    one position."""
    dim = reader.size(("linear_value_head_dim", "mamba_head_dim", "mamba_d_head"), sizes.head_dim)
    dim = dim or 1
    wide = reader.size(_STATE_SIZES["expand"], 0) * sizes.hidden // dim or sizes.heads
    heads = reader.size(("linear_num_value_heads", "mamba_num_heads", "mamba_n_heads"), wide) or 1
    groups = reader.size(("linear_num_key_heads", "n_groups", "mamba_n_groups"), heads)
    state = reader.size(("linear_key_head_dim", *_STATE_SIZES["state"]), dim)
    # Gate and values have the width of all heads; keys and queries that of all groups.
    wanted = (heads * dim + 2 * groups * state) // (2 * dim)
    own = replace(sizes, heads=heads, head_dim=dim, kv_heads=_divisor(heads, wanted))
    keeps = next(filter(None, (_states(reader, *row) for row in _STATES)), (_UNKNOWN_STATE,))
    return replace(attention(replace(own, rotary_dims=dim - dim % 2 or 2), window=1), keeps=keeps)


def _states(reader: _Keyed, kind: str, formulas: Sequence[str]) -> tuple[CachedTensor, ...]:
    """What a layer of a kind keeps, empty if config.json lacks one of its sizes."""
    known = {name: reader.size(keys, 0) for name, keys in _STATE_SIZES.items()}
    names: Any = (("convolution", "activations"), ("state", "fp32"))
    found = []
    for formula, (name, dtype) in zip(formulas, names, strict=True):
        sizes = tuple((word, known[word]) for word in formula.split() if word in known)
        if not all(size for _, size in sizes):
            return ()
        if formula:
            found.append(CachedTensor(f"{kind}, {name}", formula, sizes, "sequence", dtype=dtype))
    return tuple(found)


def _feed_forward(reader: _Keyed, sizes: Sizes, kind: str) -> Mlp | Moe:
    # Two matrices in place of three count as three of two thirds of the width, which LFM2 takes.
    keys = ("block_auto_adjust_ff_dim", "gelu_activation", "expansion_ratio")  # XLM's, and MPT's
    two = reader.value(_ACTIVATION) in _UNGATED or any(map(reader.config.values.get, keys))
    dense = 2 * sizes.intermediate // 3 or 1 if two else sizes.intermediate
    if kind != "experts":
        return gated_mlp(sizes, 1 if kind == "none" else dense)
    experts = reader.size(_EXPERTS, 1, most=LARGEST_COUNT)
    width = reader.size(_EXPERT_WIDTH, sizes.intermediate) or sizes.intermediate
    width = width * reader.size(("moe_hidden_size",), sizes.hidden) // sizes.hidden or 1
    shared = reader.size(_SHARED_WIDTH, 0) or width * reader.size(_SHARED, 0)
    if two:
        width, shared = 2 * width // 3 or 1, 2 * shared // 3
    beside = gated_mlp(sizes, shared, "mlp.shared_experts") if shared else None
    return Moe(
        experts=experts,
        top_k=max(1, min(experts, reader.size(_CHOSEN, 1))),
        hidden=sizes.hidden,
        intermediate=width,
        router=Parameter("mlp.gate.weight", (experts, sizes.hidden)),
        stacked=stacked_experts(sizes, experts, width, "mlp.experts"),
        activation=sizes.activation,
        shared=beside,
        style="deepseek_v2" if shared else "qwen3_moe",
        normalized=True,
    )


def _tower(part: Mapping[str, Any], hidden: int) -> int:
    """About how many parameters an encoder of images or sounds has: four products of attention,
    two of the feed-forward part, and a projection to the hidden size."""
    reader = _Keyed(Config(part))
    width = reader.size(("hidden_size", "vt_hidden_size", "embed_dim", "d_model", "width"), 0)
    layers = reader.size(("depth", "num_hidden_layers", "vt_num_hidden_layers", "encoder_layers",
                          "layers"), 0)  # fmt: skip
    if not width or not layers or layers > LARGEST_DEPTH:
        return 0
    inner = reader.size(("intermediate_size", "vt_intermediate_size", "encoder_ffn_dim"), 4 * width)
    out = reader.size(("out_hidden_size",), hidden)
    return layers * (4 * width * width + 2 * width * inner) + 16 * width * width + 4 * width * out
