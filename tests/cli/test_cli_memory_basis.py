"""What `qtui memory` says about the basis of its figures: dtypes, compute, what is not
quantized."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from lazy_imports import LazyImport
from safetensors.numpy import save_file

from qtui.report.faces.plain import to_plain
from qtui.report.memory.document import memory_document
from qtui_core.memory import RunPlan, estimate
from qtui_core.memory.advice.report import report_of
from qtui_core.memory.replay.timeline import Peaks
from qtui_core.memory.shape.description import ModelDescription
from qtui_core.memory.shape.from_config import shape_from_config

torch = LazyImport("torch")
transformers = LazyImport("transformers")

CONFIGS = Path(__file__).parents[1] / "memory" / "configs"
LLAMA = CONFIGS / "llama-3.1-8b.json"
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}


def memory(qtui, *args):
    done = qtui("memory", *args, "--json")
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def folder(path: Path, weights: type | None, **config: object) -> str:
    (path / "config.json").write_text(json.dumps({**SMALL, **config}))
    if weights is not None:
        tensors = {
            "model.embed_tokens.weight": np.zeros((512, 64), weights),
            "model.norm.weight": np.zeros(64, np.float32),
        }
        save_file(tensors, path / "model.safetensors")
    return str(path)


@pytest.mark.parametrize(
    ("weights", "config", "dtype"),
    [
        (np.float32, {}, "fp32"),
        (np.float16, {}, "fp16"),
        (np.float16, {"torch_dtype": None}, "fp16"),
        (np.float16, {"dtype": "auto"}, "fp16"),
        (np.float32, {"torch_dtype": "bfloat16"}, "bf16"),
        (np.float16, {"dtype": "float32"}, "fp32"),
    ],
)
def test_the_type_is_that_of_config_json_or_else_of_the_weights(
    qtui, tmp_path, weights, config, dtype
):
    data = memory(qtui, folder(tmp_path, weights, **config), "--method", "full", "--seq", "64")
    assert data["plan"]["dtype"] == dtype
    assert not any("does not say which type" in note for note in data["notes"])


def test_a_type_that_nothing_tells_is_said_to_be_taken(qtui, tmp_path):
    path = folder(tmp_path, None)
    data = memory(qtui, path, "--seq", "64")
    (note,) = data["notes"]
    assert data["plan"]["dtype"] == "bf16"
    assert note.startswith("config.json does not say which type the weights are of, and bf16 is t")
    assert memory(qtui, path, "--seq", "64", "--dtype", "fp32")["notes"] == []


def test_experts_that_stay_as_they_are_are_said_to(qtui):
    path = CONFIGS / "mixtral-8x7b.json"
    config = transformers.AutoConfig.for_model(**json.loads(path.read_text()))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    whole = sum(each.numel() for each in model.parameters())
    experts = [p.shape for name, p in model.named_parameters() if ".experts." in name]
    assert {len(shape) for shape in experts} == {3}  # of which bitsandbytes packs none
    share = sum(map(prod, experts)) / whole
    (note,) = memory(qtui, str(path))["notes"]
    assert f"The experts, {share:.0%} of the parameters, are not quantized" in note
    assert memory(qtui, str(path), "--method", "lora")["notes"] == []


def facts(qtui, *args) -> dict[str, str]:
    """The lines of the text output that consist of a name and a value."""
    lines = qtui("memory", str(LLAMA), *args).stdout.splitlines()
    found = [line.strip().split("  ", 1) for line in lines if "  " in line.strip()]
    return {name: value.strip() for name, value in found}


def test_an_inference_is_two_operations_a_parameter_and_token(qtui):
    said = facts(qtui, "--method", "inference", "--seq", "1000", "--generate", "24")
    # Every parameter of a product once: all but the embedding and the norms.
    products = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    operations = f"{2 * products * 1000:.3g}"
    assert said["C = 2ND"].startswith(f"2 x {products:,} parameters in products x 1,000 tokens")
    assert said["C = 2ND"].endswith(operations)
    assert "the prompt alone" in said["of this plan"]
    assert "backward" not in said["of this plan"]
    assert said["resident"].endswith("from prompt to prompt")
    trained = facts(qtui, "--seq", "1000")
    assert "C = 6ND" in trained
    assert "backward" in trained["of this plan"]
    assert trained["resident"].endswith("from step to step")


def test_a_gpu_without_units_for_the_type_has_no_bound_and_says_so(qtui):
    said = facts(qtui, "--gpu", "T4")
    assert said["on T4"].startswith("no bound: its vendor states no rate of bf16 but of ")
    assert "fp16" in said["on T4"]
    halves = facts(qtui, "--gpu", "T4", "--dtype", "fp16", "--autocast-dtype", "fp16")
    assert halves["on T4"].startswith("no less than ")


@pytest.mark.parametrize(
    ("args", "notes"),
    [
        (("--lora-targets", "q_proj,v_prj"), ["No module is named v_prj: it gets no adapter"]),
        (("--lora-targets", "q_proj,v_proj"), []),
        (("--lora-targets", "self_attn.q_proj,layers.3.mlp.up_proj"), []),
        (("--method", "inference", "--loss", "fused", "--lora-rank", "8"),
         ["--lora-rank 8 changes nothing", "--loss fused changes nothing"]),
        (("--method", "full", "--reentrant", "--autocast-dtype", "fp16"),
         ["--autocast-dtype fp16 changes nothing", "--reentrant changes nothing"]),
        (("--method", "full", "--reentrant", "--autocast-dtype", "fp16", "--autocast",
          "--checkpointing"), []),
        (("--method", "lora", "--lora-rank", "8", "--adapter-dtype", "bf16"), []),
    ],
)  # fmt: skip
def test_what_does_not_count_is_said(qtui, args, notes):
    said = memory(qtui, str(LLAMA), *args)["notes"]
    assert len(said) == len(notes)
    assert all(text.startswith(begin) for text, begin in zip(said, notes, strict=True))
    if not notes or "v_prj" not in args[1]:
        return
    alone = memory(qtui, str(LLAMA), "--lora-targets", "q_proj")
    both = memory(qtui, str(LLAMA), *args)
    assert alone["peak_allocated_bytes"] == both["peak_allocated_bytes"]


def test_names_of_experts_are_no_idle_targets(qtui):
    args = (str(CONFIGS / "mixtral-8x7b.json"), "--method", "lora", "--seq", "64")
    assert memory(qtui, *args, "--lora-targets", "w1,w3,q_proj")["notes"] == []
    (note,) = memory(qtui, *args, "--lora-targets", "w1,w3,w4")["notes"]
    assert "named w4" in note


def test_a_quantized_checkpoint_is_noted_once(qtui, tmp_path):
    stored = {"quantization_config": {"quant_method": "awq", "bits": 4}, "dtype": "float16"}
    notes = memory(qtui, folder(tmp_path, None, **stored), "--seq", "64")["notes"]
    assert len([note for note in notes if "quantized" in note]) == 1


def test_the_last_sentence_answers_what_was_asked(qtui):
    data = memory(qtui, str(LLAMA), "--max", "batch", "--gpu", "A100 80")
    assert f"The largest that fits is --batch {data['largest']['value']}, " in data["conclusion"]
    none = memory(qtui, str(LLAMA), "--max", "seq", "--vram", "2GiB")
    assert none["largest"]["value"] is None
    assert "Not even --seq " in none["conclusion"]
    assert "No single change saves that; `--" in none["conclusion"]


def test_a_sequence_that_ends_with_the_positions_says_so(qtui):
    gpt2 = str(CONFIGS / "gpt2-medium.json")
    text = qtui("memory", gpt2, "--max", "seq", "--gpu", "H100", "--dtype", "bf16").stdout
    assert "; the model has learned no more than 1,024 positions" in text


def test_what_was_not_weighed_is_not_said_to_save_nothing():
    config = json.loads((CONFIGS / "llama-3.2-1b.json").read_text())
    shape = shape_from_config(config | {"num_hidden_layers": 3})
    found = replace(estimate(shape, RunPlan(sequence=64)), origin="trace")
    model = ModelDescription("it", "it", {"dtype": "bfloat16"}, "LlamaForCausalLM", "")
    traced = report_of(model, replace(found, shape=None), None)
    text = to_plain(memory_document(traced, explain=False))
    assert "No single change" not in text
    assert "nothing in the plan" not in text
    assert text.endswith("What changes would save is not known: a trace covers one plan.\n")
    saves_nothing = report_of(model, found, lambda _: Peaks({"forward": 1}))
    weighed = to_plain(memory_document(saves_nothing, explain=False))
    assert "nothing in the plan" in weighed
