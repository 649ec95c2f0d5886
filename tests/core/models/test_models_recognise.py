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
    assert tuple(found.codes) == ("layers.0.up.weight",)
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


def groups(bits: int, count: int = 1) -> dict:
    return {f"group_{i}": {"weights": {"num_bits": bits + 4 * i}} for i in range(count)}


def gptq(bits: int, **more: str) -> dict[str, str]:
    """The shapes of AutoGPTQ's QuantLinear: codes packed along the input dimension."""
    return {"qweight": f"int32 {IN * bits // 32} {OUT}", "qzeros": f"int32 4 {OUT * bits // 32}",
            "scales": f"float16 4 {OUT}", "bias": f"float16 {OUT}", **more}  # fmt: skip


#: AutoAWQ's WQLinear_GEMM packs codes along the output dimension.
AWQ = {"qweight": f"int32 {IN} {OUT // 8}", "qzeros": f"int32 4 {OUT // 8}",
       "scales": f"float16 4 {OUT}"}  # fmt: skip
PACKED = {"weight_packed": f"int32 {OUT} {IN // 8}", "weight_scale": f"float16 {OUT} 4",
          "weight_zero_point": f"int32 {OUT // 8} 4", "weight_shape": "int64 2"}  # fmt: skip
NVFP4 = {"weight": f"uint8 {OUT} {IN // 2}", "weight_scale": f"float8_e4m3fn {OUT} {IN // 16}",
         "weight_scale_2": "float32", "input_scale": "float32"}  # fmt: skip


def small_floats(columns: int) -> dict[str, str]:
    return {"weight_packed": f"uint8 {OUT} {columns}", "input_global_scale": "float32 1",
            "weight_scale": f"float8_e4m3fn {OUT} {IN // 16}",
            "weight_global_scale": "float32 1"}  # fmt: skip


def scaled(dtype: str) -> dict[str, str]:
    return {"weight": f"{dtype} {OUT} {IN}", "weight_scale": f"float16 {OUT} 1",
            "input_scale": "float16 1"}  # fmt: skip


CT = {"quant_method": "compressed-tensors"}
BLOCKS = {
    "weight": f"float8_e4m3fn {OUT} {IN}", "weight_scale_inv": "float32 1 1",
    "experts": f"float8_e4m3fn 4 {OUT} {IN}", "experts_scale_inv": "float32 4 1 1",
}  # fmt: skip
MXFP4 = {"x_blocks": f"uint8 4 {OUT} {IN // 32} 16", "x_scales": f"uint8 4 {OUT} {IN // 32}"}
BITNET = {"weight": f"uint8 {OUT // 4} {IN}", "weight_scale": "float16 1"}
#: The tensors of a module, the settings of the config, the method that is recognised, the weights
#: in units of one matrix, and words of the sentence.
CHECKPOINTS: list[tuple[dict[str, str], dict | None, str, int, str]] = [
    *((gptq(bits), {"quant_method": "gptq", "bits": bits, "group_size": 32}, "gptq", 1,
       f"{bits} bits, groups of 32") for bits in (2, 3, 4, 8)),
    *((gptq(bits, g_idx=f"int32 {IN}"), None, "gptq", 1, "weights packed into")
      for bits in (2, 3, 4, 8)),
    (AWQ, {"quant_method": "awq", "bits": 4, "version": "gemm"}, "awq", 1, "4 bits"),
    (AWQ, None, "awq", 1, "AWQ"),
    (PACKED, CT | {"format": "pack-quantized", "config_groups": groups(4)}, "compressed-tensors", 1,
     "pack-quantized"),
    (small_floats(IN // 2), CT | {"config_groups": groups(4)}, "compressed-tensors", 1, ""),
    (small_floats(IN * 3 // 4), CT | {"config_groups": groups(6)}, "compressed-tensors", 1, ""),
    (scaled("int8"), CT, "compressed-tensors", 1, ""),
    (scaled("float8_e4m3fn"), CT, "compressed-tensors", 1, ""),
    (scaled("int8"), None, "int8", 1, "INT8"),
    (scaled("float8_e4m3fn"), None, "fp8", 1, "1 of 4 tensors holds FP8 codes"),
    (BLOCKS, {"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 5,
     "2 of 5 tensors hold FP8 codes (blocks of 128x128)"),
    (NVFP4, None, "nvfp4", 1, "NVFP4"),
    (MXFP4, None, "mxfp4", 4, "MXFP4"),
    (BITNET, {"quant_method": "bitnet"}, "bitnet", 1, "BitNet"),
]  # fmt: skip


def tensors_of(shapes: dict[str, str]) -> dict[str, torch.Tensor]:
    made = {"norm.weight": zeros(OUT)}
    for name, words in shapes.items():
        dtype, *sizes = words.split()
        made[f"up.{name}"] = zeros(*map(int, sizes)).to(getattr(torch, dtype))
    return made


@pytest.mark.parametrize(("shapes", "settings", "method", "matrices", "says"), CHECKPOINTS)
def test_what_others_pack(tmp_path, shapes, settings, method, matrices, says):
    source = checkpoint(tmp_path, tensors_of(shapes), settings)
    assert source.quantization.method == method
    assert says in source.quantization.detail
    plain = {"up.bias", "norm.weight"} & source.tensors.keys()
    assert source.parameters == matrices * OUT * IN + len(plain) * OUT
    assert set(roles(source)["values"]) == plain
    assert len(roles(source)["codes"]) == (2 if shapes is BLOCKS else 1)


def test_two_widths_in_one_checkpoint_are_not_told_apart_by_names(tmp_path):
    source = checkpoint(tmp_path, tensors_of(PACKED), CT | {"config_groups": groups(4, 2)})
    assert {code.parameters for code in source.quantization.codes.values()} == {None}
    assert "the names do not say how many" in source.quantization.detail
    assert source.tensors["up.weight_packed"].role is Role.CODES


def test_plain_fp8_weights_without_scales_are_values(tmp_path):
    source = checkpoint(tmp_path, {"up.weight": zeros(OUT, IN).to(torch.float8_e4m3fn)})
    assert source.quantization is None
    assert source.tensors["up.weight"].role is Role.VALUES


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
