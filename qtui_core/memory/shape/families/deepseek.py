"""DeepSeek V2 and V3: latent attention; a few dense layers, then experts beside shared ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.shape.config_reader import (
    LARGEST_COUNT,
    LARGEST_LENGTH,
    Config,
    layer_count,
    stored_dtype,
)
from qtui_core.memory.shape.families.rotary import rotary_buffers
from qtui_core.memory.shape.model_shape import (
    Embedding,
    LatentAttention,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Moe,
    Norm,
    Parameter,
)


def deepseek_v2(config: Config) -> ModelShape:
    """DeepseekV2ForCausalLM. It rotates pairs as complex numbers."""
    return _deepseek(
        config,
        "deepseek_v2",
        needed=(102400, 4096, 11008, 32, 32),
        experts=64,
        top_k=None,
        shared=2,
        expert_width=1407,
        dense=0,
        positions=2048,
    )


def deepseek_v3(config: Config) -> ModelShape:
    """DeepseekV3ForCausalLM. The router has a buffer, the correction of its scores.

    Modules for predicting several tokens (num_nextn_predict_layers) are no part of the class.
    """
    return _deepseek(
        config,
        "deepseek_v3",
        needed=(129280, 7168, 18432, 61, 128),
        experts=256,
        top_k=8,
        shared=1,
        expert_width=2048,
        dense=3,
        positions=4096,
    )


def _deepseek(
    config: Config,
    family: str,
    *,
    needed: tuple[int, int, int, int, int],
    experts: int,
    top_k: int | None,
    shared: int,
    expert_width: int,
    dense: int,
    positions: int,
) -> ModelShape:
    """The shape; the numbers are the defaults of the class. `needed` are vocabulary, hidden size,
    width of dense layers, layers and heads."""
    vocabulary = config.needed("vocab_size", needed[0])
    hidden = config.needed("hidden_size", needed[1])
    inner = config.needed("intermediate_size", needed[2])
    layers = layer_count(config, needed[3])
    first = config.optional_size("first_k_dense_replace", dense, least=0, most=LARGEST_COUNT)
    attention = _attention(config, family, hidden, needed[4])
    norms = (Norm("input_layernorm", hidden), Norm("post_attention_layernorm", hidden))
    bias = family == "deepseek_v2" and config.flag("mlp_bias", False)
    activation = config.text("hidden_act", "silu")
    dense_layer = Layer(
        attention=attention,
        mlp=_gated("mlp", hidden, inner, bias, activation),
        norms=norms,
    )
    count = config.size(("num_local_experts", "num_experts", "n_routed_experts"), experts)
    chosen = config.optional_size("num_experts_per_tok", top_k)
    if chosen is None or chosen > count:
        raise config.refuse(
            f"num_experts_per_tok is {chosen}, of n_routed_experts {count:,}; it must say how "
            "many of them work on a token."
        )
    groups, chosen_groups = _groups(config, family, count)
    width = config.size("moe_intermediate_size", expert_width)
    shared_width = width * config.size("n_shared_experts", shared, most=LARGEST_COUNT)
    moe_layer = Layer(
        attention=attention,
        mlp=Moe(
            experts=count,
            top_k=chosen,
            hidden=hidden,
            intermediate=width,
            router=Parameter("mlp.gate.weight", (count, hidden)),
            stacked=(
                Parameter("mlp.experts.gate_up_proj", (count, 2 * width, hidden)),
                Parameter("mlp.experts.down_proj", (count, hidden, width)),
            ),
            activation=activation,
            shared=_gated("mlp.shared_experts", hidden, shared_width, bias, activation),
            style=family,
            normalized=family == "deepseek_v3" and config.flag("norm_topk_prob", True),
            groups=groups,
            chosen_groups=chosen_groups,
        ),
        norms=norms,
    )
    sparse = max(0, layers - (first or 0))
    # Kept in float32 whatever the rest is loaded in (_keep_in_fp32_modules_strict).
    corrections = (4 * count,) * sparse if family == "deepseek_v3" else ()
    dims = attention.rope_dim
    return ModelShape(
        family=family,
        architecture="DeepseekV2ForCausalLM"
        if family == "deepseek_v2"
        else "DeepseekV3ForCausalLM",
        hidden=hidden,
        vocabulary=vocabulary,
        embeddings=(Embedding("model.embed_tokens", vocabulary, hidden),),
        layers=(dense_layer,) * (layers - sparse) + (moe_layer,) * sparse,
        layer_prefix="model.layers",
        final_norm=Norm("model.norm", hidden),
        head=Linear("lm_head", hidden, vocabulary),
        tied=config.flag("tie_word_embeddings", False),
        rotary_dims=dims,
        rotary_kind="complex" if family == "deepseek_v2" else "cast",
        buffers=corrections + rotary_buffers(dims),
        dtype=stored_dtype(config),
        max_positions=config.size("max_position_embeddings", positions, most=LARGEST_LENGTH),
    )


def _attention(config: Config, family: str, hidden: int, heads_default: int) -> LatentAttention:
    heads = config.needed("num_attention_heads", heads_default, most=LARGEST_COUNT)
    kv_heads = config.optional_size("num_key_value_heads", most=LARGEST_COUNT) or heads
    if kv_heads != heads:
        raise config.refuse(
            f"latent attention has as many heads of keys as of queries, not {kv_heads} and {heads}."
        )
    query_rank = config.optional_size("q_lora_rank", 1536)
    rank = config.size("kv_lora_rank", 512)
    nope = config.size("qk_nope_head_dim", 128)
    rope = config.size("qk_rope_head_dim", 64)
    value = config.size("v_head_dim", 128)
    bias = config.flag("attention_bias", False)
    query_width = heads * (nope + rope)
    return LatentAttention(
        heads=heads,
        nope_dim=nope,
        rope_dim=rope,
        value_dim=value,
        query_down=None if query_rank is None else _linear("q_a_proj", hidden, query_rank, bias),
        query_norm=None if query_rank is None else Norm("self_attn.q_a_layernorm", query_rank),
        query_up=(
            _linear("q_proj", hidden, query_width)
            if query_rank is None
            else _linear("q_b_proj", query_rank, query_width)
        ),
        latent_down=_linear("kv_a_proj_with_mqa", hidden, rank + rope, bias),
        latent_norm=Norm("self_attn.kv_a_layernorm", rank),
        latent_up=_linear("kv_b_proj", rank, heads * (nope + value)),
        out=_linear("o_proj", heads * value, hidden, bias),
        dropout=config.probability("attention_dropout"),
        interleaved=config.flag("rope_interleave", True),
        style=family,
    )


def _linear(name: str, inputs: int, outputs: int, bias: bool = False) -> Linear:
    return Linear(f"self_attn.{name}", inputs, outputs, bias)


def _gated(prefix: str, hidden: int, inner: int, bias: bool, activation: str) -> Mlp:
    return Mlp(
        gate=Linear(f"{prefix}.gate_proj", hidden, inner, bias),
        up=Linear(f"{prefix}.up_proj", hidden, inner, bias),
        down=Linear(f"{prefix}.down_proj", inner, hidden, bias),
        activation=activation,
    )


def _groups(config: Config, family: str, experts: int) -> tuple[int, int]:
    """How many groups of experts there are and how many are chosen from; zeros where V2 chooses
    among all experts.

    Raises UsageError for groups that experts cannot be put in.
    """
    method = config.text("topk_method", "greedy")
    if family == "deepseek_v2" and method not in ("greedy", "group_limited_greedy"):
        raise config.refuse(
            f"topk_method is {method!r}; DeepSeek V2 knows greedy and group_limited_greedy."
        )
    if family == "deepseek_v2" and method == "greedy":
        return 0, 0
    defaults = (None, None) if family == "deepseek_v2" else (8, 4)
    groups = config.optional_size("n_group", defaults[0], most=LARGEST_COUNT)
    chosen = config.optional_size("topk_group", defaults[1], most=LARGEST_COUNT)
    if groups is None or chosen is None or chosen > groups or experts % groups:
        raise config.refuse(
            f"of n_group {groups} groups of {experts:,} experts, topk_group {chosen} are to be "
            "chosen; groups must be equal, and no more chosen than there are."
        )
    return groups, chosen


FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
}
