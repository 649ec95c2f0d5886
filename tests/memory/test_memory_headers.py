"""Shapes compared with the headers of the weights: a shape that they contradict is not called
exact, and a GGUF file is counted as it is stored."""

from __future__ import annotations

import numpy as np
from gguf_models import write_gguf
from safetensors.numpy import save_file

from qtui.cli.memory_report import report_on
from qtui_core.memory.plan.run_plan import RunPlan
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


def test_a_gguf_file_that_its_metadata_contradicts_is_not_exact(tmp_path):
    short = {name: array for name, array in weights().items() if "layers.1" not in name}
    report = report_of(write_gguf(tmp_path / "short.gguf", short, CONFIG, "F32"))
    count = sum(array.size for array in short.values())
    (term,) = [each for each in report.estimate.components if each.name == "weights"]
    assert term.basis == "derived"
    assert any(f"{count:,}" in n and f"{report.parameters:,}" in n for n in report.notes)


def test_headers_that_contradict_a_config_are_told_and_nothing_is_exact_then(tmp_path):
    import json

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
