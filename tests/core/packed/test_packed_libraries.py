"""Quantized checkpoints written by bitsandbytes, compressed-tensors and transformers themselves."""

import json
import sys

import numpy as np
import pytest
from lazy_imports import LazyImport
from packed_models import save_model, under

from qtui_core.errors import QtuiError
from qtui_core.models import open_model
from qtui_core.packed import logical_weights, open_weight

torch = LazyImport("torch")

NAME = "model.layers.0.mlp.up_proj"
#: Rounding to bfloat16, as some libraries store what they decode: half of 2^-8.
BF16 = 2.0**-9


def decode(folder, name=f"{NAME}.weight"):
    """The weight, and its values; of single rows too."""
    source = open_model(folder)
    weight = logical_weights(source)[name]
    reader = open_weight(source, weight)
    whole = reader.rows(0, reader.shape[0])
    for start, stop in ((0, 1), (3, 8), (reader.shape[0] - 1, reader.shape[0])):
        assert (reader.rows(start, stop) == whole[start:stop]).all()
    return weight, whole


def refused(words, folder):
    source = open_model(folder)
    weights = [w for w in logical_weights(source).values() if NAME in w.name]
    with pytest.raises(QtuiError, match=words):
        open_weight(source, weights[0]).rows(0, 2)


def save_torch(folder, tensors, settings):
    """A checkpoint with tensors of torch beneath NAME."""
    from safetensors.torch import save_file

    save_model(folder, {}, settings)
    state = {name: tensor.contiguous() for name, tensor in under(NAME, tensors).items()}
    save_file(state, folder / "model.safetensors")
    return folder


def random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def positive(*shape, seed):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(96, 128), (33, 80)])
def test_bitsandbytes_4_bits(tmp_path, kind, nested, shape):
    bnb = pytest.importorskip("bitsandbytes")
    out, inputs = shape
    layer = bnb.nn.Linear4bit(
        inputs, out, bias=False, compress_statistics=nested, quant_type=kind,
        compute_dtype=torch.float32,
    )  # fmt: skip
    x = random(out, inputs, seed=1) * 0.02
    layer.load_state_dict({"weight": x})
    layer.to("cpu")
    if layer.weight.quant_state is None:
        layer.weight = layer.weight._quantize("cpu")
    state = layer.state_dict()
    assert f"weight.quant_state.bitsandbytes__{kind}" in state
    folder = save_torch(tmp_path, state, {"quant_method": "bitsandbytes", "load_in_4bit": True})
    weight, values = decode(folder)
    assert weight.shape == shape
    assert weight.scheme == f"{kind}:block64" + (":dq" if nested else "")
    flat = layer.weight.quant_state
    flat.shape = torch.Size((out * inputs,))
    expected = bnb.functional.dequantize_4bit(layer.weight.data, flat).reshape(shape).numpy()
    assert (values == expected).all()
    # The counted bytes are codes and scales: 4 bits, and 8 or 32 for each 64, and constants.
    blocks = -(-out * inputs // 64)
    least = out * inputs / 2 + blocks * (1 if nested else 4)
    assert least <= weight.nbytes <= least + 4 * -(-blocks // 256) + 2000


def test_a_quant_state_that_says_its_scales_are_not_nested(tmp_path):
    pytest.importorskip("bitsandbytes")
    state = {"quant_type": "nf4", "blocksize": 64, "shape": [8, 64], "nested_blocksize": None}
    raw = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors = {
        "weight": np.full((256, 1), 0x70, np.uint8),
        "weight.absmax": np.full(8, 0.5, np.float32),
        "weight.quant_state.bitsandbytes__nf4": raw,
    }
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    _, values = decode(save_model(tmp_path, under(NAME, tensors), settings))
    # Code 7 is 0 and comes first, in the high nibble; code 0 is -1.
    assert (values == np.tile(np.float32([0.0, -0.5]), (8, 32))).all()


def test_bitsandbytes_int8(tmp_path):
    bnb = pytest.importorskip("bitsandbytes")
    x = (random(48, 64, seed=2) * 0.05).to(torch.float16)
    codes, scales, _ = bnb.functional.int8_vectorwise_quant(x)
    state = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    weight, values = decode(save_torch(tmp_path / "a", state, {"load_in_8bit": True}))
    exact = codes.double() * scales.double()[:, None] / 127
    assert np.allclose(values, exact.numpy(), rtol=1e-6, atol=0)
    assert weight.scheme == "int8:row"
    state["weight_format"] += 2
    refused("layout of some GPU", save_torch(tmp_path / "b", state, {"load_in_8bit": True}))


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
COMPRESSED = {
    "int4 group": (INT4 | {"symmetric": True}, "pack-quantized", "int4:group32:full"),
    "int4 group asym": (INT4 | {"symmetric": False}, "pack-quantized", "int4:group32:asym"),
    "int3 group": (INT4 | {"symmetric": True, "num_bits": 3}, "pack-quantized",
                   "int3:group32:full"),
    "int4 channel": ({"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": True},
                     "pack-quantized", "int4:row:full"),
    "int8 channel": ({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
                     "int-quantized", "int8:row:full"),
    "float channel": ({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
                      "float-quantized", "e4m3:row"),
    "float tensor": ({"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True},
                     "float-quantized", "e4m3:tensor"),
    "nvfp4": ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
               "symmetric": True}, "nvfp4-pack-quantized", "nvfp4"),
    "mxfp4": ({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
               "symmetric": True}, "mxfp4-pack-quantized", "mxfp4"),
}  # fmt: skip


def scales_of(x, args):
    """(scales, zero points, scale of the tensor), computed in torch."""
    rows, columns = x.shape
    size = {"group": args.get("group_size"), "tensor_group": 16}.get(args["strategy"], columns)
    grouped = x.reshape(rows, columns // size, size)
    if args["strategy"] == "tensor":
        grouped = x.reshape(1, 1, -1)
    if args["type"] == "float":
        top = 448.0 if args["num_bits"] == 8 else 6.0
        scale = grouped.abs().amax(-1) / top
        if args["strategy"] == "tensor_group":
            whole = (2688.0 / x.abs().max()).reshape(1)
            return (scale * whole).to(torch.float8_e4m3fn).float(), None, whole
        if args["num_bits"] == 4:
            scale = 2.0 ** torch.ceil(torch.log2(scale))
        return (scale.reshape(1) if args["strategy"] == "tensor" else scale), None, None
    steps = 2 ** args["num_bits"] - 1
    if args["symmetric"]:
        return grouped.abs().amax(-1) / (steps / 2), None, None
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scale = (high - low) / steps
    zero = torch.round(-low / scale) - 2 ** (args["num_bits"] - 1)
    return scale, zero.to(torch.int8), None


def compressed(x, args, form):
    """(the tensors in which compressed-tensors stores x, what it reads from them)."""
    quantization = pytest.importorskip("compressed_tensors.quantization")
    from compressed_tensors.compressors.base import BaseCompressor

    weights = quantization.QuantizationArgs(**args)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    names = ("weight_scale", "weight_zero_point", "weight_global_scale")
    found = zip(names, scales_of(x, args), strict=True)
    state = {"weight": x, **{name: part for name, part in found if part is not None}}
    compressor = BaseCompressor.get_value_from_registry(form)
    packed = compressor.compress(state, scheme)
    return packed, compressor.decompress(dict(packed), scheme)["weight"].float().numpy()


def settings_of(*groups, **more):
    """The settings of a checkpoint with groups of (target, arguments)."""
    named = {
        f"group_{n}": {"targets": [target], "weights": args}
        for n, (target, args) in enumerate(groups)
    }
    return {"quant_method": "compressed-tensors", "config_groups": named, **more}


@pytest.mark.parametrize("case", COMPRESSED)
def test_compressed_tensors(tmp_path, case):
    args, form, nearest = COMPRESSED[case]
    x = random(48, 128, seed=3) * 0.02
    packed, expected = compressed(x, args, form)
    settings = settings_of(("Linear", args), format=form)
    weight, values = decode(save_torch(tmp_path, packed, settings))
    assert weight.shape == (48, 128)
    assert weight.scheme == nearest
    # The library rounds some of these to bfloat16, NVFP4 twice.
    assert np.allclose(values, expected, rtol=3 * BF16, atol=0)
    # It is the weight that was stored, to within half a step (FP4 and FP8: of their spacing).
    error = np.abs(values - x.numpy()).mean() / x.abs().mean().item()
    assert error < {2: 1, 3: 0.25, 4: 0.15, 8: 0.03}[args["num_bits"]]


def test_settings_are_those_of_the_group_that_names_the_module(tmp_path):
    args = INT4 | {"symmetric": True, "num_bits": 3}
    packed, expected = compressed(random(16, 64, seed=4), args, "pack-quantized")
    settings = settings_of(("Linear", INT4 | {"symmetric": True}), ("re:.*up_proj$", args))
    weight, values = decode(save_torch(tmp_path, packed, settings))
    assert weight.scheme == "int3:group32:full"
    assert (values == expected).all()


PACKED = {
    "weight_packed": np.zeros((8, 8), np.int32),
    "weight_scale": np.ones((8, 2), np.float32),
    "weight_shape": np.array([8, 64]),
}


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("config_groups", {"quant_method": "compressed-tensors"}),
        (
            r"compressed-tensors does not decode this: .*\.$",
            settings_of(("Linear", INT4 | {"symmetric": True, "strategy": "nonsense"})),
        ),
    ],
)
def test_settings_that_compressed_tensors_refuses(tmp_path, words, settings):
    refused(words, save_model(tmp_path, under(NAME, PACKED), settings))


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    folder = save_model(tmp_path, under(NAME, PACKED), settings_of(("Linear", INT4)))
    monkeypatch.setitem(sys.modules, "compressed_tensors.compressors.base", None)
    refused(r"pip install 'qtui\[checkpoints\]'", folder)


def test_compressed_tensors_in_order_of_activation_are_refused(tmp_path):
    """The library no longer supports activation order and ignores weight_g_idx, so values would be
    wrong."""
    index = (np.arange(64) // 32).astype(np.int32)
    settings = settings_of(("Linear", INT4 | {"symmetric": True}))
    tensors = PACKED | {"weight_g_idx": index}
    _, values = decode(save_model(tmp_path / "a", under(NAME, tensors), settings))
    assert (values == -8).all()
    tensors["weight_g_idx"] = index[::-1]
    refused("order of activation", save_model(tmp_path / "b", under(NAME, tensors), settings))


@pytest.mark.parametrize("shape", [(256, 384), (200, 300), (3, 130, 140)])
def test_fp8_tiles_of_deepseek_and_of_fused_experts(tmp_path, shape):
    grid = [*shape[:-2], *(-(-n // 128) for n in shape[-2:])]
    scales = positive(*grid, seed=6) * 0.01 + 0.001
    spread = scales.repeat_interleave(128, -2)[..., : shape[-2], :]
    spread = spread.repeat_interleave(128, -1)[..., : shape[-1]]
    codes = (random(*shape, seed=5) * 0.1 / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    state = {"weight": codes, "weight_scale_inv": scales}
    weight, values = decode(save_torch(tmp_path, state, settings))
    assert (values == (codes.float() * spread).reshape(-1, shape[-1]).numpy()).all()
    assert weight.scheme == "e4m3:tile128x128"
    assert weight.nbytes == codes.numel() + 4 * scales.numel()


@pytest.mark.parametrize("shape", [(), (1,), (24,), (24, 1), (5,)])
def test_fp8_with_one_scale_or_one_a_row(tmp_path, shape):
    codes, scales = random(24, 32, seed=7).to(torch.float8_e4m3fn), positive(*shape, seed=8) + 0.5
    state = {"weight": codes, "weight_scale": scales}
    folder = save_torch(tmp_path, state, {"quant_method": "fbgemm_fp8"})
    if shape == (5,):
        refused("which is not one scale", folder)
        return
    _, values = decode(folder)
    assert (values == (codes.float() * scales.reshape(-1, 1)).numpy()).all()


def test_mxfp4_of_gpt_oss_as_transformers_reads_it(tmp_path):
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    rng = np.random.default_rng(11)
    blocks = rng.integers(0, 256, (3, 40, 2, 16)).astype(np.uint8)
    scales = rng.integers(118, 130, (3, 40, 2)).astype(np.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    weight, values = decode(save_model(tmp_path, tensors, {"quant_method": "mxfp4"}), name)
    theirs = mxfp4.convert_moe_packed_tensors(
        torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
    )
    assert weight.shape == tuple(theirs.shape) == (3, 64, 40)
    assert (values == theirs.reshape(192, 40).numpy()).all()


def test_nvfp4_of_modelopt(tmp_path):
    rng = np.random.default_rng(12)
    levels = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    codes = rng.integers(0, 16, (24, 64))
    values = np.array([*levels, *(-v for v in levels)])[codes]
    scales = (torch.rand(24, 4) * 3 + 0.1).to(torch.float8_e4m3fn)
    state = {
        "weight": torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)),
        "weight_scale": scales,
        "weight_scale_2": torch.tensor(0.125),
    }
    expected = values * scales.double().numpy().repeat(16, axis=1) * 0.125
    _, decoded = decode(save_torch(tmp_path, state, {"quant_method": "modelopt"}))
    assert (decoded == expected).all()


def test_a_method_that_is_not_decoded_is_listed_with_the_reason(tmp_path):
    state = {
        f"{NAME}.weight": np.zeros((8, 16), np.uint8),
        f"{NAME}.weight_scale": np.ones(1, np.float32),
        "model.norm.weight": np.ones(16, np.float32),
    }
    folder = save_model(tmp_path, state, {"quant_method": "bitnet"})
    weights = logical_weights(open_model(folder))
    assert "bitnet" in weights[f"{NAME}.weight"].fault
    assert weights["model.norm.weight"].fault is None
    refused("bitnet", folder)
