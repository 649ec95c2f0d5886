"""The tensors of a checkpoint, compared with those that its config.json implies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
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
#: Families whose configs contain a text config and a vision config.
MULTIMODAL = {
    "gemma3", "llama4", "mistral3", "qwen", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe",
    "qwen3_vl_moe_text", "qwen3_5", "qwen3_5_moe", "gemma3n", "gemma4",
}  # fmt: skip


def write(folder: Path, tensors: dict[str, np.ndarray], config: dict) -> str:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def tensors_of(config: dict) -> dict[str, np.ndarray]:
    return {n: np.zeros(s, np.float16) for n, s in named_parameters(shape_from_config(config))}


def checked(path: str):
    with open_model(path) as source:
        return check_completeness(source)


def wrong(found) -> tuple:
    return found.missing, tuple(m.name for m in found.misshapen)


@pytest.mark.slow
def test_saved_models_are_complete_and_removed_tensors_are_reported(tmp_path):
    import torch
    import transformers

    bad, seen = [], 0
    for family in sorted(set(families()) - MULTIMODAL):
        config = TINY | {"num_key_value_heads": 2, "model_type": family} | SMALL.get(family, {})
        shape = shape_from_config(config)
        auto = transformers.AutoModelForCausalLM
        if shape.is_encoder:
            auto = transformers.AutoModelForMaskedLM
        model = auto.from_config(transformers.AutoConfig.for_model(**config), dtype=torch.float16)
        path = tmp_path / family
        model.save_pretrained(path)
        found = checked(str(path))
        if found.unchecked or found.partly_of or wrong(found) != ((), ()):
            bad.append((family, found))
        stored = load_file(path / "model.safetensors")
        norms = [n for n in stored if n.endswith("norm.weight") or ".ln_" in n]
        norms = norms if len(norms) > 1 else list(stored)
        first, last = norms[0], norms[-1]
        del stored[first]
        stored[last] = np.zeros(7, np.float16)
        stored["strange.weight"] = np.zeros(3, np.float16)
        save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
        found = checked(str(path))
        expected = [{name.split(".", 1)[-1]} for name in (first, last)]
        if [{n.split(".", 1)[-1] for n in names} for names in wrong(found)] != expected:
            bad.append((family, first, last, wrong(found)))
        _, info = auto.from_pretrained(path, output_loading_info=True, ignore_mismatched_sizes=True)
        theirs = [len(info[k]) for k in ("missing_keys", "mismatched_keys", "unexpected_keys")]
        # If a bias is tied to another, both are reported.
        if not (1 <= theirs[0] <= 2 and theirs[1:] == [1, 1]):
            bad.append((family, info))
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            auto.from_pretrained(path)
        seen += 1
    assert not bad
    assert seen > 25


def test_names_on_the_hub_are_complete_and_faults_are_reported(tmp_path):
    llama, gpt2 = tensors_of(LLAMA), tensors_of(TINY | SMALL["gpt2"] | {"model_type": "gpt2"})
    tied = LLAMA | {"tie_word_embeddings": True}
    bare = {n.removeprefix("model."): t for n, t in llama.items() if n != "lm_head.weight"}
    mask = np.zeros((1, 1, 64, 64), np.float16)
    old = {n.removeprefix("transformer."): t for n, t in gpt2.items()}
    mixtral_config = TINY | SMALL["mixtral"] | {"model_type": "mixtral"}
    packed = {n: t for n, t in llama.items() if not n.endswith("_proj.weight")}
    for n in set(llama) - set(packed):
        module, (out, inputs) = n.removesuffix(".weight"), llama[n].shape
        packed |= {
            f"{module}.qweight": np.zeros((inputs // 8, out), np.int32),
            f"{module}.qzeros": np.zeros((1, out // 8), np.int32),
            f"{module}.scales": np.zeros((1, out), np.float16),
            f"{module}.g_idx": np.zeros(inputs, np.int32),
            f"{module}.bias": np.zeros(out, np.float16),
        }
    gptq = LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}
    head, norm, down = "lm_head.weight", "model.norm.weight", "model.layers.1.mlp.down_proj.weight"
    without = {n: t for n, t in llama.items() if n not in (head, norm)}
    many = f"model.layers.{'9' * 5000}.eh_proj.weight"  # more digits than Python converts
    cases = {
        "whole": (LLAMA, llama, ((), ())),
        "tied, head stored": (tied, llama, ((), ())),
        "tied, head absent": (tied, without | {norm: llama[norm]}, ((), ())),
        "tied, table by the name of the head": (
            tied, {n: t for n, t in llama.items() if n != "model.embed_tokens.weight"}, ((), ())
        ),
        "base model": (LLAMA | {"architectures": ["LlamaModel"]}, bare, ((), ())),
        "another head": (
            LLAMA | {"architectures": ["LlamaForSequenceClassification"]},
            {n: t for n, t in llama.items() if n != head}, ((), ()),
        ),
        "a head that is not known": (
            LLAMA | {"architectures": ["LlamaForReward"]},
            {n: t for n, t in llama.items() if n != head} | {"reward": mask}, ((), ()),
        ),
        "gpt2 of old": (
            TINY | SMALL["gpt2"] | {"model_type": "gpt2"},
            old | {"h.0.attn.bias": mask, "h.1.attn.masked_bias": mask}, ((), ()),
        ),
        "gptq": (gptq, packed, ((), ())),
        "no head and no norm": (LLAMA, without, ((norm, head), ())),
        "another shape": (LLAMA, llama | {down: llama[down].T.copy()}, ((), (down,))),
        "one too many, and a layer of thousands of digits": (
            LLAMA, llama | {"x": mask, many: mask}, ((), ())
        ),
        "mixtral": (mixtral_config, _mixtral(mixtral_config), ((), ())),
    }  # fmt: skip
    told = {
        name: wrong(checked(write(tmp_path / name, tensors, config)))
        for name, (config, tensors, _) in cases.items()
    }
    assert told == {name: expected for name, (*_, expected) in cases.items()}
    one = _mixtral(mixtral_config)
    gone = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    del one[gone]
    stack = "model.layers.1.mlp.experts.down_proj"
    assert wrong(checked(write(tmp_path / "m", one, mixtral_config))) == ((stack,), ())


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
        name.replace("model.", "model.language_model.", 1): each.transpose(0, 2, 1)
        if each.ndim == 3
        else each
        for name, each in tensors_of(whole).items()
    }
    assert wrong(checked(write(tmp_path / "turned", stored, whole))) == ((), ())
    name = "model.language_model.layers.0.mlp.experts.down_proj"
    stored[name] = stored[name][:, :-1]
    found = checked(write(tmp_path / "short", stored, whole))
    assert [each.name for each in found.misshapen] == [name.replace("language_model.", "")]


def test_every_face_of_the_headers_says_what_is_wrong_or_not_checked(tmp_path):
    tensors = tensors_of(LLAMA)
    del tensors["model.norm.weight"]
    tensors["lm_head.weight"] = np.zeros((48, 31), np.float16)
    with open_model(write(tmp_path / "m", tensors, LLAMA)) as source:
        inspection = census_only(source)
    document = inspection_document(inspection, all_tensors=True)
    data = json.loads(to_json(document))["completeness"]
    assert data["checked"] is True
    assert data["missing"] == ["model.norm.weight"]
    assert data["misshapen"] == [
        {"name": "lm_head.weight", "shape": [48, 31], "implied_shape": [48, 32]}
    ]
    for text in (to_markdown(document).replace("\\", ""), to_html(document), inspection.conclusion):
        assert "model.norm.weight" in text
        assert "lm_head.weight" in text
    assert "lacks 1 tensor that its config.json implies" in inspection.conclusion
    assert "[48, 31] for [48, 32]" in inspection.conclusion
    with open_model(write(tmp_path / "u", tensors, LLAMA | {"model_type": "mamba"})) as source:
        inspection = census_only(source)
    text = to_markdown(inspection_document(inspection, all_tensors=True))
    assert "not checked: no shape of models of type 'mamba'" in text
    assert "lacks" not in inspection.conclusion
