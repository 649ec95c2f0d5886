"""DeepSeek V2 and V3: latent attention; a few dense layers, then layers with routed and shared
experts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from qtui_core.memory.shape.config_reader import (
    LARGEST_COUNT,
    LARGEST_LENGTH,
    Config,
    layer_count,
)
from qtui_core.memory.shape.families.llama_like import (
    DecoderFamily,
    Defaults,
    gated_mlp,
    norm_pair,
    stacked_experts,
)
from qtui_core.memory.shape.families.sizes import Sizes
from qtui_core.memory.shape.model_shape import (
    LatentAttention,
    Layer,
    Linear,
    ModelShape,
    Moe,
    Norm,
    Parameter,
)


def _sizes(config: Config, defaults: Defaults) -> Sizes:
    """The sizes; a head of queries and keys is a part without rotation and one with it.

    Raises UsageError if there are not as many heads of keys as of queries.
    """
    heads = config.needed("num_attention_heads", defaults.heads, most=LARGEST_COUNT)
    kv_heads = config.optional_size("num_key_value_heads", most=LARGEST_COUNT) or heads
    if kv_heads != heads:
        raise config.refuse(
            f"latent attention has as many heads of keys as of queries, not {kv_heads} and {heads}."
        )
    rope = config.size("qk_rope_head_dim", 64)
    return Sizes(
        hidden=config.needed("hidden_size", defaults.hidden),
        intermediate=config.needed("intermediate_size", defaults.intermediate),
        layers=layer_count(config, defaults.layers),
        heads=heads,
        kv_heads=heads,
        head_dim=config.size("qk_nope_head_dim", 128) + rope,
        rotary_dims=rope,
        vocabulary=config.needed("vocab_size", defaults.vocabulary),
        positions=config.size("max_position_embeddings", defaults.positions, most=LARGEST_LENGTH),
        activation=config.text("hidden_act", defaults.activation),
        attention_dropout=config.probability("attention_dropout"),
    )


def _layers(
    config: Config,
    sizes: Sizes,
    *,
    style: str,
    experts: int,
    top_k: int | None,
    shared: int,
    width: int,
    dense: int,
) -> Iterable[Layer]:
    """The layers of a version; `style` is its model_type. The numbers are defaults of its class:
    experts, experts per token, shared experts, the width of an expert, and dense layers.

    Modules for predicting several tokens (num_nextn_predict_layers) are not part of the class.
    """
    attention = _attention(config, sizes, style)
    bias = style == "deepseek_v2" and config.flag("mlp_bias", False)
    experts = config.size(("num_local_experts", "num_experts", "n_routed_experts"), experts)
    chosen = config.optional_size("num_experts_per_tok", top_k)
    if chosen is None or chosen > experts:
        raise config.refuse(
            f"num_experts_per_tok is {chosen}, of n_routed_experts {experts:,}; it must say how "
            "many of them work on a token."
        )
    groups, chosen_groups = _groups(config, style, experts)
    width = config.size("moe_intermediate_size", width)
    shared_width = width * config.size("n_shared_experts", shared, most=LARGEST_COUNT)
    moe = Moe(
        experts=experts,
        top_k=chosen,
        hidden=sizes.hidden,
        intermediate=width,
        router=Parameter("mlp.gate.weight", (experts, sizes.hidden)),
        stacked=stacked_experts(sizes, experts, width, "mlp.experts"),
        activation=sizes.activation,
        shared=gated_mlp(sizes, intermediate=shared_width, prefix="mlp.shared_experts", bias=bias),
        style=style,
        normalized=style == "deepseek_v3" and config.flag("norm_topk_prob", True),
        groups=groups,
        chosen_groups=chosen_groups,
    )
    first = config.optional_size("first_k_dense_replace", dense, least=0, most=LARGEST_COUNT) or 0
    sparse = max(0, sizes.layers - first)
    return (
        *(Layer(attention, gated_mlp(sizes, bias=bias), norm_pair(sizes)),)
        * (sizes.layers - sparse),
        *(Layer(attention, moe, norm_pair(sizes)),) * sparse,
    )


def _attention(config: Config, sizes: Sizes, style: str) -> LatentAttention:
    hidden, heads, rope = sizes.hidden, sizes.heads, sizes.rotary_dims
    query_rank = config.optional_size("q_lora_rank", 1536)
    rank = config.size("kv_lora_rank", 512)
    nope = config.size("qk_nope_head_dim", 128)
    value = config.size("v_head_dim", 128)
    bias = config.flag("attention_bias", False)
    query_width = heads * (nope + rope)

    def linear(name: str, inputs: int, outputs: int, bias: bool = False) -> Linear:
        return Linear(f"self_attn.{name}", inputs, outputs, bias)

    return LatentAttention(
        heads=heads,
        nope_dim=nope,
        rope_dim=rope,
        value_dim=value,
        query_down=None if query_rank is None else linear("q_a_proj", hidden, query_rank, bias),
        query_norm=None if query_rank is None else Norm("self_attn.q_a_layernorm", query_rank),
        query_up=(
            linear("q_proj", hidden, query_width)
            if query_rank is None
            else linear("q_b_proj", query_rank, query_width)
        ),
        latent_down=linear("kv_a_proj_with_mqa", hidden, rank + rope, bias),
        latent_norm=Norm("self_attn.kv_a_layernorm", rank),
        latent_up=linear("kv_b_proj", rank, heads * (nope + value)),
        out=linear("o_proj", heads * value, hidden, bias),
        dropout=sizes.attention_dropout,
        interleaved=config.flag("rope_interleave", True),
        style=style,
    )


def _groups(config: Config, family: str, experts: int) -> tuple[int, int]:
    """How many groups of experts there are and how many are chosen; zeros if V2 chooses among all
    experts.

    Raises UsageError for groups that do not divide the experts.
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
    # It rotates pairs as complex numbers.
    "deepseek_v2": DecoderFamily(
        "DeepseekV2ForCausalLM",
        Defaults(hidden=4096, intermediate=11008, layers=32, heads=32, vocabulary=102400),
        partial(
            _layers, style="deepseek_v2", experts=64, top_k=None, shared=2, width=1407, dense=0
        ),
        _sizes,
        rotary_kind="complex",
    ),
    # Its routers keep the correction of their scores (_keep_in_fp32_modules_strict).
    "deepseek_v3": DecoderFamily(
        "DeepseekV3ForCausalLM",
        Defaults(
            hidden=7168,
            intermediate=18432,
            layers=61,
            heads=128,
            vocabulary=129280,
            positions=4096,
        ),
        partial(_layers, style="deepseek_v3", experts=256, top_k=8, shared=1, width=2048, dense=3),
        _sizes,
        router_buffers=True,
    ),
}
