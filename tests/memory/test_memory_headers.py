"""Shapes compared with the headers of the weights: a shape that they contradict is not called
exact, and a GGUF file is counted as it is stored."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gguf_models import write_gguf
from safetensors.numpy import save_file

from qtui.cli.memory_report import report_on
from qtui_core.errors import ModelError
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import rounded
from qtui_core.models import open_model

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "tie_word_embeddings": True,
}
LAYER = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64),
    "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
    "input_layernorm": (64,),
    "post_attention_layernorm": (64,),
}


def weights(*, head: bool = False, layers: int = 2):
    found = {"model.embed_tokens.weight": (160, 64), "model.norm.weight": (64,)}
    for index in range(layers):
        found |= {f"model.layers.{index}.{name}.weight": size for name, size in LAYER.items()}
    if head:
        found["lm_head.weight"] = (160, 64)
    return {name: np.zeros(size, np.float32) for name, size in found.items()}


def report_of(path):
    with open_model(str(path)) as source:
        return report_on(source, RunPlan(method="inference", batch=1, sequence=8))


def test_a_gguf_file_is_counted_as_it_is_stored(tmp_path):
    for head in (False, True):
        stored = weights(head=head)
        report = report_of(write_gguf(tmp_path / f"{head}.gguf", stored, CONFIG, "F32"))
        assert report.parameters == sum(array.size for array in stored.values())
        (term,) = [each for each in report.estimate.components if each.name == "weights"]
        assert (term.basis, term.source) == ("exact", "shapes of the parameters in GGUF metadata")
        assert not any("config.json" in note for note in report.notes)


def test_a_quantized_gguf_file_takes_what_its_blocks_take(tmp_path):
    path = write_gguf(tmp_path / "blocks.gguf", weights(head=True), CONFIG, "Q8_0")
    report = report_of(path)
    with open_model(str(path)) as source:
        blocks = sum(
            rounded(info.nbytes)
            for name, info in source.tensors.items()
            if info.dtype == "Q8_0" and name != "token_embd.weight"
        )
    norms = 5 * 512
    (term,) = [each for each in report.estimate.components if each.name == "weights"]
    assert (term.bytes, term.basis) == (blocks + rounded(160 * 64 * 2) + norms, "derived")
    assert report.estimate.plan.quant == "stored"
    # Unpacked it takes two bytes a weight.
    with open_model(str(path)) as source:
        plain = report_on(source, RunPlan(method="inference", quant="none", sequence=8))
    assert plain.estimate.components[0].bytes > 1.5 * term.bytes


def modelopt(experts: int = 0) -> dict[str, Any]:
    """The tensors of a small checkpoint as ModelOpt stores NVFP4: two codes a byte, a scale in E4M3
    for each 16, a scale of scales and one of inputs. With experts the MLP is a mixture."""
    import torch

    found: dict[str, Any] = {}
    for name, array in weights(head=True).items():
        copies = [name]
        if experts and ".mlp." in name:
            copies = [name.replace(".mlp.", f".mlp.experts.{i}.") for i in range(experts)]
        for copy in copies:
            if not name.endswith("_proj.weight"):
                found[copy] = torch.zeros(array.shape, dtype=torch.bfloat16)
                continue
            rows, columns = array.shape
            found[copy] = torch.zeros(rows, columns // 2, dtype=torch.uint8)
            found[f"{copy}_scale"] = torch.zeros(rows, columns // 16).to(torch.float8_e4m3fn)
            found[f"{copy}_scale_2"] = torch.zeros(())
            found[f"{copy.removesuffix('weight')}input_scale"] = torch.zeros(())
    if experts:
        for layer in range(2):
            gate = torch.zeros(experts, 64, dtype=torch.bfloat16)
            found[f"model.layers.{layer}.mlp.gate.weight"] = gate
    return found


ALGORITHM = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "*.mlp.gate"]}
TOLD = {
    "beside": ({}, {"producer": {"name": "modelopt"}, "quantization": ALGORITHM}),
    "without its method": ({"quantization_config": ALGORITHM}, None),
    "with its method": ({"quantization_config": {"quant_method": "modelopt"} | ALGORITHM}, None),
    "by the headers alone": ({}, None),
}


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("told", TOLD)
def test_where_a_quantization_is_told_does_not_matter(tmp_path, told, experts):
    from safetensors.torch import save_file

    config, beside = TOLD[told]
    config = CONFIG | {"tie_word_embeddings": False, "torch_dtype": "bfloat16"} | config
    if experts:
        config |= {
            "model_type": "qwen3_moe", "num_experts": experts, "num_experts_per_tok": 2,
            "moe_intermediate_size": 96, "head_dim": 16,
        }  # fmt: skip
    tensors = modelopt(experts)
    if experts:  # as Qwen3 has
        norms = {f"model.layers.{i}.self_attn.{n}_norm.weight" for i in range(2) for n in "qk"}
        tensors |= {name: tensors["model.norm.weight"][:16].clone() for name in norms}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    if beside:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    report = report_of(tmp_path)
    found = report.estimate
    packed = {"weights", "quantization constants"}
    taken = sum(each.bytes for each in found.components if each.name in packed)
    # Each tensor is rounded up to 512 bytes, and experts are stacked.
    stored = sum(t.nbytes for t in tensors.values())
    assert stored <= taken <= stored + 512 * len(tensors)
    assert found.plan.quant == "stored"
    assert not any("quantized already; the estimate" in note for note in report.notes)
    assert not any("nf4" in advice.change for advice in report.advice)
    with open_model(tmp_path) as source:  # nothing trains over it: as before it was quantized
        trained = report_on(source, RunPlan())
    assert trained.estimate.plan.quant == "nf4-dq"
    assert any("its weights unpacked" in note for note in trained.notes)


def test_a_configuration_alone_is_read_with_what_stands_beside_it(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    plain = report_of(config).estimate.components[0].bytes
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(TOLD["beside"][1]))
    assert report_of(config).estimate.components[0].bytes < plain
    (tmp_path / "hf_quant_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"hf_quant_config\.json"):
        report_of(config)


def test_a_gguf_file_that_its_metadata_contradicts_is_not_exact(tmp_path):
    short = {name: array for name, array in weights().items() if "layers.1" not in name}
    report = report_of(write_gguf(tmp_path / "short.gguf", short, CONFIG, "F32"))
    count = sum(array.size for array in short.values())
    (term,) = [each for each in report.estimate.components if each.name == "weights"]
    assert term.basis == "derived"
    assert any(f"{count:,}" in n and f"{report.parameters:,}" in n for n in report.notes)


def test_headers_that_contradict_a_config_are_told_and_nothing_is_exact_then(tmp_path):
    wider = weights() | {"model.layers.1.mlp.up_proj.weight": np.zeros((80, 64), np.float32)}
    cases = {
        "agrees": (weights(), "exact", ""),
        "wider": (wider, "derived", "mlp.up_proj.weight as 80 x 64 and config.json makes it 96 x"),
        "head": (weights(head=True), "derived", "10,240 parameters more"),
    }
    for name, (stored, basis, words) in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
        save_file(stored, folder / "model.safetensors")
        report = report_of(folder)
        known = {term.name: term.basis for term in report.estimate.components}
        assert known["weights"] == known["buffers"] == basis, name
        assert any(words in note for note in report.notes) or not words, name
