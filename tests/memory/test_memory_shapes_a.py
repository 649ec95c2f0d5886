"""Shapes of Llama and its descent against the classes of transformers, built without memory: every
parameter by name and shape, every buffer by bytes, and what no parameter shows."""

from __future__ import annotations

from typing import Any

import pytest
from every import over
from lazy_imports import LazyImport
from meta_models import agreeing_shape, causal_model, published, whole_model

from qtui_core.errors import UsageError
from qtui_core.memory.shape.config_reader import Config, stored_dtype
from qtui_core.memory.shape.from_config import UnknownFamily, shape_from_config
from qtui_core.memory.shape.model_shape import Mlp, Moe, named_parameters, parameter_count

torch = LazyImport("torch")
build = LazyImport("qtui_core.training.model.build")
transformers = LazyImport("transformers")


#: Published configurations, and the parameters of the published weights (tied weights once). Of
#: the multimodal ones it is what the language model has.
PUBLISHED = {
    "llama-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-4-scout": 107_769_861_120,
    "llama-4-maverick": 400_711_848_960,
    "smollm3-3b": 3_075_098_624,
    "seed-oss-36b": 36_151_104_512,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "glm-4.5-air": 106_852_245_504,
    "gpt-oss-120b": 116_829_156_672,
    "ministral-3-8b": 8_489_553_920,
    "mixtral-8x7b": 46_702_792_704,
    "qwen1.5-0.5b": 463_987_712,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "gemma-2b": 2_506_172_416,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3n-e4b": 6_835_235_568,
    "gemma-4-26b-a4b": 25_233_141_760,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-4-mini": 3_836_021_760,
    "granite-3.0-2b": 2_533_531_648,
    "powerlm-3b": 3_510_819_072,
    "powermoe-3b": 3_298_788_864,
    "olmo-2-7b": 7_298_617_344,
    "olmo-3-7b": 7_298_011_136,
    "stablelm-3b-4e1t": 2_795_443_200,
    "stablelm-2-12b": 12_143_185_920,
    "command-r-v01": 34_980_831_232,
    "command-r-plus": 103_810_674_688,
    "command-r7b": 8_028_033_024,
}

#: Only what a config.json must contain, so that everything else has the default of the class. All
#: sizes differ, so that none can be taken for another.
LEAST = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "pad_token_id": 0,
}
KV = LEAST | {"num_key_value_heads": 2}
BARE = {"llama", "phi3", "granite", "granitemoe", "olmo2", "olmo3", "cohere", "cohere2"}
TYPES = (*sorted(BARE), "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
TYPES = (
    *TYPES,
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "stablelm",
    "llama4_text",
    "smollm3",
    "seed_oss",
    "ministral3",
    "gpt_oss",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
)


def small(family: str, **keys: Any) -> dict[str, Any]:
    return KV | {"model_type": family} | keys


MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
DELTA = {"linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 4}
LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 2}
KINDS = ["sliding_attention", "full_attention"] * 2 + ["full_attention"]
WINDOWS = ["full_attention", "sliding_attention"] * 2 + ["full_attention"]

#: Branches of the code that no published model takes.
SMALL: dict[str, dict[str, Any]] = {
    **{f"{family}, defaults": small(family) for family in TYPES},
    **{f"{family}, tied": small(family, tie_word_embeddings=True) for family in TYPES},
    **{f"{family}, untied": small(family, tie_word_embeddings=False) for family in TYPES},
    **{f"{family}, as many keys as queries": LEAST | {"model_type": family} for family in BARE},
    "llama, biases": small("llama", attention_bias=True, mlp_bias=True),
    "llama, null": small("llama", num_key_value_heads=None, head_dim=None, rope_scaling=None),
    "llama, wide heads": small("llama", head_dim=32),
    "llama, dynamic": small("llama", rope_scaling={"type": "dynamic", "factor": 2.0}),
    "smollm3, biases": small("smollm3", attention_bias=True, mlp_bias=True),
    "smollm3, named": small("smollm3", head_dim=12, no_rope_layers=[0, 1, 1, 0, 1]),
    "seed_oss, other biases": small(
        "seed_oss", attention_bias=False, attention_out_bias=True, mlp_bias=True
    ),
    "ministral3, wide heads": small("ministral3", head_dim=12, sliding_window=8),
    "mistral, wide heads": small("mistral", hidden_size=50, head_dim=12, sliding_window=None),
    "mixtral, old name": small("mixtral", num_experts=4, num_experts_per_tok=1),
    "mixtral, wide heads": small("mixtral", head_dim=12, **LOCAL),
    "qwen2, wide heads": small("qwen2", head_dim=12),
    "qwen3, biases": small("qwen3", attention_bias=True, head_dim=12),
    "qwen2_moe, some dense": small(
        "qwen2_moe", **MOE, decoder_sparse_step=2, mlp_only_layers=[3], qkv_bias=False
    ),
    "qwen2_moe, shared": small("qwen2_moe", **MOE, shared_expert_intermediate_size=28),
    "qwen3_moe, some dense": small(
        "qwen3_moe", **MOE, decoder_sparse_step=2, mlp_only_layers=[1], attention_bias=True
    ),
    "qwen3_next, some dense": small(
        "qwen3_next", **MOE, **DELTA, decoder_sparse_step=2, mlp_only_layers=[1], head_dim=16
    ),
    "qwen3_5, biases": small(
        "qwen3_5_text", **DELTA, attention_bias=True, linear_conv_kernel_dim=3, head_dim=24
    ),
    "qwen3_5, in turn": small("qwen3_5_text", **DELTA, full_attention_interval=2, head_dim=32),
    "qwen3_5_moe, shared": small(
        "qwen3_5_moe_text", **MOE, **DELTA, shared_expert_intermediate_size=28
    ),
    "gemma, biases": small("gemma", attention_bias=True, head_dim=12),
    "gemma2, one kind": small("gemma2", layer_types=["full_attention"] * 5, attention_bias=True),
    "gemma3, one kind": small("gemma3_text", layer_types=["sliding_attention"] * 5),
    "gemma3, pattern": small("gemma3_text", sliding_window_pattern=2, attention_bias=True),
    "phi3, a part rotated": small(
        "phi3", hidden_size=96, partial_rotary_factor=0.75, rope_scaling=None
    ),
    "granite, biases": small("granite", attention_bias=True, mlp_bias=True),
    "granitemoe, biases": small("granitemoe", attention_bias=True, **LOCAL),
    "olmo3, one kind": small("olmo3", layer_types=["sliding_attention"] * 5, attention_bias=True),
    "olmo2, biases": small("olmo2", attention_bias=True),
    "stablelm, heads": small("stablelm", qk_layernorm=True, use_qkv_bias=True),
    "stablelm, parallel": small("stablelm", use_parallel_residual=True, hidden_dropout=0.1),
    "stablelm, half rotated": small(
        "stablelm", rope_parameters={"partial_rotary_factor": 0.5, "rope_type": "default"}
    ),
    "cohere, norms of heads": small("cohere", use_qk_norm=True, attention_bias=True),
    "cohere2, pattern": small("cohere2", sliding_window_pattern=2, attention_bias=True),
    "gemma3n": small(
        "gemma3n_text", num_kv_shared_layers=0, intermediate_size=[80, 64, 80, 64, 80]
    ),
    "gemma3n, shared": small(
        "gemma3n_text",
        layer_types=KINDS,
        num_kv_shared_layers=2,
        altup_num_inputs=3,
        laurel_rank=9,
        head_dim=12,
        hidden_size_per_layer_input=14,
        vocab_size_per_layer_input=70,
        tie_word_embeddings=False,
        attention_bias=True,
    ),
    "gemma4, shared": small(
        "gemma4_text", layer_types=KINDS, num_kv_shared_layers=2, use_double_wide_mlp=True
    ),
    "gemma4, keys are values": small(
        "gemma4_text",
        layer_types=KINDS,
        attention_k_eq_v=True,
        num_global_key_value_heads=3,
        attention_bias=True,
        hidden_size_per_layer_input=0,
    ),
    "gemma4, experts": small(
        "gemma4_text",
        enable_moe_block=True,
        top_k_experts=2,
        num_experts=6,
        moe_intermediate_size=20,
        head_dim=12,
        global_head_dim=16,
        vocab_size_per_layer_input=70,
    ),
    "gemma4, as transformers saves it": small(
        "gemma4_text",
        layer_types=KINDS,
        per_layer_config={i: {"head_dim": 16, "num_key_value_heads": 3} for i in "134"},
    ),
    "gpt_oss, one kind": small(
        "gpt_oss",
        head_dim=12,
        num_local_experts=6,
        num_experts_per_tok=2,
        attention_bias=False,
        layer_types=["full_attention"] * 5,
    ),
    "glm4_moe, norms": small(
        "glm4_moe",
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        n_group=3,
        topk_group=2,
        use_qk_norm=True,
        attention_bias=True,
        head_dim=12,
        partial_rotary_factor=1.0,
        first_k_dense_replace=2,
        n_shared_experts=2,
    ),
    "llama4, in turn": small("llama4_text", **LOCAL, interleave_moe_layer_step=2),
    "llama4, named": small(
        "llama4_text", **LOCAL, moe_layers=[1, 4], no_rope_layers=[0, 1, 1, 0, 1]
    ),
    "llama4, biases": small("llama4_text", **LOCAL, attention_bias=True, use_qk_norm=False),
}


@over("config", SMALL.values(), ids=SMALL.keys())
def test_small_models_have_the_parameters_and_buffers_of_the_class(config):
    agreeing_shape(config)


@over("name", PUBLISHED)
def test_published_models_have_the_parameters_and_buffers_of_the_class(name):
    shape = agreeing_shape(published(name))
    assert parameter_count(shape) == PUBLISHED[name]


@pytest.mark.parametrize("family", ["gemma3", "llama4"])
def test_what_a_part_of_a_multimodal_config_leaves_out_is_the_default_of_the_class(family):
    sparse = {"model_type": f"{family}_text", "num_hidden_layers": 3}
    agreeing_shape({"model_type": family, "text_config": sparse})
    shape = shape_from_config({"model_type": family, "dtype": "bfloat16", "text_config": sparse})
    assert shape.dtype == "bfloat16"
    counted = "What sees images is counted" in shape.notes[0]
    assert counted == (shape.tower is not None) == (family == "gemma3")


@pytest.mark.parametrize(
    "config",
    [
        published("qwen3-vl-8b-instruct"),
        published("qwen3-vl-30b-a3b-instruct"),
        {"model_type": "qwen3_vl", "text_config": {"num_hidden_layers": 3}},
        {"model_type": "qwen3_vl", "tie_word_embeddings": True, "text_config": {}},
        {
            "model_type": "qwen3_vl_moe",
            "tie_word_embeddings": False,
            "text_config": {"tie_word_embeddings": True, "mlp_only_layers": [1]},
        },
    ],
)
def test_a_language_model_that_has_no_class_of_its_own_is_that_in_the_whole(config):
    shape = shape_from_config(config)
    model = whole_model(config)
    parts = {
        name.replace("language_model.", ""): tuple(part.shape)
        for name, part in model.named_parameters()
    }
    assert dict(named_parameters(shape)) == parts
    buffers = [b.nbytes for name, b in model.named_buffers() if "visual" not in name]
    assert sorted(shape.buffers) == sorted(buffers)
    assert shape.architecture == type(model).__name__


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "bert"}, "BertForMaskedLM"),
        ({"model_type": "bert", "is_decoder": True}, "BertLMHeadModel"),
        ({"model_type": "t5"}, "T5ForConditionalGeneration"),
        ({"model_type": "llama"}, "LlamaForCausalLM"),
    ],
)
def test_without_a_named_class_it_is_the_one_whose_loss_the_family_has(config, name):
    assert build.class_of(transformers.AutoConfig.for_model(**config)).__name__ == name


@over("config", SMALL.values(), ids=SMALL.keys())
def test_sizes_that_no_parameter_shows_are_those_of_the_class(config):
    """Heads, rotation, dropout, experts at work and scales."""
    shape = shape_from_config(config)
    model = causal_model(config)
    sizes = model.config
    attends = [hasattr(layer, "self_attn") for layer in model.model.layers]
    layer = shape.layers[attends.index(True)]
    module = model.model.layers[attends.index(True)].self_attn
    assert layer.attention.heads // layer.attention.kv_heads == module.num_key_value_groups
    assert layer.attention.head_dim == module.head_dim
    assert layer.attention.dropout == sizes.attention_dropout
    assert (layer.residual_scale, shape.embedding_scale) == (
        hasattr(sizes, "residual_multiplier"),
        hasattr(sizes, "embedding_multiplier") or hasattr(model.model.embed_tokens, "embed_scale"),
    )
    assert shape.logit_scale == (hasattr(sizes, "logits_scaling") or hasattr(sizes, "logit_scale"))
    assert shape.logit_softcap == (getattr(sizes, "final_logit_softcapping", None) is not None)
    assert 1 + len(shape.more_tables) == len(getattr(model.model.rotary_emb, "layer_types", [0]))
    assert layer.attention.eager == (not model._supports_sdpa)
    activation = "hidden_act" if hasattr(sizes, "hidden_act") else "hidden_activation"
    assert layer.mlp.activation == getattr(sizes, activation)
    for spec in shape.layers:
        if isinstance(spec.mlp, Moe):
            chosen = getattr(sizes, "top_k_experts", None) or sizes.num_experts_per_tok
            assert spec.mlp.top_k == chosen


@over(
    "config",
    [
        small("mistral"),
        small("mistral", sliding_window=None),
        small("mixtral", sliding_window=64),
        small("phi3", sliding_window=64),
        small("qwen2", use_sliding_window=True, max_window_layers=3, sliding_window=77),
        small("qwen2", layer_types=WINDOWS, use_sliding_window=True),
        small("qwen3", use_sliding_window=True, max_window_layers=2),
        small("qwen3"),
        small("qwen2_moe", use_sliding_window=True, max_window_layers=4),
        small("qwen3_moe", use_sliding_window=True),
        small("gemma2"),
        small("gemma3_text", sliding_window=99),
        small("gemma3_text", use_bidirectional_attention=True),
        small("gemma3n_text", num_kv_shared_layers=0),
        small("gemma4_text"),
        small("gemma4_text", layer_types=KINDS, sliding_window=9),
        small("cohere2"),
        small("cohere2", layer_types=WINDOWS),
        small("gpt_oss"),
        small("gpt_oss", layer_types=WINDOWS, sliding_window=9),
    ],
    ids=lambda config: config["model_type"],
)
def test_windows_are_where_the_class_has_them(config):
    shape = shape_from_config(config)
    model = causal_model(config)
    sizes = model.config
    kinds = getattr(sizes, "layer_types", None) or ["sliding_attention"] * 5
    expected = [sizes.sliding_window if kind == "sliding_attention" else None for kind in kinds]
    assert [layer.attention.window for layer in shape.layers] == expected
    if config["model_type"] == "gemma3_text":
        assert shape.layers[0].attention.causal == model.model.layers[0].self_attn.is_causal


def test_llama4_rotates_normalizes_and_chunks_where_the_class_does():
    for config in (SMALL["llama4, named"], SMALL["llama4, biases"], small("llama4_text")):
        shape = shape_from_config(config)
        model = causal_model(config)
        for index, layer in enumerate(model.model.layers):
            spec = shape.layers[index].attention
            assert (spec.positions == "rope") == bool(layer.self_attn.use_rope)
            assert spec.unit_norm == hasattr(layer.self_attn, "qk_norm")
            chunked = model.config.layer_types[index] == "chunked_attention"
            assert spec.chunked == chunked
            assert spec.window == (model.config.attention_chunk_size if chunked else None)


def test_a_part_of_a_head_is_rotated_as_the_class_does():
    for name in ("phi-4-mini", "stablelm-3b-4e1t"):
        config = published(name)
        shape = shape_from_config(config)
        rotary = causal_model(config).model.rotary_emb
        assert shape.layers[0].attention.rotary_dims == shape.rotary_dims
        assert shape.rotary_dims == 2 * rotary.inv_freq.numel() < shape.layers[0].attention.head_dim


def test_experts_are_where_the_class_has_them():
    shape = shape_from_config(SMALL["qwen2_moe, some dense"])
    assert [type(layer.mlp) for layer in shape.layers] == [Mlp, Moe, Mlp, Mlp, Mlp]
    maverick = shape_from_config(published("llama-4-maverick"))
    assert [isinstance(layer.mlp, Moe) for layer in maverick.layers] == [False, True] * 24


def test_the_code_that_comes_with_known_families_is_not_needed():
    assert "auto_map" in published("phi-3-mini-4k")
    assert shape_from_config(published("phi-3-mini-4k")).architecture == "Phi3ForCausalLM"


def test_the_type_of_the_checkpoint_is_read_under_both_names():
    assert shape_from_config(published("llama-3.1-8b")).dtype == "bfloat16"
    assert (
        shape_from_config(small("llama", dtype="float16", torch_dtype="float32")).dtype == "float16"
    )
    assert (
        shape_from_config(small("llama", dtype=None, torch_dtype="torch.float32")).dtype
        == "float32"
    )
    assert shape_from_config(small("llama", torch_dtype="auto")).dtype is None


def test_another_head_or_a_quantized_checkpoint_is_noted():
    shape = shape_from_config(small("llama", architectures=["LLaMAForCausalLM"]))
    assert "LLaMAForCausalLM" in shape.notes[0]
    assert shape.known == "derived"
    shape = shape_from_config(
        small("llama", quantization_config={"quant_method": "gptq", "bits": 4})
    )
    assert "quantized" in shape.notes[0]


@over(
    ("config", "words"),
    [
        (None, "object in braces"),
        ([1], "object in braces"),
        ({}, "model_type"),
        ({"model_type": 7}, "model_type"),
        ({"model_type": "llama"}, "does not say hidden_size"),
        *(
            ({k: v for k, v in small("llama").items() if k != key}, f"does not say {key}")
            for key in LEAST
            if key != "pad_token_id"
        ),
        (small("llama", hidden_size=0), "hidden_size.*least"),
        (small("llama", hidden_size=-48), "-48"),
        (small("llama", hidden_size="48"), "without quotes"),
        (small("llama", hidden_size=48.0), "whole number"),
        (small("llama", hidden_size=True), "whole number"),
        (small("llama", hidden_size=None), "whole number"),
        (small("llama", hidden_size=10**400), "401 digits"),
        (small("llama", vocab_size=0), "vocab_size"),
        (small("llama", num_hidden_layers=0), "num_hidden_layers"),
        (small("llama", num_hidden_layers=10**6), "num_hidden_layers.*more than"),
        (small("llama", hidden_size=None), "hidden_size in config.json is null;"),
        (small("llama", hidden_size=True), "hidden_size in config.json is true;"),
        (small("llama", num_attention_heads=7), "cannot be divided among 7"),
        (small("llama", head_dim=8, hidden_size=50), "cannot be divided"),
        (small("llama", hidden_size=54), "9 elements"),
        (small("llama", num_key_value_heads=4), "cannot share 4"),
        (small("llama", num_key_value_heads=12), "cannot share 12"),
        (small("llama", tie_word_embeddings="false"), "true or false"),
        (small("llama", attention_dropout=1.0), "attention_dropout"),
        (small("llama", attention_dropout=float("nan")), "attention_dropout"),
        (small("llama", attention_dropout="0"), "must be a number"),
        (small("llama", hidden_act=3), "hidden_act"),
        (small("qwen2", layer_types=["full_attention"]), "names 1 layers"),
        (small("qwen2", layer_types="full_attention"), "list of words"),
        (small("qwen3_moe", **MOE | {"num_experts_per_tok": 7}), "7 experts"),
        (small("qwen3_moe", mlp_only_layers=["1"]), "whole numbers"),
        (small("llama4_text", no_rope_layers=[1]), "no_rope_layers"),
        (small("llama4_text", num_experts_per_tok=17), "17 experts"),
        (small("stablelm", partial_rotary_factor=1.5), "cannot be rotated"),
        (small("stablelm", partial_rotary_factor=1e-320), "at least one element"),
        (small("phi3", rope_scaling="longrope"), "rope_scaling"),
        ({"model_type": "gemma3", "text_config": [1]}, "text_config"),
        ({"model_type": "gemma3", "text_config": {"hidden_size": -1}}, "text_config.*-1"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_is_refused_with_the_key_that_is_wrong(config, words):
    with pytest.raises(UsageError, match=words):
        shape_from_config(config)


def test_a_value_nested_too_deeply_to_be_quoted_is_refused():
    nested = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(UsageError, match="whole number"):
        shape_from_config(small("llama", hidden_size=nested))


def test_families_without_a_shape_are_left_to_the_trace_and_their_code_is_never_run():
    with pytest.raises(UnknownFamily, match="'mamba2' is built in"):
        shape_from_config(small("mamba2"))
    with pytest.raises(UnknownFamily, match="never executed"):
        shape_from_config(small("baichuan", auto_map={"AutoModelForCausalLM": "modeling.Model"}))


def test_qwen1_has_no_class_to_hold_a_shape_against():
    assert "qwen" not in transformers.models.auto.CONFIG_MAPPING
    with pytest.raises(UnknownFamily, match=r"Qwen 1\.5 and later"):
        shape_from_config(
            {"model_type": "qwen", "auto_map": {"AutoConfig": "configuration_qwen.QWen"}}
        )


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"torch_dtype": "auto"}, None),
        ({"dtype": "auto", "torch_dtype": "torch.float16"}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": "float16", "text_config": {"dtype": "float32"}}, "float16"),
        ({"dtype": None, "text_config": None}, None),
        ({}, None),
    ],
)
def test_a_dtype_is_read_in_one_way_wherever_it_stands(config, dtype):
    assert stored_dtype(Config(config)) == dtype
    with_parts = small("gemma3") | {"dtype": None, "torch_dtype": None} | config
    with_parts["text_config"] = {
        **small("gemma3_text", dtype=None, torch_dtype=None), **(config.get("text_config") or {})
    }  # fmt: skip
    assert shape_from_config(with_parts).dtype == dtype
