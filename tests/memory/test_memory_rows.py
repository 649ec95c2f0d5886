"""A family and a GPU are one row each: made-up ones are estimated like any other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qtui.cli.memory_report import report_on
from qtui_core.memory import RunPlan, estimate
from qtui_core.memory.advice.fit import fit_on
from qtui_core.memory.devices import device as devices
from qtui_core.memory.devices.device import DEVICES
from qtui_core.memory.shape import from_config
from qtui_core.memory.shape.families.decoder import DecoderFamily
from qtui_core.memory.shape.families.gpt import GPTS, GptFamily
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import named_modules, parameter_count
from qtui_core.models import open_model

CONFIG = {
    "model_type": "salted", "torch_dtype": "bfloat16", "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
}  # fmt: skip
PLAN = RunPlan(method="full", batch=2, sequence=32)


@pytest.fixture
def salted(monkeypatch: pytest.MonkeyPatch) -> None:
    row = DecoderFamily("SaltedForCausalLM", embedding_scale=True)
    monkeypatch.setitem(from_config.FAMILIES, "salted", row)


@pytest.mark.usefixtures("salted")
def test_a_made_up_family_is_a_row(tmp_path):
    assert "salted" in from_config.families()
    shape = shape_from_config(CONFIG)
    assert (shape.family, shape.architecture) == ("salted", "SaltedForCausalLM")
    assert (shape.hidden, len(shape.layers), shape.embedding_scale) == (64, 3, True)
    plain = shape_from_config(CONFIG | {"model_type": "llama"})
    assert parameter_count(shape) == parameter_count(plain)
    found, without = estimate(shape, PLAN), estimate(plain, PLAN)
    assert found.resident_bytes == without.resident_bytes
    assert found.peak_allocated_bytes >= without.peak_allocated_bytes
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with open_model(str(tmp_path)) as source:
        report = report_on(source, PLAN)
    assert report.parameters == parameter_count(shape)
    assert report.estimate.peak_reserved_bytes == found.peak_reserved_bytes


def test_a_made_up_family_with_names_of_its_own_is_a_row(monkeypatch):
    gpt2 = GPTS["gpt2"]
    assert isinstance(gpt2, GptFamily)
    names = replace(gpt2.names, layers="salted.h", up="mlp.salt")
    row = replace(gpt2, architecture="SaltedLMHeadModel", names=names, hidden="grains")
    monkeypatch.setitem(from_config.FAMILIES, "salted", row)
    config = {"vocab_size": 500, "n_layer": 2, "n_head": 4, "grains": 32}
    shape = shape_from_config(config | {"model_type": "salted"})
    plain = shape_from_config(config | {"model_type": "gpt2", "n_embd": 32})
    assert parameter_count(shape) == parameter_count(plain)
    assert "salted.h.1.mlp.salt" in {name for name, _ in named_modules(shape)}


def test_a_made_up_gpu_is_a_row(monkeypatch):
    row = replace(
        next(device for device in DEVICES if device.name.startswith("T4")),
        name="Saltworks 7", total=7 << 30, allocatable=None, aliases=("salt7",),
    )  # fmt: skip
    monkeypatch.setattr(devices, "DEVICES", (*DEVICES, row))
    device = devices.find_device("salt7")
    assert device is row
    shape = shape_from_config(CONFIG | {"model_type": "llama"})
    found = estimate(shape, PLAN, device)
    assert fit_on(found, device).gpu == "Saltworks 7"
    assert found.plan.attention == "efficient"  # what its compute capability takes
