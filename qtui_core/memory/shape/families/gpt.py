"""GPT-2, GPT-BigCode (StarCoder 1), GPT-NeoX (Pythia), Phi 1 to 2, OPT, BLOOM and Falcon. Defaults
are those of transformers 5.23."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from qtui_core.memory.shape.config_reader import LARGEST_COUNT, Config
from qtui_core.memory.shape.families.gpt_like import GptFamily, Names, layer_norm
from qtui_core.memory.shape.families.sizes import Sizes, rotary_buffers, rotated
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Norm,
)

#: The linear layers of GPT-2 are Conv1D, whose weights are `[inputs, outputs]`.
_GPT2: Final = GptFamily(
    "GPT2LMHeadModel",
    Names(
        embedding="transformer.wte",
        positions="transformer.wpe",
        layers="transformer.h",
        attention=("attn.c_attn",),
        out="attn.c_proj",
        up="mlp.c_fc",
        down="mlp.c_proj",
        norms=("ln_1", "ln_2"),
        final_norm="transformer.ln_f",
    ),
    hidden=(("hidden_size", "n_embd"), 768),
    heads=(("num_attention_heads", "n_head"), 12),
    layers=(("num_hidden_layers", "n_layer"), 12),
    positions=(("max_position_embeddings", "n_positions"), 1024),
    intermediate=("n_inner", None),
    vocabulary=50257,
    activation=("activation_function", "gelu_new"),
    attention_dropout=("attn_pdrop", 0.1),
    dropout=("resid_pdrop", 0.1),
    embedding_dropout=("embd_pdrop", 0.1),
    transposed=True,
    crosses=True,
)


def _bigcode_sizes(config: Config, sizes: Sizes) -> Sizes:
    """One head of keys and values, unless `multi_query` is off."""
    return replace(sizes, kv_heads=1) if config.flag("multi_query", True) else sizes


def _bigcode(config: Config, sizes: Sizes, shape: ModelShape) -> ModelShape:
    """It has a buffer with a mask of all positions, one byte each."""
    assert sizes.positions is not None
    return replace(shape, buffers=(sizes.positions * sizes.positions,))


def _neox(config: Config, sizes: Sizes, layer: Layer) -> Layer:
    parallel = config.flag("use_parallel_residual", True)
    return replace(layer, arrangement="parallel" if parallel else "pre")


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


def _biased_head(config: Config, sizes: Sizes, shape: ModelShape) -> ModelShape:
    assert shape.head is not None
    return replace(shape, head=replace(shape.head, bias=True))


#: Rows of OPT's position table before the first position (OPTLearnedPositionalEmbedding.offset).
_OPT_OFFSET: Final = 2


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
    projects = width != hidden
    _, positions = shape.embeddings
    final = shape.layers[0].arrangement == "pre" and not config.flag(
        "_remove_final_layer_norm", False
    )
    return replace(
        shape,
        embeddings=(
            Embedding("model.decoder.embed_tokens", vocabulary, width),
            replace(positions, rows=positions.rows + _OPT_OFFSET),
        ),
        final_norm=(
            replace(shape.layers[0].norms[0], name="model.decoder.final_layer_norm")
            if final
            else None
        ),
        head=Linear("lm_head", width, vocabulary),
        head_modules=(Linear("model.decoder.project_out", hidden, width),) if projects else (),
        embedding_modules=(Linear("model.decoder.project_in", width, hidden),) if projects else (),
    )


_BLOOM_NAMES: Final = Names(
    embedding="transformer.word_embeddings",
    layers="transformer.h",
    attention=("self_attention.query_key_value",),
    out="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    norms=("input_layernorm", "post_attention_layernorm"),
    final_norm="transformer.ln_f",
)


def _bloom(config: Config, sizes: Sizes, layer: Layer) -> Layer:
    """Alibi, and attention that always computes the matrix of scores."""
    assert isinstance(layer.attention, Attention)
    return replace(
        layer,
        attention=replace(layer.attention, positions="alibi", eager=True),
        normed_residual=config.flag("apply_residual_connection_post_layernorm", False),
    )


def _bloom_model(config: Config, sizes: Sizes, shape: ModelShape) -> ModelShape:
    norm = layer_norm("transformer.word_embeddings_layernorm", sizes.hidden)
    return replace(shape, embedding_modules=(norm,))


def _falcon_sizes(config: Config, sizes: Sizes) -> Sizes:
    """Groups of heads (40B and 180B), or one head of keys and values (7B), or one for each head
    (RW)."""
    heads = sizes.heads
    groups = config.optional_size("num_kv_heads", most=LARGEST_COUNT) or heads
    grouped = config.flag("new_decoder_architecture", False)
    kv_heads = groups if grouped else 1 if config.flag("multi_query", True) else heads
    if heads % kv_heads:
        raise config.refuse(f"{kv_heads} heads of keys do not divide {heads} heads.")
    dims = 0 if config.flag("alibi", False) else sizes.head_dim
    return replace(sizes, kv_heads=kv_heads, rotary_dims=dims)


def _falcon(config: Config, sizes: Sizes, layer: Layer) -> Layer:
    """Biases are added in separate operations. The class sets no SDPA flags, so attention gets a
    mask that is always made."""
    grouped = config.flag("new_decoder_architecture", False)
    parallel = config.flag("parallel_attn", True)
    attend, mlp = layer.attention, layer.mlp
    assert isinstance(attend, Attention)
    assert isinstance(mlp, Mlp)
    return Layer(
        attention=replace(
            attend,
            fused=_apart(attend.fused),
            out=_apart(attend.out),
            positions="rope" if sizes.rotary_dims else "alibi",
            # FalconDecoderLayer passes attention_dropout, not hidden_dropout, to that dropout_add.
            residual_dropout=0.0 if parallel else attend.dropout,
            style="falcon_grouped" if grouped else "falcon",
        ),
        mlp=replace(mlp, up=_apart(mlp.up), down=_apart(mlp.down), dropout=0.0),
        norms=_falcon_norms(config, sizes.hidden, grouped, parallel),
        arrangement="parallel" if parallel else "pre",
        dropout=config.probability("hidden_dropout"),
    )


def _apart(linear: Linear | None) -> Linear:
    assert linear is not None
    return replace(linear, bias_apart=linear.bias)


def _falcon_norms(config: Config, hidden: int, grouped: bool, parallel: bool) -> tuple[Norm, ...]:
    """The norms of a layer, in the order of their use."""
    names: tuple[str, ...]
    if not parallel:
        names = ("input_layernorm", "post_attention_layernorm")
    elif (config.optional_size("num_ln_in_parallel_attn") or (2 if grouped else 1)) == 2:
        names = ("ln_attn", "ln_mlp")
    else:
        names = ("input_layernorm",)
    if len(names) == 2 and parallel and not grouped:
        raise config.refuse(
            "num_ln_in_parallel_attn is 2, which only the new decoder architecture has."
        )
    if grouped and not parallel:
        raise config.refuse("the new decoder architecture needs parallel_attn.")
    return tuple(layer_norm(name, hidden) for name in names)


def _falcon_model(config: Config, sizes: Sizes, shape: ModelShape) -> ModelShape:
    """The rotary module and its buffers exist also with alibi."""
    return replace(shape, buffers=rotary_buffers(sizes.head_dim))


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "gpt2": _GPT2,
    "gpt_bigcode": replace(
        _GPT2,
        architecture="GPTBigCodeForCausalLM",
        activation=("activation_function", "gelu_pytorch_tanh"),
        transposed=False,
        sizes=_bigcode_sizes,
        model=_bigcode,
    ),
    "gpt_neox": GptFamily(
        "GPTNeoXForCausalLM",
        Names(
            embedding="gpt_neox.embed_in",
            layers="gpt_neox.layers",
            attention=("attention.query_key_value",),
            out="attention.dense",
            up="mlp.dense_h_to_4h",
            down="mlp.dense_4h_to_h",
            norms=("input_layernorm", "post_attention_layernorm"),
            final_norm="gpt_neox.final_layer_norm",
        ),
        hidden=("hidden_size", 6144),
        heads=("num_attention_heads", 64),
        layers=("num_hidden_layers", 44),
        intermediate=("intermediate_size", 24576),
        vocabulary=50432,
        activation=("hidden_act", "gelu"),
        embedding_dropout=("hidden_dropout", 0.0),
        rotary=("rotary_pct", 0.25),
        bias=("attention_bias", True),
        tied=False,
        layer=_neox,
    ),
    "phi": GptFamily(
        "PhiForCausalLM",
        Names(
            embedding="model.embed_tokens",
            layers="model.layers",
            attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            out="self_attn.dense",
            up="mlp.fc1",
            down="mlp.fc2",
            norms=("input_layernorm",),
            final_norm="model.final_layernorm",
        ),
        hidden=("hidden_size", 2048),
        heads=("num_attention_heads", 32),
        layers=("num_hidden_layers", 24),
        intermediate=("intermediate_size", 8192),
        vocabulary=51200,
        activation=("hidden_act", "gelu_new"),
        dropout=("resid_pdrop", 0.0),
        embedding_dropout=("embd_pdrop", 0.0),
        tied=False,
        sizes=_phi_sizes,
        layer=_phi,
        model=_biased_head,
    ),
    "opt": GptFamily(
        "OPTForCausalLM",
        Names(
            embedding="model.decoder.embed_tokens",
            positions="model.decoder.embed_positions",
            layers="model.decoder.layers",
            attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            out="self_attn.out_proj",
            up="fc1",
            down="fc2",
            norms=("self_attn_layer_norm", "final_layer_norm"),
        ),
        hidden=("hidden_size", 768),
        heads=("num_attention_heads", 12),
        layers=("num_hidden_layers", 12),
        intermediate=("ffn_dim", 3072),
        vocabulary=50272,
        activation=("activation_function", "relu"),
        dropout=("dropout", 0.1),
        bias=("enable_bias", True),
        mlp_bias=("enable_bias", True),
        layer=_opt,
        model=_opt_model,
    ),
    "bloom": GptFamily(
        "BloomForCausalLM",
        _BLOOM_NAMES,
        hidden=(("n_embed", "hidden_size"), 64),  # n_embed in old configurations
        heads=(("num_attention_heads", "n_head"), 8),
        layers=(("num_hidden_layers", "n_layer"), 2),
        positions=None,
        vocabulary=250880,
        activation=("", "bloom_gelu"),  # config.json has no key for it
        layer=_bloom,
        model=_bloom_model,
    ),
    "falcon": GptFamily(
        "FalconForCausalLM",
        _BLOOM_NAMES,
        hidden=(("n_embed", "hidden_size"), 4544),
        heads=("num_attention_heads", 71),
        layers=("num_hidden_layers", 32),
        intermediate=("ffn_hidden_size", None),
        vocabulary=65024,
        activation=("activation", "gelu"),
        dropout=("attention_dropout", 0.0),
        bias=("bias", False),
        mlp_bias=("bias", False),
        sizes=_falcon_sizes,
        layer=_falcon,
        model=_falcon_model,
    ),
}
