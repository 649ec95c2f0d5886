"""What DeepSeek V2 and V3 have of their own: latent attention, and after a few dense layers those
with routed and shared experts, as GLM 4.5 has."""

from __future__ import annotations

from dataclasses import replace

from qtui_core.dataclass import dataclass
from qtui_core.memory.shape.config_reader import LARGEST_COUNT, Config
from qtui_core.memory.shape.families import decoder
from qtui_core.memory.shape.families.decoder import DecoderFamily, Sizes, gated_mlp, stacked_experts
from qtui_core.memory.shape.model_shape import (
    LatentAttention,
    Layer,
    Linear,
    Mlp,
    Moe,
    Norm,
    Parameter,
)


def sizes_of(row: DecoderFamily, config: Config) -> Sizes:
    """The sizes; a head of queries and keys is a part without rotation and one with it.

    Raises UsageError if there are not as many heads of keys as of queries.
    """
    rope = config.size("qk_rope_head_dim", 64)
    head_dim = config.size("qk_nope_head_dim", 128) + rope
    # With a size of its own for heads, which need not divide the hidden size.
    own = replace(config, values={**config.values, "head_dim": int(head_dim)})
    sizes = decoder.sizes_of(row, own)
    if sizes.kv_heads != sizes.heads:
        raise config.refuse(
            f"latent attention has as many heads of keys as of queries, not {sizes.kv_heads} and "
            f"{sizes.heads}."
        )
    return replace(sizes, kv_heads=sizes.heads, head_dim=head_dim, rotary_dims=rope)


@dataclass(frozen=True)
class Mixture:
    """A few dense layers, then layers with routed and shared experts.

    Attributes:
        style: `Moe.style`.
        experts, top_k, shared, width, dense: defaults of the class for the experts, those chosen
            for a token, those that work on every token, the width of one, and the dense layers.
        groups: the defaults for groups of experts, and for those chosen.
    """

    style: str
    experts: int
    top_k: int | None
    shared: int
    width: int
    dense: int
    groups: tuple[int | None, int | None]

    def layers(self, config: Config, sizes: Sizes, layer: Layer) -> list[Layer]:
        """`layer`, which is dense, as often as there are dense layers, and with experts.

        Modules for predicting several tokens (num_nextn_predict_layers) are not part of the class.
        """
        assert isinstance(layer.mlp, Mlp)
        keys = ("num_local_experts", "num_experts", "n_routed_experts")
        experts = config.size(keys, self.experts)
        chosen = config.optional_size("num_experts_per_tok", self.top_k)
        if chosen is None or chosen > experts:
            raise config.refuse(
                f"num_experts_per_tok is {chosen}, of n_routed_experts {experts:,}; it must say "
                "how many of them work on a token."
            )
        groups, chosen_groups = self._groups(config, experts)
        width = config.size("moe_intermediate_size", self.width)
        shared = width * config.size("n_shared_experts", self.shared, most=LARGEST_COUNT)
        moe = Moe(
            experts=experts,
            top_k=chosen,
            hidden=sizes.hidden,
            intermediate=width,
            router=Parameter("mlp.gate.weight", (experts, sizes.hidden)),
            stacked=stacked_experts(sizes, experts, width, "mlp.experts"),
            activation=sizes.activation,
            shared=gated_mlp(sizes, shared, "mlp.shared_experts", layer.mlp.down.bias),
            style=self.style,
            normalized=self.style == "deepseek_v3" and config.flag("norm_topk_prob", True),
            groups=groups,
            chosen_groups=chosen_groups,
        )
        first = config.optional_size(
            "first_k_dense_replace", self.dense, least=0, most=LARGEST_COUNT
        )
        sparse = max(0, sizes.layers - (first or 0))
        return [*[layer] * (sizes.layers - sparse), *[replace(layer, mlp=moe)] * sparse]

    def _groups(self, config: Config, experts: int) -> tuple[int, int]:
        """How many groups of experts there are and how many are chosen; zeros if V2 chooses among
        all experts.

        Raises UsageError for groups that do not divide the experts.
        """
        method = config.text("topk_method", "greedy")
        if self.style == "deepseek_v2" and method not in ("greedy", "group_limited_greedy"):
            raise config.refuse(
                f"topk_method is {method!r}; DeepSeek V2 knows greedy and group_limited_greedy."
            )
        if self.style == "deepseek_v2" and method == "greedy":
            return 0, 0
        groups = config.optional_size("n_group", self.groups[0], most=LARGEST_COUNT)
        chosen = config.optional_size("topk_group", self.groups[1], most=LARGEST_COUNT)
        if groups is None or chosen is None or chosen > groups or experts % groups:
            raise config.refuse(
                f"of n_group {groups} groups of {experts:,} experts, topk_group {chosen} are to be "
                "chosen; groups must be equal, and no more chosen than there are."
            )
        return groups, chosen


def layers_of(mixture: Mixture, row: DecoderFamily, config: Config, sizes: Sizes) -> list[Layer]:
    """The layers of DeepSeek V2 and V3."""
    layer = decoder.layers_of(row, config, sizes)[0]
    layer = replace(layer, attention=latent_attention(config, sizes, mixture.style))
    return mixture.layers(config, sizes, layer)


def latent_attention(config: Config, sizes: Sizes, style: str) -> LatentAttention:
    """Queries, keys and values from low ranks; `style` is the model_type of the class."""
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
