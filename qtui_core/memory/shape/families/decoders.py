"""Decoders with Llama's names of modules: a row for each family, and functions for what no row can
say. Defaults are those of transformers 5.23."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from qtui_core.memory.shape.config_reader import LARGEST_COUNT, Config, UnknownFamily, stored_dtype
from qtui_core.memory.shape.families import deepseek, delta
from qtui_core.memory.shape.families.decoder import (
    BIAS,
    PAIR,
    SCALE_BUFFER,
    DecoderFamily,
    Experts,
    Sizes,
    gated_mlp,
    layers_of,
    rotated,
    sizes_of,
    tower_of,
    with_attention,
)
from qtui_core.memory.shape.families.deepseek import Mixture
from qtui_core.memory.shape.model_shape import (
    SHARED_CACHE,
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


def _phi3(row: DecoderFamily, config: Config, sizes: Sizes) -> list[Layer]:
    """One product gives queries, keys and values, another gate and up."""
    layer = layers_of(row, config, sizes)[0]
    assert isinstance(layer.attention, Attention)
    assert isinstance(layer.mlp, Mlp)
    qkv = Linear("self_attn.qkv_proj", sizes.hidden, sizes.queries + 2 * sizes.keys)
    both = Linear("mlp.gate_up_proj", sizes.hidden, 2 * sizes.intermediate)
    attend = replace(layer.attention, fused=qkv, query=None, key=None, value=None)
    mlp = replace(layer.mlp, fused=both, gate=None, up=None)
    return [replace(layer, attention=attend, mlp=mlp)] * sizes.layers


def _stablelm_sizes(row: DecoderFamily, config: Config) -> Sizes:
    """A head has hidden / heads elements, whatever head_dim says."""
    sizes = sizes_of(row, config)
    head_dim = sizes.hidden // sizes.heads
    assert row.rotary_part is not None
    dims = rotated(config, head_dim, "partial_rotary_factor", row.rotary_part)
    return replace(sizes, head_dim=head_dim, rotary_dims=dims)


def _stablelm(row: DecoderFamily, config: Config, sizes: Sizes) -> list[Layer]:
    """In some models norms for each head of queries and keys; in some attention and feed-forward
    part in parallel."""
    if config.flag("use_parallel_residual", False):
        row = replace(row, norms=PAIR[:1], arrangement="parallel")
    layers = layers_of(row, config, sizes)
    if config.flag("qk_layernorm", False):
        norms = tuple(
            Norm(f"self_attn.{side}_layernorm.norms.{head}", sizes.head_dim, "layer")
            for side, heads in (("q", sizes.heads), ("k", sizes.kv_heads))
            for head in range(heads)
        )
        layers = with_attention(layers, lambda attend: replace(attend, head_norms=norms))
    mlp = replace(gated_mlp(sizes), dropout=config.probability("hidden_dropout"))
    return [replace(layers[0], mlp=mlp)] * sizes.layers


def _gemma_sizes(row: DecoderFamily, config: Config) -> Sizes:
    """In the first releases "gelu" means the tanh approximation, which the class uses."""
    sizes = sizes_of(row, config)
    tanh = sizes.activation == "gelu"
    return replace(sizes, activation="gelu_pytorch_tanh") if tanh else sizes


def _gemma2(row: DecoderFamily, config: Config, sizes: Sizes) -> list[Layer]:
    """Scores are capped by a tanh."""
    capped = config.number("attn_logit_softcapping", 50.0) is not None
    layers = layers_of(row, config, sizes)
    return with_attention(layers, lambda attend: replace(attend, softcap=capped))


def _gemma3(row: DecoderFamily, config: Config, sizes: Sizes) -> list[Layer]:
    """Where attention sees both directions, the window is half as long to each side."""
    layers = layers_of(row, config, sizes)
    if not config.flag("use_bidirectional_attention", False):
        return layers
    return with_attention(
        layers,
        lambda attend: replace(
            attend, causal=False, window=None if attend.window is None else attend.window // 2 + 1
        ),
    )


def _gemma4(row: DecoderFamily, config: Config) -> ModelShape:
    """The shape, with a buffer for the factor of each layer, and what makes their embeddings."""
    shape = row(config)
    count, gates = len(shape.layers), shape.layers[0].gates
    factors = (SCALE_BUFFER,) * (count + bool(gates))
    shape = replace(shape, buffers=(*shape.buffers, *factors))
    if not gates:
        return shape
    width = gates[0].outputs
    rows = config.size("vocab_size_per_layer_input", 262_144)
    table = Embedding("model.embed_tokens_per_layer", rows, count * width)
    projection = Linear("model.per_layer_model_projection", shape.hidden, count * width)
    modules = projection, Norm("model.per_layer_projection_norm", width, row.norm)
    return replace(shape, embeddings=(*shape.embeddings, table), embedding_modules=modules)


def _gemma3n(row: DecoderFamily, config: Config) -> ModelShape:
    """As Gemma 4, with products that make streams of embeddings, and others that join them. Layers
    may differ in width, of which the first is the model's."""
    widths = config.values.get("intermediate_size")
    if isinstance(widths, list):
        both = {"intermediate_size": [*widths, 0][0], "intermediate_sizes": widths}
        config = replace(config, values={**config.values, **both})
    shape = _gemma4(row, config)
    count, size = config.size("altup_num_inputs", 4) - 1, shape.hidden
    first, last = (
        tuple(Linear(f"model.altup_{name}.{index}", size, size) for index in range(count))
        for name in ("projections", "unembed_projections")
    )
    return replace(
        shape,
        embedding_modules=(*shape.embedding_modules, *first),
        head_modules=(*last[:-1], replace(last[-1], last=shape.tied)),
        buffers=(*shape.buffers, SCALE_BUFFER, SCALE_BUFFER),
    )


def _gemma3n_layers(row: DecoderFamily, config: Config, sizes: Sizes) -> Iterator[Layer]:
    """Layers of Gemma 4 within AltUp, beside a product of low rank. Those with a share in
    activation_sparsity_pattern, by default the first ten, set most activations to zero."""
    count, layers = config.size("altup_num_inputs", 4), sizes.layers
    if count < 3 or not config.flag("altup_correct_scale", True):
        raise UnknownFamily("Gemma 3n without its scale, or of two streams, is not built in.")
    usual = [0.95 if index < 10 < layers else 0.0 for index in range(layers)]
    shares = config.each("activation_sparsity_pattern", float, layers, usual)
    widths = config.each("intermediate_sizes", int, layers, [sizes.intermediate] * layers)
    rank = config.size("laurel_rank", 64)
    scale = Parameter("altup.correct_output_scale", (sizes.hidden,))
    gates = (
        Linear("laurel.linear_left", sizes.hidden, rank),
        Linear("laurel.linear_right", rank, sizes.hidden),
        Linear("altup.correction_coefs", count, count, clipped=True),
        Linear("altup.prediction_coefs", count, count * count),
        Linear("altup.modality_router", sizes.hidden, count),
    )
    made = _gemma4_layers(row, config, sizes)
    for layer, share, width in zip(made, shares, widths, strict=True):
        # A width of a list has no letter in formulas, that of all layers has.
        mlp = gated_mlp(sizes, None if width == sizes.intermediate else width)
        yield replace(
            layer,
            attention=replace(layer.attention, extra=(scale,)),
            mlp=replace(mlp, style="gemma3n-sparse" if share > 0 else "gemma3n"),
            gates=(*layer.gates, *gates),
        )


def _gemma4_layers(row: DecoderFamily, config: Config, sizes: Sizes) -> Iterator[Layer]:
    """Of each six layers five have a window, and the last has none, whatever layer_types says; of
    Gemma 3n four of five. Raises UsageError if a layer is to use keys that none before it has."""
    if config.text("use_bidirectional_attention", "") == "all":
        raise UnknownFamily("Gemma 4 with attention in both directions is not built in.")
    new = row.style == "gemma4"
    near = [(index + 1) % (6 if new else 5) for index in range(sizes.layers)]
    usual = ("sliding_attention" if each else "full_attention" for each in near)
    kinds = config.each("layer_types", str, sizes.layers, usual)
    kinds = (*kinds[:-1], "full_attention" if new else kinds[-1])
    own = config.size("num_kv_shared_layers", 0 if new else 15, least=0, most=sizes.layers)
    own = sizes.layers - own
    if own < sizes.layers and set(kinds[:own]) != set(kinds):
        raise config.refuse("layers share keys (num_kv_shared_layers) that none before them has.")
    equal, saved = config.flag("attention_k_eq_v", False), config.within("per_layer_config")
    if saved is None:
        keys = config.optional_size("num_global_key_value_heads") if equal else None
        dim = config.size("global_head_dim", 512) if new else sizes.head_dim
    else:  # what transformers writes in place of these two
        far = [str(index) for index, kind in enumerate(kinds) if kind == "full_attention"]
        last = saved.within(far[-1]) or saved
        if saved.values != dict.fromkeys(far, last.values):
            raise UnknownFamily("Gemma 4 with sizes of single layers is not built in.")
        keys, dim = last.optional_size("num_key_value_heads"), last.size("head_dim", sizes.head_dim)
    wide = replace(sizes, head_dim=dim, rotary_dims=dim, kv_heads=keys or sizes.kv_heads)
    if wide.heads % wide.kv_heads:
        raise config.refuse(f"{wide.heads:,} heads cannot share {wide.kv_heads:,} heads of keys.")

    @cache
    def layer(slides: bool, shares: int | None) -> Layer:
        return _gemma4_layer(row, config, sizes if slides else wide, slides, shares)

    for index, kind in enumerate(kinds):
        stores = own < sizes.layers and kind not in kinds[index + 1 : own]
        shares = kinds[own : index + 1].count(kind) if index >= own else 0 if stores else None
        yield layer(kind == "sliding_attention", shares)


def _gemma4_layer(
    row: DecoderFamily, config: Config, sizes: Sizes, slides: bool, shares: int | None
) -> Layer:
    """A layer with a window or without, which `Attention.shares` its keys."""
    mixes = config.flag("enable_moe_block", False)
    width = config.size("hidden_size_per_layer_input", 256, least=0)
    beside = ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2",
              "post_feedforward_layernorm_2") * mixes  # fmt: skip
    own = ("post_per_layer_input_norm",) * (width > 0)
    names = (*row.norms[:3], *beside, *row.norms[3:], *own)
    window, experts = row.window if slides else None, row.experts if mixes else None
    row = replace(row, window=window, norms=names, experts=experts)
    doubled = bool(shares) and config.flag("use_double_wide_mlp", False)
    sizes = replace(sizes, layers=1, intermediate=sizes.intermediate * (1 + doubled))
    (layer,) = layers_of(row, config, sizes)
    norm = Norm("self_attn.v_norm", sizes.head_dim, row.norm, weight=False)
    attend: Any = layer.attention
    attend = replace(attend, value_norm=norm, table=int(slides), shares=shares)
    if not slides and config.flag("attention_k_eq_v", False):
        attend = replace(attend, value=None)
    if shares:
        without = dict.fromkeys(("key", "value", "key_norm", "value_norm"))
        attend = replace(attend, **without, keeps=(SHARED_CACHE,))
    gate = Linear("per_layer_input_gate", sizes.hidden, width)
    gates = gate, Linear("per_layer_projection", width, sizes.hidden)
    mlp = layer.mlp
    if isinstance(mlp, Moe):
        scales = {"router.scale": sizes.hidden, "router.per_expert_scale": mlp.experts}
        extra = tuple(Parameter(name, (size,)) for name, size in scales.items())
        router = Linear("router.proj", sizes.hidden, mlp.experts)
        mlp = replace(mlp, router=router, extra=extra, shared=gated_mlp(sizes))
    return replace(layer, attention=attend, mlp=mlp, gates=gates if width else ())


def _late(config: Config, index: int) -> bool:
    return index >= config.size("max_window_layers", 28, least=0, most=LARGEST_COUNT)


def _sparse(row: DecoderFamily, config: Config, sizes: Sizes) -> Iterator[Layer]:
    """Experts in each decoder_sparse_step-th layer that mlp_only_layers does not name."""
    step = config.size("decoder_sparse_step", 1, most=LARGEST_COUNT)
    dense = config.listed("mlp_only_layers", int) or ()
    for index, layer in enumerate(layers_of(row, config, sizes)):
        sparse = index not in dense and (index + 1) % step == 0
        yield layer if sparse else replace(layer, mlp=gated_mlp(sizes))


def _cohere(row: DecoderFamily, config: Config, sizes: Sizes) -> list[Layer]:
    """Some models have norms of queries and keys, with weights for each head."""
    layers = layers_of(row, config, sizes)
    if not config.flag("use_qk_norm", False):
        return layers
    query, key = (
        Norm(f"self_attn.{side}_norm", sizes.head_dim, row.norm, shape=(heads, sizes.head_dim))
        for side, heads in (("q", sizes.heads), ("k", sizes.kv_heads))
    )
    return with_attention(layers, lambda attend: replace(attend, query_norm=query, key_norm=key))


def _cohere2(row: DecoderFamily, config: Config, sizes: Sizes) -> list[Layer]:
    """Layers without a window have no positions."""
    return with_attention(
        layers_of(row, config, sizes),
        lambda attend: _unrotated(attend) if attend.window is None else attend,
    )


def _unrotated(attend: Attention) -> Attention:
    return replace(attend, rotary_dims=0, positions="none")


def _rotating(config: Config, layers: int) -> tuple[int, ...]:
    """Whether each layer rotates queries and keys: all but each no_rope_layer_interval-th."""
    period = config.size("no_rope_layer_interval", 4, most=LARGEST_COUNT)
    usual = tuple(int((index + 1) % period != 0) for index in range(layers))
    given = config.values.get("no_rope_layers")
    return usual if given == [] else config.each("no_rope_layers", int, layers, usual)


def _smollm3(row: DecoderFamily, config: Config, sizes: Sizes) -> list[Layer]:
    """Each fourth layer does not rotate; those have the window, if any has."""
    rotating = _rotating(config, sizes.layers)
    row = replace(row, slides=lambda _, index: not rotating[index])
    near = layers_of(row, config, sizes)
    pairs = zip(rotating, near, with_attention(near, _unrotated), strict=True)
    return [layer if rotates else unrotated for rotates, layer, unrotated in pairs]


def _llama4(row: DecoderFamily, config: Config, sizes: Sizes) -> Iterable[Layer]:
    """Every expert works on every token, weighted by its score, beside a shared expert. Most layers
    rotate queries and keys and see one chunk of the sequence; each fourth does neither.

    The router is derived from a linear layer but returns two results: neither an adapter nor a
    quantized layer can replace it, so it is a parameter here.
    """
    rotating = _rotating(config, sizes.layers)
    usual = ("chunked_attention" if rotates else "" for rotates in rotating)
    kinds = config.each("layer_types", str, sizes.layers, usual)
    chunk = config.optional_size("attention_chunk_size", 8192)
    unit_norm = config.flag("use_qk_norm", True)
    tuned = config.flag("attn_temperature_tuning", True)
    layer = layers_of(row, config, sizes)[0]
    attend = layer.attention
    assert isinstance(attend, Attention)
    assert isinstance(layer.mlp, Moe)
    shared = gated_mlp(sizes, prefix="feed_forward.shared_expert")
    experts = replace(layer.mlp, shared=shared)
    dense = gated_mlp(sizes, config.size("intermediate_size_mlp", 16384), "feed_forward")
    step = config.size("interleave_moe_layer_step", 1, most=LARGEST_COUNT)
    named = config.listed("moe_layers", int)
    sparse = range(step - 1, sizes.layers, step) if named is None else named
    for index, (rotates, kind) in enumerate(zip(rotating, kinds, strict=True)):
        chunked = kind == "chunked_attention"
        yield replace(
            layer,
            attention=replace(
                attend,
                positions="rope" if rotates else "none",
                rotary_dims=sizes.rotary_dims if rotates else 0,
                unit_norm=bool(rotates) and unit_norm,
                window=chunk if chunked else None,
                chunked=chunked,
                style="llama4" if rotates or not tuned else "llama4-tuned",
            ),
            mlp=experts if index in sparse else dense,
        )


def _glm4_moe(row: DecoderFamily, config: Config, sizes: Sizes) -> list[Layer]:
    """The router is that of DeepSeek V3; some models have norms of queries and keys."""
    if config.flag("use_qk_norm", False):
        row = replace(row, head_norms="each")
    mixture = Mixture("deepseek_v3", 128, 8, 1, 1408, 1, (1, 1))
    return mixture.layers(config, sizes, layers_of(row, config, sizes)[0])


def _qwen1(config: Config) -> ModelShape:
    """Raises UnknownFamily: the code of Qwen 1 is stored with its weights."""
    raise UnknownFamily(
        "Qwen 1 (model type 'qwen') has no class in transformers; its code comes with the weights "
        "and is never executed here. Qwen 1.5 and later are of type 'qwen2' and are known."
    )


def _of_text(family: str, defaults: Mapping[str, int], config: Config) -> ModelShape:
    """The shape of the language model in a multimodal config.json, from its text_config, which is
    of `family` unless it says otherwise and may leave out `defaults`; the dtype is that of the
    whole if the part has none, and the whole decides what is tied. An encoder of images stands
    beside it, unless config.json names the class of the text part."""
    part = config.within("text_config")
    given = part.values if part else {}
    tied = {key: config.values[key] for key in ("tie_word_embeddings",) if key in config.values}
    values = {"model_type": family, **defaults, **given, **tied, "dtype": stored_dtype(config)}
    build = DECODERS.get(str(values["model_type"]), DECODERS[family])
    shape = build(Config(values, "text_config of config.json"))
    alone = any(name.endswith("ForCausalLM") for name in config.listed("architectures", str) or ())
    tower = None if alone else tower_of(config, int(shape.hidden))
    note = "The language model alone is counted; the part that sees images is not."
    if tower is not None:
        note = (
            "What sees images is counted, and frozen: keep it out of peft's targets "
            "(exclude_modules); --image-tokens is an upper bound. What hears is not counted."
        )
    return replace(shape, known="derived", tower=tower, notes=(note, *shape.notes))


_GEMMA: Final = DecoderFamily(
    "GemmaForCausalLM", 16, 256, ("hidden_act", "gelu_pytorch_tanh"), tied=True, positions=8192,
    norm="rms-one-plus", embedding_scales_itself=True, sizes=_gemma_sizes,
)  # fmt: skip
#: Norms before and after each part, and every other layer with a window.
_GEMMA2: Final = replace(
    _GEMMA, architecture="Gemma2ForCausalLM", kv_heads=4, whole_heads=True, style="gemma2",
    activation=("hidden_activation", "gelu_pytorch_tanh"), arrangement="sandwich",
    norms=(*PAIR, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    window=("sliding_window", 4096), slides=lambda _, index: index % 2 == 0,
    logit_softcap=("final_logit_softcapping", 30.0), sizes=None, layers=_gemma2, eager=True,
)  # fmt: skip
#: Layers from max_window_layers on have a window, if any has.
_QWEN2: Final = DecoderFamily(
    "Qwen2ForCausalLM", 32, positions=32768, bias=True, out_bias=False,
    window=("sliding_window", 4096), windowed=("use_sliding_window", False), slides=_late,
)  # fmt: skip
_QWEN3: Final = replace(
    _QWEN2, architecture="Qwen3ForCausalLM", head_dim=128, bias=BIAS, out_bias=None,
    head_norms="each",
)  # fmt: skip
_QWEN3_MOE: Final = replace(
    _QWEN3, architecture="Qwen3MoeForCausalLM", kv_heads=4, head_dim=None, slides=None,
    layers=_sparse, experts=Experts(
        "qwen3_moe", (("num_local_experts", "num_experts"), 128), 8,
        ("moe_intermediate_size", 768), normalized=("norm_topk_prob", False),
    ),
)  # fmt: skip
#: Half of the product of queries is a gate, and a quarter of each head is rotated.
_QWEN3_NEXT: Final = DecoderFamily(
    "Qwen3NextForCausalLM", 2, 256, positions=32768, rotary_part=0.25, norm="rms-one-plus",
    head_norms="each", style="qwen3_next", note=delta.NOTE,
    layers=partial(delta.layers_of, _sparse, False),
    experts=Experts(
        "qwen2_moe", ("num_experts", 512), 10, ("moe_intermediate_size", 512),
        normalized=("norm_topk_prob", True), shared=("shared_expert_intermediate_size", 512),
    ),
)  # fmt: skip
_QWEN3_5: Final = replace(
    _QWEN3_NEXT, architecture="Qwen3_5ForCausalLM", kv_heads=4, rotary_kind="grids", experts=None,
    layers=partial(delta.layers_of, layers_of, True),
)  # fmt: skip
_GRANITE: Final = DecoderFamily(
    "GraniteForCausalLM", mlp_bias=("mlp_bias", False), residual_scale=True, embedding_scale=True,
    logit_scale=True,
)  # fmt: skip
#: Norms after attention and feed-forward part, and over all heads of queries and of keys.
_OLMO2: Final = DecoderFamily(
    "Olmo2ForCausalLM", norm="rms-cast-last", arrangement="post", head_norms="all",
    norms=("post_attention_layernorm", "post_feedforward_layernorm"), style="olmo2",
    rotary_kind="float32",
)  # fmt: skip
#: Attention and feed-forward part in parallel after one norm.
_COHERE: Final = DecoderFamily(
    "CohereForCausalLM", tied=True, positions=8192, norm="layer-plain", norms=PAIR[:1],
    arrangement="parallel", style="cohere", logit_scale=True, layers=_cohere,
)  # fmt: skip
#: Latent attention. V2 rotates pairs as complex numbers.
_DEEPSEEK2: Final = DecoderFamily(
    "DeepseekV2ForCausalLM", rotary_kind="complex", sizes=deepseek.sizes_of,
    mlp_bias=("mlp_bias", False),
    layers=partial(
        deepseek.layers_of, Mixture("deepseek_v2", 64, None, 2, 1407, 0, (None, None))
    ),
)  # fmt: skip

DECODERS: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "llama": DecoderFamily(
        "LlamaForCausalLM", whole_heads=True, mlp_bias=("mlp_bias", False)
    ),
    "smollm3": DecoderFamily(
        "SmolLM3ForCausalLM", 4, tied=True, positions=32768, mlp_bias=("mlp_bias", False),
        window=("sliding_window", None), windowed=("use_sliding_window", False), layers=_smollm3,
    ),
    "mistral": DecoderFamily(
        "MistralForCausalLM", 8, positions=4096 * 32, bias=False, window=("sliding_window", 4096)
    ),
    "mistral3": partial(_of_text, "mistral", {}),
    "ministral3": DecoderFamily(
        "Ministral3ForCausalLM", 8, 128, positions=262_144, bias=False,
        window=("sliding_window", None), style="ministral3",
    ),
    "mixtral": DecoderFamily(
        "MixtralForCausalLM", 8, positions=4096 * 32, bias=False, window=("sliding_window", None),
        experts=Experts("mixtral", (("num_local_experts", "num_experts"), 8), 2),
    ),
    "seed_oss": DecoderFamily(
        "SeedOssForCausalLM", 8, 128, positions=524_288, bias=("attention_bias", True),
        out_bias=("attention_out_bias", False), mlp_bias=("mlp_bias", False),
        attention_dropout=0.1, dropout=("residual_dropout", 0.1), style="seed_oss",
        mlp_style="seed_oss",
    ),
    "phi3": DecoderFamily(
        "Phi3ForCausalLM", positions=4096, rotary_part=1.0, bias=False, style="phi3",
        mlp_style="phi3", dropout=("resid_pdrop", 0.0), window=("sliding_window", None),
        layers=_phi3,
    ),
    # A quarter of each head is rotated.
    "stablelm": DecoderFamily(
        "StableLmForCausalLM", 32, positions=4096, rotary_part=0.25, whole_heads=True,
        bias=("use_qkv_bias", False), out_bias=False, norm="layer", norm_bias=True,
        style="stablelm", tp_plan=False, sizes=_stablelm_sizes, layers=_stablelm,
    ),
    "granite": _GRANITE,
    "granitemoe": replace(
        _GRANITE, architecture="GraniteMoeForCausalLM", mlp_bias=False,
        experts=Experts(
            "granitemoe", ("num_local_experts", 8), 2, prefix="block_sparse_moe.", router="router"
        ),
    ),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": partial(_of_text, "gemma3_text", {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "vocab_size": 262_208,
    }),
    # Of each six layers five have a window.
    "gemma3_text": replace(
        _GEMMA2, architecture="Gemma3ForCausalLM", positions=131_072, style="gemma3",
        slides=lambda c, index: (index + 1) % c.size("sliding_window_pattern", 6) != 0,
        head_norms="each", tables_by_kind=True, layers=_gemma3, eager=False,
        logit_softcap=("final_logit_softcapping", None),
    ),
    "gemma3n": partial(_of_text, "gemma3n_text", {}),
    "gemma3n_text": partial(_gemma3n, replace(
        _GEMMA2, architecture="Gemma3nForCausalLM", kv_heads=2, positions=32_768, style="gemma3n",
        eager=False, norm="rms-power", head_norms="each", window=("sliding_window", 512),
        slides=None, layers=_gemma3n_layers, arrangement="altup",
        norms=(*_GEMMA2.norms, "altup.router_norm", "laurel.post_laurel_norm"),
    )),
    "gemma4": partial(_of_text, "gemma4_text", {}),
    "gemma4_text": partial(_gemma4, replace(
        _GEMMA2, architecture="Gemma4ForCausalLM", positions=131_072, style="gemma4", eager=False,
        norm="rms-power", head_norms="each", window=("sliding_window", 512), slides=None,
        logit_softcap=("final_logit_softcapping", None), layers=_gemma4_layers, experts=Experts(
            "gemma4", ("num_experts", 128), 8, ("moe_intermediate_size", 704), prefix="",
        ),
    )),
    "qwen": _qwen1,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen2_moe": replace(
        _QWEN2, architecture="Qwen2MoeForCausalLM", kv_heads=16, bias=("qkv_bias", True),
        slides=lambda config, index: index % 2 == 0 and not _late(config, index), layers=_sparse,
        experts=Experts(
            "qwen2_moe", (("num_experts", "num_local_experts"), 60), 4,
            ("moe_intermediate_size", 1408), normalized=("norm_topk_prob", False),
            shared=("shared_expert_intermediate_size", 5632),
        ),
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl": partial(_of_text, "qwen3_vl_text", {
        "hidden_size": 4096, "intermediate_size": 22_016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 151_936,
    }),
    # Rotary tables are made of three positions of a token: in time, height and width.
    "qwen3_vl_text": replace(
        _QWEN3, architecture="Qwen3VLForConditionalGeneration", positions=128_000,
        out_bias=None, window=None, slides=None, rotary_kind="grids",
    ),
    "qwen3_vl_moe": partial(_of_text, "qwen3_vl_moe_text", {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "vocab_size": 151_936,
    }),
    "qwen3_vl_moe_text": replace(
        _QWEN3_MOE, architecture="Qwen3VLMoeForConditionalGeneration", kv_heads=16,
        positions=128_000, window=None, rotary_kind="grids", experts=Experts(
            "qwen3_moe", (("num_local_experts", "num_experts"), 60), 4,
            ("moe_intermediate_size", 1408),
        ),
    ),
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": partial(_of_text, "qwen3_5_text", {}),
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe": partial(_of_text, "qwen3_5_moe_text", {}),
    "qwen3_5_moe_text": replace(
        _QWEN3_5, architecture="Qwen3_5MoeForCausalLM", kv_heads=2, sizes=delta.sizes_of_mixture,
        experts=Experts(
            "qwen2_moe", ("num_experts", 256), 8, ("moe_intermediate_size", 512),
            shared=("shared_expert_intermediate_size", 512),
        ),
    ),
    "olmo2": _OLMO2,
    # Of each four layers, three have a window; each kind has its rotary tables.
    "olmo3": replace(
        _OLMO2, architecture="Olmo3ForCausalLM", window=("sliding_window", 4096),
        slides=lambda _, index: (index + 1) % 4 != 0, tables_by_kind=True,
    ),
    "cohere": _COHERE,
    # Of each four layers, three have a window and rotary positions, one has neither.
    "cohere2": replace(
        _COHERE, architecture="Cohere2ForCausalLM", window=("sliding_window", 4096),
        slides=lambda c, index: (index + 1) % c.size("sliding_window_pattern", 4) != 0,
        layers=_cohere2,
    ),
    "llama4": partial(_of_text, "llama4_text", {
        "hidden_size": 5120, "intermediate_size": 8192, "num_hidden_layers": 48,
        "num_attention_heads": 40, "vocab_size": 202_048,
    }),
    "llama4_text": DecoderFamily(
        "Llama4ForCausalLM", 8, 128, positions=4096 * 32, norm="rms-weight-last", style="llama4",
        rotary_kind="complex", layers=_llama4, experts=Experts(
            "llama4", ("num_local_experts", 16), 1, prefix="feed_forward.", router="router",
            normalized=False, transposed=True,
        ),
    ),
    "deepseek_v2": _DEEPSEEK2,
    # Its routers keep the correction of their scores (_keep_in_fp32_modules_strict).
    "deepseek_v3": replace(
        _DEEPSEEK2, architecture="DeepseekV3ForCausalLM", positions=4096, rotary_kind="cast",
        mlp_bias=False, router_buffers=True,
        layers=partial(deepseek.layers_of, Mixture("deepseek_v3", 256, 8, 1, 2048, 3, (8, 4))),
    ),
    # Every other layer has a window, the first one too.
    "gpt_oss": DecoderFamily(
        "GptOssForCausalLM", 8, 64, positions=131_072, bias=("attention_bias", True),
        norm="rms-cast-last", style="gpt_oss", rotary_kind="halves", tp_plan="head",
        window=("sliding_window", 128), slides=lambda _, index: index % 2 == 0, eager=True,
        sinks=True, experts=Experts(
            "gpt_oss", (("num_local_experts", "num_experts"), 128), 4, router="router",
            transposed=True, biases=True,
        ),
    ),
    "glm4_moe": DecoderFamily(
        "Glm4MoeForCausalLM", 8, positions=131_072, rotary_part=0.5, out_bias=False,
        style="glm4_moe", router_buffers=True, layers=_glm4_moe,
    ),
}  # fmt: skip
