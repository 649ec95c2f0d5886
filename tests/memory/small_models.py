"""Small configurations of every family, to be built by transformers and by the shapes alike."""

from __future__ import annotations

from typing import Any

from lazy_imports import LazyImport

torch = LazyImport("torch")
transformers = LazyImport("transformers")


_LLAMA = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
_MIXTURE = _LLAMA | {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}
_GPT = {"vocab_size": 160, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
_LATENT = _LLAMA | {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
_DELTA = {
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "pad_token_id": 0,
}
_ENCODER = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}

#: model_type -> what differs from the defaults of its configuration class.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "smollm3": _LLAMA | {"no_rope_layer_interval": 2, "pad_token_id": 0},
    "seed_oss": _LLAMA | {"head_dim": 16},
    "mistral": _LLAMA,
    "ministral3": _LLAMA | {"head_dim": 16},
    "mixtral": _LLAMA | {"num_local_experts": 4},
    "qwen2": _LLAMA | {"tie_word_embeddings": True},
    "qwen2_moe": _MIXTURE | {"shared_expert_intermediate_size": 96},
    "qwen3": _LLAMA | {"head_dim": 16},
    "qwen3_moe": _MIXTURE | {"head_dim": 16},
    "qwen3_next": _MIXTURE | _DELTA | {"shared_expert_intermediate_size": 96},
    "qwen3_5_text": _LLAMA | _DELTA,
    "qwen3_5_moe_text": _MIXTURE | _DELTA | {"shared_expert_intermediate_size": 96},
    "gemma": _LLAMA | {"head_dim": 16, "tie_word_embeddings": True},
    "gemma2": _LLAMA | {"head_dim": 16, "tie_word_embeddings": True},
    "gemma3_text": _LLAMA | {"head_dim": 16, "tie_word_embeddings": True},
    "gemma3n_text": _LLAMA
    | {"head_dim": 16, "tie_word_embeddings": True, "num_kv_shared_layers": 0, "laurel_rank": 12}
    | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 160},
    "gemma4_text": _LLAMA
    | {"head_dim": 16, "global_head_dim": 32, "tie_word_embeddings": True}
    | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 160},
    "llama4_text": _LLAMA
    | {"head_dim": 16, "intermediate_size_mlp": 80, "num_local_experts": 4, "pad_token_id": 0},
    "phi": _LLAMA | {"num_key_value_heads": 4},
    "phi3": _LLAMA | {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0},
    "gpt2": _GPT,
    "gpt_neox": _ENCODER,
    "gpt_bigcode": _GPT,
    "opt": {
        "vocab_size": 160,
        "hidden_size": 64,
        "ffn_dim": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 32,
        "do_layer_norm_before": False,
    },
    "stablelm": _LLAMA,
    "olmo2": _LLAMA | {"pad_token_id": 0},
    "olmo3": _LLAMA | {"pad_token_id": 0},
    "granite": _LLAMA,
    "cohere": _LLAMA | {"tie_word_embeddings": True, "pad_token_id": 0},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "glm4_moe": _LATENT | {"num_key_value_heads": 2, "use_qk_norm": True},
    "gpt_oss": _LLAMA | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "bert": _ENCODER,
    "roberta": _ENCODER,
}


def config_of(family: str) -> transformers.PreTrainedConfig:
    """The small configuration of a family, with a class of models that has a head."""
    config = transformers.AutoConfig.for_model(family, **CONFIGS[family])
    auto = _auto_class(family)
    config.architectures = [auto._model_mapping[type(config)].__name__]
    return config


def build_on_meta(family: str) -> transformers.PreTrainedModel:
    """The model with weights that take no memory."""
    with torch.device("meta"):
        return _auto_class(family).from_config(config_of(family), dtype=torch.bfloat16)


def _auto_class(family: str) -> Any:
    if family in ("bert", "roberta"):
        return transformers.AutoModelForMaskedLM
    return transformers.AutoModelForCausalLM
