"""The tensors of a checkpoint, compared with those that its config.json implies."""

import json

import numpy as np
import pytest
from every import every, over
from packed_models import save_model, under
from safetensors.numpy import load_file, save_file

from qtui.report.faces.html import to_html
from qtui.report.faces.json_face import to_json
from qtui.report.faces.markdown import to_markdown
from qtui.report.inspection.document import inspection_document
from qtui_core.inspection.census import census_only
from qtui_core.inspection.completeness import check_completeness
from qtui_core.memory.shape.from_config import families, shape_from_config
from qtui_core.memory.shape.model_shape import named_parameters
from qtui_core.models import open_model

TINY = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 48,
    "intermediate_size": 64, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
LLAMA = TINY | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
#: Settings that a family needs in order to be small.
SMALL = {
    "deepseek_v2": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
                    "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
                    "topk_method": "greedy", "n_group": 1, "topk_group": 1},
    "qwen2_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                  "shared_expert_intermediate_size": 16},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "mixtral": {"num_local_experts": 4, "num_key_value_heads": 2},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {"num_local_experts": 4, "head_dim": 16, "intermediate_size_mlp": 64,
                    "num_key_value_heads": 2, "pad_token_id": 0},
    "gemma3n_text": {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 48,
                     "hidden_size_per_layer_input": 8, "head_dim": 16, "laurel_rank": 4},
    "opt": {"ffn_dim": 64},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
}  # fmt: skip
SMALL["deepseek_v3"] = SMALL["deepseek_v2"]
MIXTRAL = TINY | SMALL["mixtral"] | {"model_type": "mixtral"}
HEAD, NORM, DOWN = "lm_head.weight", "model.norm.weight", "model.layers.1.mlp.down_proj.weight"
EXPERT = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
STACK = "model.layers.1.mlp.experts.down_proj"
#: Families whose configs contain a text config and a vision config.
MULTIMODAL = {
    "gemma3", "llama4", "mistral3", "qwen", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe",
    "qwen3_vl_moe_text", "qwen3_5", "qwen3_5_moe", "gemma3n", "gemma4",
}  # fmt: skip


def tensors_of(config: dict) -> dict[str, np.ndarray]:
    return {n: np.zeros(s, np.float16) for n, s in named_parameters(shape_from_config(config))}


def checked(path):
    with open_model(path) as source:
        return check_completeness(source)


def wrong(path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The missing tensors of a checkpoint, and those of another shape."""
    found = checked(path)
    return found.missing, tuple(each.name for each in found.misshapen)


@pytest.mark.slow
def test_saved_models_are_complete_and_removed_tensors_are_reported(tmp_path):
    import torch
    import transformers

    def check(family):
        config = TINY | {"num_key_value_heads": 2, "model_type": family} | SMALL.get(family, {})
        auto = transformers.AutoModelForCausalLM
        if shape_from_config(config).is_encoder:
            auto = transformers.AutoModelForMaskedLM
        model = auto.from_config(transformers.AutoConfig.for_model(**config), dtype=torch.float16)
        path = tmp_path / family
        model.save_pretrained(path)
        found = checked(path)
        assert (found.unchecked, found.partly_of) == ("", "")
        assert wrong(path) == ((), ())
        stored = load_file(path / "model.safetensors")
        norms = [n for n in stored if n.endswith("norm.weight") or ".ln_" in n]
        first, *_, last = norms if len(norms) > 1 else stored
        del stored[first]
        stored[last] = np.zeros(7, np.float16)
        stored["strange.weight"] = np.zeros(3, np.float16)
        save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
        told = [[name.split(".", 1)[-1] for name in names] for names in wrong(path)]
        assert [set(names) for names in told] == [{n.split(".", 1)[-1]} for n in (first, last)]
        _, info = auto.from_pretrained(path, output_loading_info=True, ignore_mismatched_sizes=True)
        theirs = [len(info[k]) for k in ("missing_keys", "mismatched_keys", "unexpected_keys")]
        # If a bias is tied to another, both are reported.
        assert theirs in ([1, 1, 1], [2, 1, 1])

    checked_families = sorted(set(families()) - MULTIMODAL)
    assert len(checked_families) > 25
    every(checked_families, check)


def without(tensors, *names):
    return {name: x for name, x in tensors.items() if name not in names}


def in_gptq(tensors):
    """The projections as GPTQ packs them."""
    packed = {n: t for n, t in tensors.items() if not n.endswith("_proj.weight")}
    for n in set(tensors) - set(packed):
        out, inputs = tensors[n].shape
        parts = {
            "qweight": np.zeros((inputs // 8, out), np.int32),
            "qzeros": np.zeros((1, out // 8), np.int32),
            "scales": np.zeros((1, out), np.float16),
            "g_idx": np.zeros(inputs, np.int32),
            "bias": np.zeros(out, np.float16),
        }
        packed |= under(n.removesuffix(".weight"), parts)
    return packed


def test_names_on_the_hub_are_complete(tmp_path):
    llama, gpt_config = tensors_of(LLAMA), TINY | SMALL["gpt2"] | {"model_type": "gpt2"}
    tied = LLAMA | {"tie_word_embeddings": True}
    mask = np.zeros((1, 1, 64, 64), np.float16)
    gpt2 = {n.removeprefix("transformer."): t for n, t in tensors_of(gpt_config).items()}
    gptq = LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}
    headless = without(llama, HEAD)
    bare = {n.removeprefix("model."): t for n, t in headless.items()}
    many = f"model.layers.{'9' * 5000}.eh_proj.weight"  # more digits than Python converts

    def of(architecture):
        return LLAMA | {"architectures": [architecture]}

    cases = {
        "whole": (LLAMA, llama),
        "tied, head stored": (tied, llama),
        "tied, head absent": (tied, headless),
        "tied, table by the name of the head": (tied, without(llama, "model.embed_tokens.weight")),
        "base model": (of("LlamaModel"), bare),
        "another head": (of("LlamaForSequenceClassification"), headless),
        "a head that is not known": (of("LlamaForReward"), headless | {"reward": mask}),
        "gpt2 of old": (gpt_config, gpt2 | {"h.0.attn.bias": mask, "h.1.attn.masked_bias": mask}),
        "gptq": (gptq, in_gptq(llama)),
        "one too many": (LLAMA, llama | {"x": mask}),
        "a layer of thousands of digits": (LLAMA, llama | {many: mask}),
        "mixtral": (MIXTRAL, _mixtral(MIXTRAL)),
    }

    def check(config, tensors):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        assert wrong(save_model(folder, tensors, **config)) == ((), ())

    every(cases, check)


@over(
    ("config", "change", "missing", "misshapen"),
    [
        (LLAMA, lambda x: without(x, HEAD, NORM), (NORM, HEAD), ()),
        (LLAMA, lambda x: x | {DOWN: x[DOWN].T.copy()}, (), (DOWN,)),
        (MIXTRAL, lambda x: without(_mixtral(MIXTRAL), EXPERT), (STACK,), ()),
    ],
)
def test_faults_are_reported(tmp_path, config, change, missing, misshapen):
    path = save_model(tmp_path / "m", change(tensors_of(config)), **config)
    assert wrong(path) == (missing, misshapen)


def _mixtral(config: dict) -> dict[str, np.ndarray]:
    """The tensors of Mixtral as Mistral publishes them: each expert has three matrices."""
    found = {}
    for name, x in tensors_of(config).items():
        name = name.replace(".mlp.", ".block_sparse_moe.")
        if ".experts." not in name:
            found[name] = x
            continue
        prefix, parts = name.rpartition(".")[0], ("w2",)
        if name.endswith("gate_up_proj"):
            x, parts = x.reshape(len(x), 2, -1, x.shape[2]), ("w1", "w3")
        else:
            x = x[:, None]
        for index in range(len(x)):
            for at, part in enumerate(parts):
                found[f"{prefix}.{index}.{part}.weight"] = x[index, at].copy()
    return found


def test_experts_may_be_stored_as_their_class_turns_them(tmp_path):
    text = TINY | SMALL["qwen3_moe"] | {"num_key_value_heads": 2}
    whole = {"model_type": "qwen3_vl_moe", "text_config": text}
    stored = {
        name.replace("model.", "model.language_model.", 1): x.swapaxes(-1, -2) if x.ndim == 3 else x
        for name, x in tensors_of(whole).items()
    }
    assert wrong(save_model(tmp_path / "turned", stored, **whole)) == ((), ())
    name = "model.language_model.layers.0.mlp.experts.down_proj"
    stored[name] = stored[name][:, :-1]
    path = save_model(tmp_path / "short", stored, **whole)
    assert wrong(path)[1] == (name.replace("language_model.", ""),)


def test_every_face_of_the_headers_says_what_is_wrong_or_not_checked(tmp_path):
    tensors = tensors_of(LLAMA)
    del tensors["model.norm.weight"]
    tensors["lm_head.weight"] = np.zeros((48, 31), np.float16)
    with open_model(save_model(tmp_path / "m", tensors, **LLAMA)) as source:
        inspection = census_only(source)
    document = inspection_document(inspection, all_tensors=True)
    data = json.loads(to_json(document))["completeness"]
    misshapen = {"name": HEAD, "shape": [48, 31], "implied_shape": [48, 32]}
    assert (data["checked"], data["missing"]) == (True, [NORM])
    assert data["misshapen"] == [misshapen]
    for text in (to_markdown(document).replace("\\", ""), to_html(document), inspection.conclusion):
        assert "model.norm.weight" in text
        assert "lm_head.weight" in text
    assert "lacks 1 tensor that its config.json implies" in inspection.conclusion
    assert "[48, 31] for [48, 32]" in inspection.conclusion
    unknown = LLAMA | {"model_type": "mamba"}
    with open_model(save_model(tmp_path / "u", tensors, **unknown)) as source:
        inspection = census_only(source)
    text = to_markdown(inspection_document(inspection, all_tensors=True))
    assert "not checked: no shape of models of type 'mamba'" in text
    assert "lacks" not in inspection.conclusion
