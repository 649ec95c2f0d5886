"""Shapes against the classes of transformers, built without memory: every parameter by name and
shape, every buffer by bytes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from every import over
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.memory.shape.from_config import UnknownFamily, shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape, named_parameters, parameter_count

torch = LazyImport("torch")
transformers = LazyImport("transformers")


CONFIGS = Path(__file__).parent / "configs"

#: Published configurations, and the parameters that are published of them (tied weights once).
PUBLISHED = {
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "pythia-6.9b": 6_857_302_016,
    "starcoderbase": 15_517_456_384,
    "opt-6.7b": 6_658_473_984,
    "opt-350m": 331_196_416,
    "phi-2": 2_779_683_840,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "roberta-large": 355_412_057,
}

GPT = {"vocab_size": 120, "n_embd": 24, "n_layer": 3, "n_head": 4}
NEOX = {
    "model_type": "gpt_neox",
    "vocab_size": 120,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
}
PHI = NEOX | {"model_type": "phi"}
OPT = {
    "model_type": "opt",
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 48,
}
DEEPSEEK = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 96,
    "moe_intermediate_size": 20,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
V2 = DEEPSEEK | {"model_type": "deepseek_v2"}
V3 = DEEPSEEK | {"model_type": "deepseek_v3"}
BERT = {
    "model_type": "bert",
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
ROBERTA = BERT | {"model_type": "roberta"}

#: Small ones: with little more than the sizes, so that the defaults of the class count, and the
#: turnings that published models do not take.
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": GPT | {"model_type": "gpt2"},
    "gpt2, new names": {
        "model_type": "gpt2",
        "vocab_size": 120,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 40,
        "n_inner": 56,
        "tie_word_embeddings": False,
    },
    "gpt2, both names": GPT | {"model_type": "gpt2", "hidden_size": 48, "n_inner": None},
    "bigcode": GPT | {"model_type": "gpt_bigcode"},
    "bigcode, all heads": GPT | {"model_type": "gpt_bigcode", "multi_query": False},
    "neox": NEOX,
    "neox, one after the other": NEOX
    | {"use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True},
    "neox, rotary_pct": NEOX | {"rotary_pct": 0.75},
    "neox, scaled": NEOX
    | {"rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}},
    "phi": PHI,
    "phi, grouped": PHI
    | {"num_key_value_heads": 2, "qk_layernorm": True, "partial_rotary_factor": 0.25},
    "phi, wide heads": PHI | {"head_dim": 24},
    "phi, tied": PHI | {"tie_word_embeddings": True},
    "opt": OPT,
    "opt, bare": OPT
    | {"enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False},
    "opt, projected": OPT | {"word_embed_proj_dim": 20, "do_layer_norm_before": False},
    "opt, before 4.20": OPT | {"_remove_final_layer_norm": True},
    "deepseek v2": V2,
    "deepseek v2, biases": V2
    | {"attention_bias": True, "mlp_bias": True, "q_lora_rank": None, "first_k_dense_replace": 2},
    "deepseek v2, groups": V2
    | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    "deepseek v3": V3,
    "deepseek v3, biases": V3
    | {"attention_bias": True, "first_k_dense_replace": 1, "n_shared_experts": 3},
    "deepseek v3, all dense": V3 | {"first_k_dense_replace": 9, "tie_word_embeddings": True},
    "bert": BERT,
    "bert, untied": BERT | {"tie_word_embeddings": False},
    "bert, more types": BERT | {"type_vocab_size": 5},
    "roberta": ROBERTA,
    "roberta, untied": ROBERTA | {"tie_word_embeddings": False},
}


def published(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def real(config: dict[str, Any], shape: ModelShape) -> torch.nn.Module:
    """The class that AutoModel chooses for the head, without memory."""
    sizes = transformers.AutoConfig.for_model(**config)
    auto = transformers.AutoModelForCausalLM
    if shape.is_encoder:
        auto = (
            transformers.AutoModelForMaskedLM if shape.head is not None else transformers.AutoModel
        )
    with torch.device("meta"):
        return auto.from_config(sizes, dtype=torch.float32)


def compare(config: dict[str, Any]) -> ModelShape:
    shape = shape_from_config(config)
    model = real(config, shape)
    ours = list(named_parameters(shape))
    assert len(ours) == len(dict(ours))
    assert dict(ours) == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert parameter_count(shape) == sum(p.numel() for p in model.parameters())
    # A buffer that is a view of a smaller one (position_ids) counts as what is stored.
    theirs = {b.untyped_storage()._cdata: b.untyped_storage().nbytes() for b in model.buffers()}
    assert Counter(shape.buffers) == Counter(theirs.values())
    assert type(model).__name__ == shape.architecture
    return shape


@over("config", SMALL.values(), ids=SMALL.keys())
def test_small_models_have_the_parameters_and_buffers_of_the_class(config):
    compare(config)


@over("name", PUBLISHED)
def test_published_models_have_the_parameters_and_buffers_of_the_class(name):
    shape = compare(published(name))
    assert parameter_count(shape) == PUBLISHED[name]


@over("name", PUBLISHED)
def test_sizes_that_decide_the_step_are_those_of_the_class(name):
    """What no parameter shows: dropout, heads, rotated elements, experts at work."""
    config = published(name)
    shape = shape_from_config(config)
    sizes = transformers.AutoConfig.for_model(**config)
    layer = shape.layers[-1]
    assert layer.attention.heads == sizes.num_attention_heads
    assert shape.vocabulary == sizes.vocab_size
    assert shape.hidden == sizes.hidden_size
    rates = {
        "gpt2": ("attn_pdrop", "resid_pdrop", "embd_pdrop"),
        "gpt_bigcode": ("attn_pdrop", "resid_pdrop", "embd_pdrop"),
        "gpt_neox": ("attention_dropout", "hidden_dropout", "hidden_dropout"),
        "phi": ("attention_dropout", "resid_pdrop", "embd_pdrop"),
        "opt": ("attention_dropout", "dropout", None),
        "deepseek_v2": ("attention_dropout", None, None),
        "deepseek_v3": ("attention_dropout", None, None),
        "bert": ("attention_probs_dropout_prob", "hidden_dropout_prob", "hidden_dropout_prob"),
        "roberta": ("attention_probs_dropout_prob", "hidden_dropout_prob", "hidden_dropout_prob"),
    }
    scores, residual, embedding = rates[shape.family]
    assert layer.attention.dropout == getattr(sizes, scores)
    if residual is not None:
        assert layer.attention.residual_dropout == layer.mlp.dropout == getattr(sizes, residual)
    assert shape.embedding_dropout == (getattr(sizes, embedding) if embedding else 0.0)
    if shape.family.startswith("deepseek"):
        assert layer.mlp.top_k == sizes.num_experts_per_tok


def test_a_fraction_of_a_head_is_rotated_as_the_class_does():
    for name in ("pythia-6.9b", "phi-2"):
        config = published(name)
        shape = shape_from_config(config)
        attention = real(config, shape).get_submodule(f"{shape.layer_prefix}.0")
        module = attention.self_attn if name == "phi-2" else attention.attention
        assert shape.layers[0].attention.rotary_dims == module.rotary_ndims == shape.rotary_dims


def test_only_the_experts_of_deepseek_are_sparse():
    lite = shape_from_config(published("deepseek-v2-lite"))
    assert [type(layer.mlp).__name__ for layer in lite.layers] == ["Mlp"] + ["Moe"] * 26


@over(
    ("config", "words"),
    [
        ({"model_type": "gpt2", "n_layer": 2, "n_head": 2, "vocab_size": 9}, "n_embd"),
        (GPT | {"model_type": "gpt2", "n_head": 5}, "5 heads"),
        (GPT | {"model_type": "gpt2", "n_layer": -3}, "n_layer"),
        (GPT | {"model_type": "gpt2", "n_embd": "24"}, "n_embd"),
        (GPT | {"model_type": "gpt2", "resid_pdrop": 1.5}, "resid_pdrop"),
        (NEOX | {"rotary_pct": 3}, "rotated"),
        (PHI | {"num_key_value_heads": 3}, "3 heads of keys"),
        (V3 | {"num_experts_per_tok": 17}, "num_experts_per_tok"),
        (V3 | {"num_key_value_heads": 2}, "heads of keys"),
        (V2 | {"topk_method": "noaux_tc"}, "noaux_tc"),
        (V3 | {"n_group": 3}, "n_group"),
        (V3 | {"topk_group": 9}, "topk_group"),
        (V2 | {"num_experts_per_tok": None}, "num_experts_per_tok"),
    ],
)
def test_a_config_that_cannot_be_is_refused_with_the_key_that_is_wrong(config, words):
    with pytest.raises(UsageError, match=words):
        shape_from_config(config)


def test_decoders_with_cross_attention_are_left_to_the_trace():
    with pytest.raises(UnknownFamily, match="--trace"):
        shape_from_config(GPT | {"model_type": "gpt2", "add_cross_attention": True})
