"""The nearest kind of decoder: held against built-in families, against classes of transformers, and
against whatever a config.json may say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.options import KbitPrep
from qtui_core.memory.plan.run_plan import RunPlan, resolve, resolve_for, without_step
from qtui_core.memory.replay.record import ALLOCATE, Component
from qtui_core.memory.replay.timeline import Timeline
from qtui_core.memory.shape.description import ModelDescription
from qtui_core.memory.shape.from_config import nearest_shape, shape_from_config, with_parameters
from qtui_core.memory.shape.model_shape import (
    Attention,
    LatentAttention,
    ModelShape,
    Moe,
    parameter_count,
)
from qtui_core.memory.step.run import record_all, record_step

torch = LazyImport("torch")
transformers = LazyImport("transformers")
configuration = LazyImport("qtui_core.training.model.build")
record = LazyImport("qtui_core.training.tracing.trace", "record")

FOLDER = Path(__file__).parent
TODAY = {path.stem: path for path in sorted((FOLDER / "configs2026").glob("*.json"))}
#: Those whose family is built in.
BUILT_IN = {
    "qwen3-30b-a3b-fp8", "gpt-oss-20b", "qwen3-vl-8b-instruct", "qwen3-vl-30b-a3b-instruct",
    "qwen3.5-27b", "qwen3.5-35b-a3b", "gemma-4-31b-it-nvfp4",
}  # fmt: skip
SMALL: dict[str, Any] = {
    "model_type": "unheard_of", "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def described(config: dict[str, Any], parameters: int = 0) -> ModelDescription:
    return ModelDescription("it", "it", config, "It", "", parameters=parameters)


def published(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "configs" / f"{name}.json").read_text())
    return found


# Families that are built in, read as if they were not


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "mistral-nemo-12b", "qwen2.5-7b", "qwen3-8b", "mixtral-8x7b", "deepseek-v3",
     "deepseek-v2-lite", "qwen3-30b-a3b", "granite-3.0-2b", "phi-3-mini-4k", "gemma-3-1b"],
)  # fmt: skip
def test_a_known_family_has_its_parameters_and_a_step_within_the_range(name: str) -> None:
    config = published(name)
    own = shape_from_config(config)
    near = replace(nearest_shape(config, "why"), family=own.family)
    assert parameter_count(near) == pytest.approx(parameter_count(own), rel=1e-3)
    for method in ("inference", "lora", "full"):
        plan = RunPlan(method=method, sequence=1024)
        known, found = (estimate(each, plan, allocator=False) for each in (own, near))
        below, above = found.spread
        assert -below <= known.peak_allocated_bytes - found.peak_allocated_bytes <= above
        assert known.spread == (0, 0)
        assert (known.origin, found.origin) == ("tape", "bounds")


def test_a_plain_decoder_is_exact() -> None:
    plan = RunPlan(method="qlora", sequence=512)
    config = published("llama-3.1-8b")
    own, near = shape_from_config(config), nearest_shape(config, "why")
    assert estimate(near, plan).peak_allocated_bytes == estimate(own, plan).peak_allocated_bytes
    assert estimate(near, plan).basis == "assumed"


@pytest.mark.parametrize("preparation", ["none", "all"])
def test_a_step_that_the_class_cannot_run_has_bounds_around_one_that_it_can(
    preparation: KbitPrep,
) -> None:
    """Gemma 3n with AltUp packed, and without, which its class trains."""
    model, config = described(published("gemma-3n-e4b")), published("gemma-3n-e4b")
    own, plan = model.read_shape(), RunPlan(kbit_prep=preparation)
    why = without_step(own, resolve_for(own, plan))
    near = model.for_step(own, why)
    assert (near.known, near.packing) == ("assumed", None)
    assert "clips weights of AltUp" in near.why
    assert parameter_count(near) == parameter_count(own)
    with pytest.raises(UsageError, match="clips weights of AltUp"):
        estimate(own, plan)
    for method in ("lora", "full", "inference"):
        assert without_step(own, resolve_for(own, RunPlan(method=method))) == ""
    packed = RunPlan(method="inference", quant="nf4")
    assert without_step(own, resolve_for(own, packed)) == ""
    left_out = ["lm_head", "altup.prediction_coefs", "altup.correction_coefs"]
    config["quantization_config"] = {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": left_out,
    }  # fmt: skip
    stored = described(config)
    runs = stored.read_shape()
    assert without_step(runs, resolve_for(runs, plan)) == ""
    known, found = (estimate(shape, plan, allocator=False) for shape in (runs, near))
    below, above = found.spread
    assert -below <= known.peak_allocated_bytes - found.peak_allocated_bytes <= above
    assert (known.origin, found.origin) == ("tape", "bounds")
    del left_out[1:]
    packed_too = stored.read_shape()
    assert without_step(packed_too, resolve_for(packed_too, plan)) == why
    assert stored.for_step(packed_too, why).packing is not None


@pytest.mark.parametrize(
    ("name", "wrong", "why"),
    [
        ("gpt-oss-120b", {"layer_types": ["full_attention"] * 5}, "layer_types names 5 layers"),
        ("qwen3-8b", {"num_key_value_heads": 7}, "cannot share 7 heads"),
        ("mixtral-8x7b", {"num_local_experts": 0}, "num_local_experts"),
    ],
)
def test_a_built_in_family_that_contradicts_itself_has_bounds_and_no_run(
    name: str, wrong: dict[str, Any], why: str
) -> None:
    model = described(published(name) | wrong)
    shape = model.read_shape()
    assert (shape.known, why in shape.why) == ("assumed", True)
    right = parameter_count(described(published(name)).read_shape())
    assert name.startswith("mixtral") or parameter_count(shape) == pytest.approx(right, rel=0.05)
    assert estimate(shape, RunPlan(method="inference")).origin == "bounds"
    with pytest.raises(UsageError, match=why):
        model.read_shape(strict=True)


# Models of today


@pytest.mark.parametrize("name", TODAY)
@pytest.mark.parametrize("method", ["inference", "qlora", "lora", "full"])
def test_every_config_is_answered(name: str, method: str) -> None:
    model = described(json.loads(TODAY[name].read_text()))
    shape, plan = model.read_shape(), RunPlan(method=method)
    found = estimate(shape, plan, allocator=False)
    assert found.peak_allocated_bytes > found.resident_bytes > 10**9
    assert found.origin == ("tape" if name in BUILT_IN else "bounds")


@pytest.mark.slow
@pytest.mark.parametrize("name", TODAY)
def test_parameters_are_nearly_those_of_the_class(name: str) -> None:
    """The worst is 3.4 %: what a family has besides, and how an encoder of images is built."""
    config = json.loads(TODAY[name].read_text())
    for part in (config, config.get("text_config", {})):
        part.pop("quantization_config", None)
    if config["model_type"] not in transformers.models.auto.CONFIG_MAPPING:
        pytest.skip(f"transformers has no {config['model_type']}")
    built = configuration.configuration_of(config, RunPlan())
    with torch.device("meta"):
        model = configuration.class_of(built)._from_config(built, dtype=torch.bfloat16)
    own = sum(each.numel() for each in model.parameters())
    assert parameter_count(nearest_shape(config, "why")) == pytest.approx(own, rel=0.035)


BART = {
    "model_type": "bart", "architectures": ["BartForConditionalGeneration"],
    "is_encoder_decoder": True, "d_model": 64, "encoder_layers": 3, "decoder_layers": 5,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256, "vocab_size": 1000, "max_position_embeddings": 64,
    "activation_function": "gelu",
}  # fmt: skip
T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
    "is_encoder_decoder": True, "d_model": 64, "d_ff": 160, "d_kv": 16, "num_heads": 4,
    "num_layers": 3, "num_decoder_layers": 3, "vocab_size": 1000, "is_gated_act": True,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": True,
}  # fmt: skip
NEMOTRON_H = {
    "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "vocab_size": 1000,
    "hidden_size": 64, "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 256,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
    "moe_shared_expert_intermediate_size": 96, "n_shared_experts": 1, "mlp_hidden_act": "relu2",
    "tie_word_embeddings": False,
}  # fmt: skip
MAMBA_2 = {
    "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "vocab_size": 1000,
    "hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2,
    "num_hidden_layers": 4, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "most"), [(BART, 0.05), (T5, 0.01), (NEMOTRON_H, 0.025), (MAMBA_2, 0.09)]
)
def test_two_stacks_and_lists_of_parts_are_counted(config: dict[str, Any], most: float) -> None:
    """What is left: learned positions, and biases."""
    built = configuration.configuration_of(config, RunPlan())
    with torch.device("meta"):
        model = getattr(transformers, config["architectures"][0])(built)
    own = sum(each.numel() for each in model.parameters())
    assert parameter_count(nearest_shape(config, "why")) == pytest.approx(own, rel=most)


#: By default the class has parts with a key of their own: one head of keys, no gate, a narrower
#: feed-forward part, two stacks, layers that look at images, experts over fewer elements, feed-
#: forward parts in some layers alone, whose weights are the same (Zamba), none (Mamba), a narrower
#: embedding, and layers that use the same weights (ALBERT, HRM).
ODD = {
    "falcon": 0.01, "bert-generation": 0.01, "apertus": 0.01, "openai-gpt": 0.01, "lfm2": 0.01,
    "t5": 0.01, "bart": 0.01, "idefics": 0.08, "muse_spark": 0.02, "zamba": 0.14, "mamba": 0.05,
    "albert": 0.06, "electra": 0.02, "hrm_text": 0.06,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "most"), ODD.items())
def test_a_key_of_its_own_is_read(kind: str, most: float) -> None:
    built = transformers.AutoConfig.for_model(kind)
    auto = transformers.models.auto.modeling_auto
    names = {
        **auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        **auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        **auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }
    with torch.device("meta"):
        model = getattr(transformers, names[kind])(built)
    own = sum(each.numel() for each in model.parameters())
    assert parameter_count(nearest_shape(built.to_dict(), "why")) == pytest.approx(own, rel=most)


@pytest.mark.parametrize(
    ("name", "gib"),
    # Bytes of the files as their hubs list them.
    [("gpt-oss-20b", 12.8), ("kimi-k2.5", 554.0), ("deepseek-v3.2", 641.3), ("glm-5", 1404.0)],
)
def test_weights_are_counted_as_they_are_served(name: str, gib: float) -> None:
    model = described(json.loads(TODAY[name].read_text()))
    found = estimate(model.read_shape(), RunPlan(method="inference"), allocator=False)
    assert found.resident_bytes / 2**30 == pytest.approx(gib, rel=0.035)


@pytest.mark.parametrize("own", [1, 3])
@pytest.mark.parametrize("method", ["full", "qlora", "inference"])
def test_layers_of_the_same_weights_are_folded_rightly(own: int, method: str) -> None:
    groups = {"num_hidden_layers": 12, "num_hidden_groups": own}
    shared, apart = shape_of(**groups), shape_of(num_hidden_layers=12)
    plan = resolve(RunPlan(method=method, sequence=64), "bf16")
    folded, whole = (make(shared.plain, plan).events for make in (record_step, record_all))
    assert Timeline(folded).tops == Timeline(whole).tops
    weights = [
        sum(event[2] for event in record_step(shape.plain, plan).events
            if event[0] == ALLOCATE and event[3].component is Component.WEIGHTS)
        for shape in (shared, apart)
    ]  # fmt: skip
    assert weights[0] < weights[1]
    assert parameter_count(apart) - parameter_count(shared) == (12 - own) * (
        parameter_count(apart) - parameter_count(shape_of(num_hidden_layers=11))
    )
    with pytest.raises(UsageError, match="leave out --gpus"):
        estimate(shared, replace(plan, gpus=2))


def test_a_body_has_no_head_to_train() -> None:
    config = {**published("llama-3.1-8b"), "architectures": ["LlamaModel"]}
    shape, own = described(config).read_shape(), shape_from_config(published("llama-3.1-8b"))
    assert parameter_count(own) - parameter_count(shape) == own.hidden * own.vocabulary
    for method in ("qlora", "full"):
        with pytest.raises(UsageError, match="LlamaModel has no head to train on; use --method"):
            estimate(shape, RunPlan(method=method, sequence=64))
    plan = RunPlan(method="inference", sequence=64)
    assert estimate(shape, plan).resident_bytes < estimate(own, plan).resident_bytes - 10**9
    own_code = {**config, "auto_map": {"AutoModelForCausalLM": "modeling.LlamaModel"}}
    assert described(own_code).read_shape().head == own.head


# What layers are


def shape_of(**keys: Any) -> ModelShape:
    return nearest_shape({**SMALL, **keys}, "why")


def test_kinds_of_layers() -> None:
    def kinds(**keys: Any) -> str:
        return "".join(
            "m" if isinstance(part, LatentAttention) else "f" if part.window is None
            else "s" if part.window == 1 else "w"
            for part in (layer.attention for layer in shape_of(**keys).layers)
        )  # fmt: skip

    assert kinds() == "ffff"
    assert kinds(sliding_window=32) == "wwww"
    assert kinds(sliding_window=32, use_sliding_window=False) == "ffff"
    assert kinds(layer_types=["linear_attention", "full_attention"]) == "sfsf"  # a pattern
    assert kinds(layer_types=["conv"] * 9) == "ssss"
    assert kinds(layer_types=["never_heard_of"] * 4) == "ffff"
    assert kinds(layer_types=["sliding_attention"] * 3 + ["full_attention"]) == "wwwf"
    assert kinds(full_attention_interval=4) == "sssf"
    assert kinds(sliding_window_pattern=2, sliding_window=8) == "wfwf"
    assert kinds(hybrid_layer_pattern=[1, 1, 0, 1], sliding_window=8) == "wwfw"
    assert kinds(attn_type_list=[0, 1, 0, 0]) == "sfss"
    assert kinds(kv_lora_rank=16, qk_rope_head_dim=8) == "mmmm"
    assert kinds(hybrid_override_pattern="M-*E", n_routed_experts=4) == "sf"


def test_which_layers_have_experts() -> None:
    def sparse(**keys: Any) -> list[int]:
        layers = shape_of(num_experts=4, moe_intermediate_size=32, **keys).layers
        return [index for index, layer in enumerate(layers) if isinstance(layer.mlp, Moe)]

    assert sparse() == [0, 1, 2, 3]
    assert sparse(first_k_dense_replace=1) == [1, 2, 3]
    assert sparse(decoder_sparse_step=2) == [1, 3]
    assert sparse(mlp_only_layers=[0, 3]) == [1, 2]
    assert sparse(mlp_layer_types=["dense", "sparse", "sparse", "dense"]) == [1, 2]
    assert sparse(moe_layers_enum="2,3") == [2, 3]
    assert sparse(moe_layer_freq=[0, 1, 0, 1]) == [1, 3]
    assert shape_of(num_experts=0).layers[0].mlp == shape_of().layers[0].mlp


def test_what_stands_elsewhere_is_found() -> None:
    text = {key: SMALL[key] for key in SMALL if key != "model_type"}
    vision = {"hidden_size": 32, "depth": 2, "intermediate_size": 64}
    whole = nearest_shape({"model_type": "x", "text_config": text, "vision_config": vision}, "why")
    plain = shape_of()
    assert parameter_count(whole) > parameter_count(plain)
    assert replace(whole.layers[1], norms=()) == replace(plain.layers[1], norms=())
    searched = [{"attention": {"no_op": True}, "ffn": {"ffn_mult": 3.0}}, {"attention": {
        "n_heads_in_group": 2}, "ffn": {"no_op": True}}] * 2  # fmt: skip
    first, second, *_ = shape_of(block_configs=searched).layers
    assert isinstance(second.attention, Attention)
    assert (first.attention.heads, second.attention.kv_heads) == (1, 2)
    told = with_parameters(plain, parameter_count(plain) + 1000)
    assert parameter_count(told) == parameter_count(plain) + 1000
    assert with_parameters(plain, 1000) == plain


@pytest.mark.parametrize(
    "config",
    [
        {}, {"model_type": None}, {"hidden_size": 64}, {"text_config": {}}, {"text_config": 3},
        {**SMALL, "hidden_size": "64"}, {**SMALL, "num_hidden_layers": 10**9},
        {**SMALL, "vocab_size": -1}, {**SMALL, "num_hidden_layers": [4]},
    ],
)  # fmt: skip
def test_a_config_without_sizes_is_refused(config: dict[str, Any]) -> None:
    if config.get("num_hidden_layers") == [4]:
        config = {**config, "vocab_size": None}
    with pytest.raises(UsageError, match="does not say"):
        nearest_shape(config, "why")


@pytest.mark.parametrize(
    "keys",
    [
        {"num_key_value_heads": 3}, {"num_key_value_heads": 0}, {"num_attention_heads": None},
        {"num_attention_heads": True}, {"head_dim": 7}, {"intermediate_size": [96, 80]},
        {"intermediate_size": [96, 80, 64, 48]}, {"intermediate_size": None}, {"layer_types": []},
        {"layer_types": [None, 3]}, {"num_experts": 3, "num_experts_per_tok": 9},
        {"num_experts": 10**9}, {"block_configs": [None, 3, {}, {"ffn": {"ffn_mult": "x"}}]},
        {"hybrid_override_pattern": "M?"}, {"hybrid_override_pattern": "EE--"},
        {"hybrid_override_pattern": "MM"}, {"vision_config": {"hidden_size": 10, "depth": 10**9}},
        {"architectures": [3]}, {"architectures": "x"}, {"tie_word_embeddings": "yes"},
        {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "q_lora_rank": None}, {"sliding_window": -3},
        {"moe_layer_freq": [1], "num_experts": 2}, {"quantization_config": {"quant_method": "new"}},
        {"full_attention_interval": 100}, {"mlp_hidden_act": "relu2", "intermediate_size": 1},
    ],
)  # fmt: skip
def test_odd_values_still_have_an_answer(keys: dict[str, Any]) -> None:
    model = described({**SMALL, **keys})
    for method in ("inference", "qlora", "full"):
        shape, plan = model.read_shape(), RunPlan(method=method, sequence=64)
        found = estimate(shape, plan, allocator=False)
        assert found.peak_allocated_bytes > 0


# A trace of layers of mixed kinds


_MIXED = {**SMALL, "head_dim": 16, "max_position_embeddings": 512, "pad_token_id": 0}
_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}  # fmt: skip
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
_CHOSEN = {"num_experts_per_tok": 2}
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"num_hidden_layers": 20} | _DELTA,
    "gpt_oss": {"num_hidden_layers": 12, "num_local_experts": 4, "sliding_window": 32} | _CHOSEN,
    "lfm2": {
        "num_hidden_layers": 16, "layer_types": ["conv", "conv", "full_attention", "conv"] * 4,
        "block_auto_adjust_ff_dim": False,
    },
    "granitemoehybrid": {
        "num_hidden_layers": 20, "layer_types": (["mamba"] * 4 + ["attention"]) * 4,
        "num_local_experts": 4, "shared_intermediate_size": 64,
    } | _CHOSEN | _MAMBA,
    "nemotron_h": {
        "num_hidden_layers": 16, "hybrid_override_pattern": "M-M*" * 4, "mamba_num_heads": 8,
        "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1,
    },
    "llama4_text": {
        "num_hidden_layers": 16, "intermediate_size_mlp": 96, "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", HYBRIDS)
@pytest.mark.parametrize("method", ["full", "inference"])
def test_a_folded_trace_of_mixed_layers_is_the_whole_trace(kind: str, method: str) -> None:
    config = {**_MIXED, "model_type": kind, **HYBRIDS[kind]}
    plan = resolve(RunPlan(method=method, sequence=64), "bf16")
    folded, whole = (record(config, plan, whole=each).events for each in (False, True))
    assert len(folded) == len(whole)
    assert Timeline(folded).tops == Timeline(whole).tops
    sizes = [[int(event[2]) for event in each if event[0] == ALLOCATE] for each in (folded, whole)]
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) > 500
