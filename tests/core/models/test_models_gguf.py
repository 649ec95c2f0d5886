"""GGUF files from gguf's own writer, and files that contradict themselves."""

import struct

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from gguf import GGMLQuantizationType, quants  # noqa: E402
from gguf.constants import GGML_QUANT_SIZES  # noqa: E402
from gguf_models import finish, write_gguf  # noqa: E402

from qtui_core.errors import ModelError, UsageError  # noqa: E402
from qtui_core.models import Role, open_model  # noqa: E402
from qtui_core.models.files.arrays import read_float32  # noqa: E402
from qtui_core.models.files.gguf import GGML_TYPES  # noqa: E402
from qtui_core.models.tensors import DESCRIBED_IN  # noqa: E402

CONFIG = {
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256,
}  # fmt: skip
X = np.random.default_rng(0).standard_normal((12, 256)).astype(np.float32)


def test_the_table_of_types_is_that_of_the_library():
    theirs = {int(kind): (kind.name, *size) for kind, size in GGML_QUANT_SIZES.items()}
    assert {n: (t.name, t.block, t.nbytes) for n, t in GGML_TYPES.items()} == theirs


@pytest.mark.parametrize(
    "kind",
    ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"],
)
def test_rows_are_those_the_library_decodes(tmp_path, kind):
    path = write_gguf(tmp_path / "m.gguf", {"model.embed_tokens.weight": X}, CONFIG, kind)
    source = open_model(path)
    info = source.tensors["token_embd.weight"]
    assert (info.dtype, info.shape, info.parameters) == (kind, (12, 256), 12 * 256)
    stored = GGMLQuantizationType[kind]
    theirs = quants.dequantize(quants.quantize(X, stored), stored).reshape(12, 256)
    assert (read_float32(source, "token_embd.weight", 3, 9) == theirs[3:9]).all()
    assert (info.role is Role.VALUES) == (kind in ("F32", "F16", "BF16"))


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ2_S"])
def test_types_that_the_library_only_decodes(tmp_path, kind):
    stored = GGMLQuantizationType[kind]
    _, size = GGML_QUANT_SIZES[stored]
    raw = np.random.default_rng(1).integers(0, 256, (8, 2 * size)).astype(np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=stored)
    finish(writer)
    with np.errstate(all="ignore"):
        theirs = quants.dequantize(raw, stored)
    mine = read_float32(open_model(tmp_path / "m.gguf"), "blk.0.ffn_up.weight", 2, 5)
    np.testing.assert_array_equal(mine, theirs[2:5])


def test_what_the_metadata_says(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"model.norm.weight": X[0]}, CONFIG)
    source = open_model(path)
    assert source.architecture == "llama"
    told = {"model_type": "llama", DESCRIBED_IN: "GGUF metadata"}
    assert source.config == told | CONFIG  # without token_embd nothing is known of the vocabulary
    assert source.metadata["general.architecture"] == "llama"
    assert source.quantization is None
    assert source.origin == "file"


def test_long_lists_are_passed_over(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_token_list([f"token {i}" for i in range(5000)])
    writer.add_token_scores([0.5] * 5000)
    writer.add_array("short", [1, 2, 3])
    writer.add_tensor("output_norm.weight", X[0])
    finish(writer)
    source = open_model(tmp_path / "m.gguf")
    assert (read_float32(source, "output_norm.weight").ravel() == X[0]).all()


def test_files_of_a_split_model_are_one_model(tmp_path):
    a, b = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    write_gguf(a, {"model.embed_tokens.weight": X}, CONFIG)
    with pytest.raises(ModelError, match=r"missing beside it: 'm-00002-of-00002\.gguf'"):
        open_model(a)
    write_gguf(b, {"lm_head.weight": X}, CONFIG)
    assert list(open_model(b).tensors) == ["output.weight", "token_embd.weight"]
    write_gguf(b, {"model.embed_tokens.weight": X}, CONFIG)
    with pytest.raises(ModelError, match="is in two files"):
        open_model(a)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    import sys

    path = write_gguf(tmp_path / "m.gguf", {"model.embed_tokens.weight": X}, CONFIG)
    source = open_model(path)  # headers need no library
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match=r"pip install 'qtui\[checkpoints\]'"):
        read_float32(source, "token_embd.weight", 0, 1)


def whole_file(tmp_path):
    weights = {"model.embed_tokens.weight": X, "model.norm.weight": X[0]}
    return bytearray(write_gguf(tmp_path / "whole.gguf", weights, CONFIG).read_bytes())


def refused(tmp_path, raw, match):
    (tmp_path / "bad.gguf").write_bytes(raw)
    with pytest.raises(ModelError, match=match) as caught:
        open_model(tmp_path / "bad.gguf")
    assert str(caught.value).endswith(".")


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    raw = whole_file(tmp_path)
    for length in [0, 1, 3, 4, 7, 8, 20, 30, *range(40, len(raw) - 64, 97)]:
        refused(tmp_path, raw[:length], "cut off|ends before it is complete|not a GGUF")


@pytest.mark.parametrize(
    ("at", "new", "match"),
    [
        (0, b"GGML", "not a GGUF file"),
        (4, struct.pack("<I", 1), "version 1"),
        (4, struct.pack("<I", 9), "version 9"),
        (4, struct.pack(">I", 3), "little-endian"),
        (8, struct.pack("<Q", 1 << 60), "claims"),
        (16, struct.pack("<Q", 1 << 40), "claims"),
        (24, struct.pack("<Q", 1 << 50), "a name of"),
    ],
)
def test_numbers_that_cannot_be_are_refused(tmp_path, at, new, match):
    raw = whole_file(tmp_path)
    raw[at : at + len(new)] = new
    refused(tmp_path, raw, match)


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("dimensions", struct.pack("<I", 5), "5 dimensions"),
        ("columns", struct.pack("<Q", 255), "no whole number of blocks"),
        ("rows", struct.pack("<Q", 1 << 62), "2\\^63"),
        ("rows", struct.pack("<Q", 10_000), "was cut off"),
        ("type", struct.pack("<I", 99), "type 99"),
        ("offset", struct.pack("<Q", 8), "not aligned"),
        ("offset", struct.pack("<Q", 1 << 40), "was cut off"),
        ("offset of the second", bytes(8), "overlaps"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(tmp_path, field, value, match):
    raw = whole_file(tmp_path)
    name = b"output_norm.weight" if "second" in field else b"token_embd.weight"
    start = raw.index(name) + len(name)
    places = {"dimensions": 0, "columns": 4, "rows": 12, "type": 20, "offset": 24}
    places["offset of the second"] = 16
    at = start + places[field]
    raw[at : at + len(value)] = value
    refused(tmp_path, raw, match)
