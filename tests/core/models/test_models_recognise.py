"""Quantized checkpoints: they are recognised, and their parameters are those of the unpacked
weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from every import over
from lazy_imports import LazyImport

from qtui_core.models import ModelSource, Role, open_model

bnb = LazyImport("bitsandbytes")
torch = LazyImport("torch")
save_file = LazyImport("safetensors.torch", "save_file")


OUT, IN = 96, 128


def checkpoint(folder: Path, tensors: dict, settings: dict | None = None) -> ModelSource:
    save_file({n: t.contiguous() for n, t in tensors.items()}, str(folder / "model.safetensors"))
    if settings is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return open_model(folder)


def zeros(*shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype or torch.float16)


def roles(source: ModelSource) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, info in source.tensors.items():
        found.setdefault(info.role.value, []).append(name)
    return found


@over("kind", ["nf4", "fp4"])
@over("nested", [True, False])
@over("storage", ["uint8", "bfloat16"])
@over("with_config", [True, False])
def test_bitsandbytes_4bit_as_it_really_saves(tmp_path, kind, nested, storage, with_config):
    options = {"quant_type": kind, "compress_statistics": nested}
    stored_as = getattr(torch, storage)
    layer = bnb.nn.Linear4bit(IN, OUT, bias=True, quant_storage=stored_as, **options).to("cpu")
    state = {f"layers.0.up.{n}": t for n, t in layer.state_dict().items()}
    state["norm.weight"] = zeros(OUT)
    settings = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": nested,
    }
    source = checkpoint(tmp_path, state, settings if with_config else None)
    found = source.quantization
    assert found.method == f"bitsandbytes-{kind}"
    assert found.tensors == ("layers.0.up.weight",)
    assert source.tensors["layers.0.up.weight"].parameters == OUT * IN
    assert source.parameters == OUT * IN + OUT + OUT  # weight, bias, norm
    assert sum(source.dtypes.values()) == source.parameters
    assert roles(source) == {
        "codes": ["layers.0.up.weight"],
        "scales": sorted(n for n in state if n.startswith("layers.0.up.weight.")),
        "values": ["layers.0.up.bias", "norm.weight"],
    }
    assert ("double quantization" in found.detail) == (with_config and nested)
    assert found.detail.endswith(".")


def test_bitsandbytes_int8_as_it_really_saves(tmp_path):
    layer = bnb.nn.Linear8bitLt(IN, OUT, bias=False, has_fp16_weights=False).to("cpu")
    state = {f"up.{n}": torch.as_tensor(t) for n, t in layer.state_dict().items()}
    assert state["up.weight"].dtype == torch.int8
    source = checkpoint(tmp_path, state)
    assert source.quantization.method == "bitsandbytes-int8"
    assert source.parameters == OUT * IN
    assert roles(source) == {"codes": ["up.weight"], "scales": ["up.SCB", "up.weight_format"]}


@over("bits", [2, 3, 4, 8])
@over("act_order", [True, False])
@over("with_config", [True, False])
def test_gptq(tmp_path, bits, act_order, with_config):
    # Shapes of AutoGPTQ's QuantLinear: codes packed along the input dimension.
    group = 32
    state = {
        "up.qweight": zeros(IN * bits // 32, OUT, dtype=torch.int32),
        "up.qzeros": zeros(IN // group, OUT * bits // 32, dtype=torch.int32),
        "up.scales": zeros(IN // group, OUT),
        "up.bias": zeros(OUT),
    }
    if act_order:
        state["up.g_idx"] = zeros(IN, dtype=torch.int32)
    settings = {"quant_method": "gptq", "bits": bits, "group_size": group}
    source = checkpoint(tmp_path, state, settings if with_config else None)
    assert source.quantization.method == "gptq"
    assert source.quantization.parameters == {"up.qweight": OUT * IN}
    assert source.parameters == OUT * IN + OUT
    assert "up.bias" in roles(source)["values"]
    assert (f"{bits} bits, groups of 32" in source.quantization.detail) == with_config


@pytest.mark.parametrize("with_config", [True, False])
def test_awq(tmp_path, with_config):
    # Shapes of AutoAWQ's WQLinear_GEMM: codes packed along the output dimension.
    state = {
        "up.qweight": zeros(IN, OUT // 8, dtype=torch.int32),
        "up.qzeros": zeros(IN // 32, OUT // 8, dtype=torch.int32),
        "up.scales": zeros(IN // 32, OUT),
    }
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    source = checkpoint(tmp_path, state, settings if with_config else None)
    assert source.quantization.method == "awq"
    assert source.parameters == OUT * IN


def groups(bits: int, count: int = 1) -> dict:
    return {f"group_{i}": {"weights": {"num_bits": bits + 4 * i}} for i in range(count)}


def test_compressed_tensors_packed_integers(tmp_path):
    state = {
        "up.weight_packed": zeros(OUT, IN // 8, dtype=torch.int32),
        "up.weight_scale": zeros(OUT, IN // 32),
        "up.weight_zero_point": zeros(OUT // 8, IN // 32, dtype=torch.int32),
        "up.weight_shape": torch.tensor([OUT, IN]),
    }
    settings = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": groups(4),
    }
    source = checkpoint(tmp_path, state, settings)
    assert source.quantization.method == "compressed-tensors"
    assert source.parameters == OUT * IN
    assert "pack-quantized" in source.quantization.detail
    # Two widths in one checkpoint: the names alone do not tell which tensor has which.
    source = checkpoint(tmp_path, state, settings | {"config_groups": groups(4, 2)})
    assert source.quantization.parameters == {}
    assert "the names do not say how many" in source.quantization.detail
    assert source.tensors["up.weight_packed"].role is Role.CODES


@pytest.mark.parametrize(("bits", "columns"), [(4, IN // 2), (6, IN * 3 // 4)])
def test_compressed_tensors_small_floats(tmp_path, bits, columns):
    state = {
        "up.weight_packed": zeros(OUT, columns, dtype=torch.uint8),
        "up.weight_scale": zeros(OUT, IN // 16).to(torch.float8_e4m3fn),
        "up.weight_global_scale": zeros(1, dtype=torch.float32),
        "up.input_global_scale": zeros(1, dtype=torch.float32),
    }
    settings = {"quant_method": "compressed-tensors", "config_groups": groups(bits)}
    assert checkpoint(tmp_path, state, settings).parameters == OUT * IN


@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn"])
def test_compressed_tensors_8bit(tmp_path, name):
    dtype = getattr(torch, name)
    state = {
        "up.weight": zeros(OUT, IN).to(dtype),
        "up.weight_scale": zeros(OUT, 1),
        "up.input_scale": zeros(1),
    }
    source = checkpoint(tmp_path, state, {"quant_method": "compressed-tensors"})
    assert source.quantization.method == "compressed-tensors"
    assert source.parameters == OUT * IN
    expected = "int8" if dtype == torch.int8 else "fp8"
    (tmp_path / "config.json").unlink()
    assert open_model(tmp_path).quantization.method == expected


def test_fp8_with_block_scales(tmp_path):
    state = {
        "up.weight": zeros(OUT, IN).to(torch.float8_e4m3fn),
        "up.weight_scale_inv": zeros(1, 1, dtype=torch.float32),
        "experts.gate_up_proj": zeros(4, OUT, IN).to(torch.float8_e4m3fn),
        "experts.gate_up_proj_scale_inv": zeros(4, 1, 1, dtype=torch.float32),
        "embed.weight": zeros(10, IN),
    }
    source = checkpoint(tmp_path, state, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert source.quantization.method == "fp8"
    assert "blocks of 128x128" in source.quantization.detail
    assert source.parameters == 5 * OUT * IN + 10 * IN
    assert roles(source)["values"] == ["embed.weight"]


def test_plain_fp8_weights_without_scales_are_values(tmp_path):
    source = checkpoint(tmp_path, {"up.weight": zeros(OUT, IN).to(torch.float8_e4m3fn)})
    assert source.quantization is None
    assert source.tensors["up.weight"].role is Role.VALUES


def test_nvfp4_mxfp4_and_bitnet(tmp_path):
    nvfp4 = {
        "up.weight": zeros(OUT, IN // 2, dtype=torch.uint8),
        "up.weight_scale": zeros(OUT, IN // 16).to(torch.float8_e4m3fn),
        "up.weight_scale_2": zeros(dtype=torch.float32),
        "up.input_scale": zeros(dtype=torch.float32),
    }
    source = checkpoint(tmp_path, nvfp4)
    assert (source.quantization.method, source.parameters) == ("nvfp4", OUT * IN)
    mxfp4 = {
        "mlp.experts.gate_up_proj_blocks": zeros(4, OUT, IN // 32, 16, dtype=torch.uint8),
        "mlp.experts.gate_up_proj_scales": zeros(4, OUT, IN // 32, dtype=torch.uint8),
    }
    source = checkpoint(tmp_path, mxfp4)
    assert (source.quantization.method, source.parameters) == ("mxfp4", 4 * OUT * IN)
    bitnet = {
        "up.weight": zeros(OUT // 4, IN, dtype=torch.uint8),
        "up.weight_scale": zeros(1),
    }
    source = checkpoint(tmp_path, bitnet, {"quant_method": "bitnet"})
    assert (source.quantization.method, source.parameters) == ("bitnet", OUT * IN)


@pytest.mark.parametrize(
    ("settings", "method"),
    [
        ({"load_in_8bit": True}, "bitsandbytes-int8"),
        ({"load_in_4bit": True}, "bitsandbytes-fp4"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes-nf4"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "hqq"}, "hqq"),
        ({"quant_method": "a\x1b[31m"}, "a\\x1b[31m"),
    ],
)
def test_a_quantization_that_only_the_config_names_is_reported_as_such(tmp_path, settings, method):
    source = checkpoint(tmp_path, {"up.weight": zeros(OUT, IN)}, settings)
    assert source.quantization.method == method
    assert "announces" in source.quantization.detail
    assert source.quantization.detail.isprintable()
    assert source.parameters == OUT * IN
    (tmp_path / "model.safetensors").unlink()
    source = open_model(tmp_path)
    assert source.quantization.method == method
    assert source.quantization.detail.startswith("The config says")


@pytest.mark.parametrize("holder", ["quantization_config", "compression_config", "text_config"])
def test_where_configs_keep_it(tmp_path, holder):
    settings: dict = {"quant_method": "awq", "bits": 4}
    if holder == "text_config":
        settings = {"quantization_config": settings}
    (tmp_path / "config.json").write_text(json.dumps({holder: settings}))
    assert open_model(tmp_path).quantization.method == "awq"


def test_plain_models_are_plain(tmp_path):
    state = {
        "up.weight": zeros(OUT, IN),
        "scales": zeros(3),
        "x_blocks": zeros(2),
        "weight_scale": zeros(1),
    }
    for settings in (None, {}, {"load_in_4bit": False}):
        source = checkpoint(tmp_path, state, settings)
        assert source.quantization is None
        assert source.parameters == sum(int(np.prod(t.shape)) for t in state.values())


@pytest.mark.parametrize(
    ("packed", "says"),
    [(1, "1 of 2 tensors holds FP8 codes"), (2, "2 of 4 tensors hold FP8 codes")],
)
def test_singular_and_plural_of_packed_tensors(tmp_path, packed, says):
    tensors = {}
    for i in range(packed):
        tensors[f"l{i}.weight"] = torch.zeros(4, 4).to(torch.float8_e4m3fn)
        tensors[f"l{i}.weight_scale"] = zeros(1)
    assert checkpoint(tmp_path, tensors).quantization.detail.startswith(says)
