"""GPTQ and AWQ, compared with packers written from their published layouts."""

import numpy as np
import pytest
from every import over
from packed_models import awq_layer, gptq_layer, save_model, under

from qtui_core.errors import ModelError
from qtui_core.models import open_model
from qtui_core.packed import logical_weights, open_weight

NAME = "model.layers.0.self_attn.q_proj"


def decode(folder, name=f"{NAME}.weight"):
    source = open_model(folder)
    weight = logical_weights(source)[name]
    assert weight.fault is None, weight.fault
    reader = open_weight(source, weight)
    rows = reader.shape[0]
    whole = reader.rows(0, rows)
    # Any range of rows has the same values as those rows of the whole.
    for start, stop in ((0, 1), (rows // 3, rows // 3 + 5), (rows - 3, rows), (2, 2)):
        assert (reader.rows(start, stop) == whole[start:stop]).all()
    assert whole.dtype == np.float32
    return weight, whole


@over("bits", [2, 3, 4, 8])
@over("v2", [False, True])
@over("act_order", [False, True])
def test_gptq(tmp_path, bits, v2, act_order):
    rng = np.random.default_rng(bits)
    expected, tensors = gptq_layer(rng, 96, 256, bits, 64, v2=v2, act_order=act_order)
    settings = {
        "quant_method": "gptq", "bits": bits, "group_size": 64, "desc_act": act_order,
        "sym": False, "checkpoint_format": "gptq_v2" if v2 else "gptq",
    }  # fmt: skip
    weight, values = decode(save_model(tmp_path, under(NAME, tensors), settings))
    # float16 scales times differences of small integers are exact in float32.
    assert (values == expected).all()
    assert weight.shape == (96, 256)
    assert weight.scheme == f"int{bits}:group64:asym"
    stored = sum(t.nbytes for t in tensors.values())
    assert weight.nbytes == stored
    assert weight.bits_per_parameter == 8 * stored / (96 * 256)


@over(
    ("group", "settings", "more", "scheme"),
    [
        (32, {}, {"with_index": False}, "int4:group32:full"),  # with the bits from shapes
        (128, {"bits": 4, "group_size": -1, "sym": True}, {"symmetric": True}, "int4:row:full"),
    ],
)
def test_gptq_with_few_settings(tmp_path, group, settings, more, scheme):
    expected, tensors = gptq_layer(np.random.default_rng(1), 64, 128, 4, group, **more)
    settings = {"quant_method": "gptq", **settings}
    weight, values = decode(save_model(tmp_path, under(NAME, tensors), settings))
    assert (values == expected).all()
    assert (weight.scheme, weight.method[:11]) == (scheme, "GPTQ 4 bits")


def test_awq(tmp_path):
    expected, tensors = awq_layer(np.random.default_rng(4), 96, 128, 32)
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    weight, values = decode(save_model(tmp_path, under(NAME, tensors), settings))
    assert (values == expected).all()
    assert weight.shape == (96, 128)
    assert weight.scheme == "int4:group32:asym"


def test_awq_as_compressed_tensors_converts_it(tmp_path):
    torch = pytest.importorskip("torch")
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert.converters.autoawq")
    _, tensors = awq_layer(np.random.default_rng(5), 64, 128, 32)
    converter = converters.AutoAWQConverter
    codes, zeros = (torch.from_numpy(tensors[n]) for n in ("qweight", "qzeros"))
    codes, zeros = converter.reverse_awq_order(*converter.unpack_awq(codes, zeros, 4), 4)
    codes, zeros = (codes & 15).numpy().astype(np.float64), (zeros & 15).numpy()
    scales = tensors["scales"].astype(np.float64)
    theirs = ((codes - zeros.repeat(32, axis=0)) * scales.repeat(32, axis=0)).T
    _, values = decode(save_model(tmp_path, under(NAME, tensors), {"quant_method": "awq"}))
    assert (values == theirs).all()


def test_awq_without_zero_points_counts_from_the_middle(tmp_path):
    _, tensors = awq_layer(np.random.default_rng(6), 32, 64, 32)
    _, with_zeros = decode(save_model(tmp_path / "a", under(NAME, tensors), None))
    zeros = tensors.pop("qzeros")
    settings = {"quant_method": "awq", "zero_point": False}
    weight, values = decode(save_model(tmp_path / "b", under(NAME, tensors), settings))
    scales = tensors["scales"].astype(np.float32).repeat(32, axis=0).T
    shift = (values - with_zeros) / scales
    assert np.allclose(shift, np.rint(shift), atol=1e-3)
    assert zeros.any()
    assert weight.scheme == "int4:group32:full"


FAULTS = {
    "no scales": lambda t, s: t.pop("scales"),
    "no zeros": lambda t, s: t.pop("qzeros"),
    "cut codes": lambda t, s: t.update(qweight=t["qweight"][:-2]),
    "zeros of another shape": lambda t, s: t.update(qzeros=t["qzeros"][:, :-1]),
    "scales of another shape": lambda t, s: t.update(scales=t["scales"][:, :-4]),
    "groups beyond the last": lambda t, s: t.update(g_idx=t["g_idx"] + 9),
    "short index": lambda t, s: t.update(g_idx=t["g_idx"][:-7]),
    "five bits": lambda t, s: s.update(bits=5),
    "bits of text": lambda t, s: s.update(bits="four"),
}


@over("fault", FAULTS)
def test_contradicting_tensors_are_refused_with_the_reason(tmp_path, fault):
    _, tensors = gptq_layer(np.random.default_rng(7), 64, 128, 4, 32)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    FAULTS[fault](tensors, settings)
    source = open_model(save_model(tmp_path, under(NAME, tensors), settings))
    weight = next(w for w in logical_weights(source).values() if "q_proj" in w.name)
    with pytest.raises(ModelError) as caught:
        open_weight(source, weight).rows(0, 4)
    assert "q_proj" in str(caught.value)
    assert str(caught.value).endswith(".")


@over("settings", [{"version": "gemv"}, {"bits": 3}])
def test_awq_in_other_packings_is_refused(tmp_path, settings):
    _, tensors = awq_layer(np.random.default_rng(8), 32, 64, 32)
    settings = {"quant_method": "awq", **settings}
    source = open_model(save_model(tmp_path, under(NAME, tensors), settings))
    (weight,) = logical_weights(source).values()
    with pytest.raises(ModelError, match="AWQ"):
        open_weight(source, weight)


@over("part", ["qweight", "qzeros"])
@over("broken", ["bytes", "wide", "three dimensions"])
@over("method", ["gptq", "awq"])
def test_invalid_words_raise_an_error(tmp_path, method, part, broken):
    layer = awq_layer if method == "awq" else lambda *a: gptq_layer(*a[:3], 4, a[3])
    _, tensors = layer(np.random.default_rng(6), 64, 64, 32)
    words = tensors[part]
    tensors[part] = {
        "bytes": words.astype(np.int8),
        "wide": words.astype(np.int64),
        "three dimensions": words.reshape(2, -1, words.shape[1]),
    }[broken]
    settings = {"quant_method": method, "bits": 4, "group_size": 32}
    source = open_model(save_model(tmp_path, under(NAME, tensors), settings))
    (weight,) = logical_weights(source).values()
    with pytest.raises(ModelError, match=rf"{part}.*(matrix|shape)"):
        open_weight(source, weight).rows(0, 1)
