"""The cache by kind of layer: equal to the bytes of the tensors in the caches of transformers, of
every kind of layer, built small on the CPU; and to what the tape holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.memory.cached import cache_of
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan, resolve_for
from qtui_core.memory.replay.record import Component
from qtui_core.memory.shape.from_config import families, nearest_shape, shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape

torch = LazyImport("torch")
transformers = LazyImport("transformers")
cache_utils = LazyImport("transformers.cache_utils")

WINDOW = 8
SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16",
}  # fmt: skip
PAIRS = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": WINDOW}
PER_LAYER = {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 6, "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "kv_lora_rank": 10, "q_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
    "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}  # fmt: skip
INDEX = {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4}
MAMBA = {
    "mamba_d_state": 4, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2,
    "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 4,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 4, "n_positions": 512},
    "mistral": {"sliding_window": WINDOW},
    "gemma3_text": PAIRS,
    "gemma3n_text": {
        **PAIRS, **PER_LAYER, "num_kv_shared_layers": 2, "laurel_rank": 4, "altup_num_inputs": 3,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": {
        **PAIRS, **PER_LAYER, "num_kv_shared_layers": 2, "global_head_dim": 16,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    },
    "gpt_oss": {**PAIRS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {
        "attention_chunk_size": WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1,
        "intermediate_size_mlp": 48,
    },
    "qwen3_next": {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": DELTA,
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT | {"head_dim": 4},
    "deepseek_v32": LATENT | INDEX,
    "glm_moe_dsa": LATENT | INDEX | {"qk_head_dim": 10},
    "lfm2": {"conv_L_cache": 3, "layer_types": ["conv", "conv", "full_attention", "conv"]},
    "mamba": {
        "state_size": 4, "expand": 2, "conv_kernel": 4, "intermediate_size": 64,
        "num_attention_heads": None,
    },
    "mamba2": {
        "state_size": 4, "expand": 2, "conv_kernel": 4, "num_heads": 8, "n_groups": 2,
        "chunk_size": 4, "num_attention_heads": None,
    },
    "jamba": {
        "mamba_d_state": 4, "mamba_d_conv": 4, "mamba_expand": 2, "attn_layer_period": 2,
        "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False,
    },
    "bamba": {**MAMBA, "attn_layer_indices": [2]},
    "granitemoehybrid": {
        **MAMBA, "layer_types": ["mamba", "mamba", "attention", "mamba"], "num_local_experts": 2,
        "num_experts_per_tok": 1, "shared_intermediate_size": 16,
    },
    "nemotron_h": {
        "hybrid_override_pattern": "M*-M", "mamba_num_heads": 8, "mamba_head_dim": 8,
        "ssm_state_size": 4, "n_groups": 2, "conv_kernel": 4, "expand": 2, "chunk_size": 4,
    },
}  # fmt: skip
#: Those whose kinds of layers another one has, too.
ALIKE = (
    "gemma3_text", "gemma4_text", "gpt_oss", "qwen3_next", "deepseek_v2", "glm_moe_dsa", "mamba2",
    "jamba", "bamba", "granitemoehybrid",
)  # fmt: skip
#: Models whose layers all have full attention, which QuantizedCache takes.
FULL = ("llama", "deepseek_v3")


def config_of(name: str) -> dict[str, Any]:
    own = MODELS[name]
    small = {key: value for key, value in SMALL.items() if name != "gpt2" or "size" not in key}
    return {"model_type": name, **small, "vocab_size": 64, **own}


def shape_of(name: str) -> ModelShape:
    config = config_of(name)
    return shape_from_config(config) if name in families() else nearest_shape(config, "why")


def plan_of(name: str, **more: Any) -> RunPlan:
    return resolve_for(shape_of(name), RunPlan(method="inference", dtype="bf16", **more))


def tensors_in(value: Any) -> list[Any]:
    """The tensors that an object holds, without lengths that only sliding windows have."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = [part for name, part in value.items() if name != "_sliding_window_tensor"]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []


def bytes_in(cache: Any) -> int:
    found = {id(t): t for layer in cache.layers for t in tensors_in(vars(layer))}
    return sum(tensor.numel() * tensor.element_size() for tensor in found.values())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in MODELS]
)
def test_the_cache_has_the_bytes_of_the_class(name: str) -> None:
    own = {key: value for key, value in config_of(name).items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(name, **own)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    shape = shape_of(name)
    for batch, tokens in ((1, 5), (2, WINDOW - 1), (1, WINDOW), (2, 20)):
        ids = torch.ones(batch, tokens, dtype=torch.long)
        with torch.no_grad():
            found = model(input_ids=ids, use_cache=True)
        cache = getattr(found, "past_key_values", None) or found.cache_params
        kinds = cache_of(shape, plan_of(name, batch=batch, sequence=tokens))
        assert sum(kind.bytes for kind in kinds) == bytes_in(cache)
        assert sum(kind.bytes for kind in kinds) == sum(
            batch * kind.bytes_each * (kind.tokens or 1) for kind in kinds
        )


def grouped(bits: int) -> Any:
    """A layer of transformers with the packing of hqq: a byte for 8 bits, and for each group of 64
    elements a scale and a zero point in the dtype of activations."""

    class Grouped(cache_utils.QuantizedLayer):  # type: ignore[misc]
        def _quantize(self, tensor: Any, axis: int) -> Any:
            scale = tensor.reshape(self.q_group_size, -1)[:1]
            return torch.zeros(tensor.numel() * bits // 8, dtype=torch.uint8), scale, scale, tensor

        def _dequantize(self, stored: Any) -> Any:
            return stored[3]

    return Grouped(nbits=bits)


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("generate", [0, 1, 100, 128, 129, 300])
@pytest.mark.parametrize("name", FULL)
def test_a_quantized_cache_has_the_bytes_of_the_class(
    name: str, generate: int, kv_dtype: str
) -> None:
    plan = plan_of(name, batch=2, sequence=64, generate=generate, kv_dtype=kv_dtype)
    (kind,) = cache_of(shape_of(name), plan)
    latent = name == "deepseek_v3"
    heads, width, of_value = (1, 10, 4) if latent else (2, 8, 8)
    layer = cache_utils.Fp8QuantizedLayer() if kv_dtype == "fp8" else grouped(int(kv_dtype[3:]))
    for count in (64, *[1] * max(0, generate - 1)):
        keys, values = (
            torch.ones(2, heads, count, each, dtype=torch.bfloat16) for each in (width, of_value)
        )
        layer.update(keys, values)
    parts = [layer.keys, layer.values]
    for stored in (layer._quantized_keys, layer._quantized_values):
        parts += stored[:3]  # what `grouped` needs to answer is no part of what is stored
    assert kind.bytes == 4 * sum(part.numel() * part.element_size() for part in parts)
    assert kind.basis == ("exact" if name in families() else "derived")


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "int8", "int4"])
@pytest.mark.parametrize("name", [name for name in MODELS if "index_topk" not in MODELS[name]])
def test_the_estimate_holds_what_is_explained(name: str, kv_dtype: str) -> None:
    """Between two tokens it holds one token more of a window, of whose tensor there is a view, and
    its length as a tensor; scales of fp8 are too few bytes to be counted."""
    plan = plan_of(name, batch=8, sequence=64, generate=129, kv_dtype=kv_dtype)
    timeline = estimate(shape_of(name), plan, allocator=False).timeline
    at_the_end = timeline.alive_at(timeline.tops[-1][1])
    held = sum(each.copies * each.asked for each in at_the_end if each.component is Component.CACHE)
    explained = 0.0
    for kind in cache_of(shape_of(name), plan):
        explained += kind.bytes
        if kind.tokens and kv_dtype == "fp8":
            explained -= 8 * kind.layers
        if kind.tokens == WINDOW - 1:
            explained += 8 * kind.layers + kind.bytes_each * plan.batch
    assert held == explained


def test_a_step_of_training_has_no_cache() -> None:
    shape = shape_of("llama")
    with pytest.raises(UsageError, match="keeps no cache of keys and values; use --method"):
        resolve_for(shape, RunPlan(method="full", kv_dtype="fp8"))


def test_what_transformers_does_not_quantize_is_labelled() -> None:
    for name, kv_dtype, basis in (
        ("mistral", "auto", "exact"), ("mistral", "fp8", "derived"), ("llama", "int4", "exact"),
        ("llama", "bf16", "derived"),
    ):  # fmt: skip
        plan = replace(plan_of(name, kv_dtype=kv_dtype), dtype="fp16")
        assert [kind.basis for kind in cache_of(shape_of(name), plan)] == [basis]
    for name, basis in (("bamba", "derived"), ("qwen3_next", "exact")):
        assert [kind.basis for kind in cache_of(shape_of(name), plan_of(name))] == [basis] * 3
