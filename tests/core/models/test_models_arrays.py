"""Stored bytes to float32, compared with numpy, torch and ml_dtypes over every code."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from every import over
from safetensors.numpy import save_file

from qtui_core.errors import ModelError
from qtui_core.models import open_model
from qtui_core.models.files.arrays import RowReader, read_float32, to_float32
from qtui_core.models.source import LONGEST_ROW
from qtui_core.models.tensors import DTYPE_BITS, READABLE_DTYPES
from qtui_core.quant import Scheme, quantize
from qtui_core.quant.layout import matrix_shape

CODES8 = np.arange(256, dtype=np.uint8)
CODES16 = np.arange(1 << 16, dtype=np.uint16)

EVERY_CODE = {
    "BF16": (CODES16, CODES16.view(ml_dtypes.bfloat16)),
    "F16": (CODES16, CODES16.view(np.float16)),
    "F8_E4M3": (CODES8, CODES8.view(ml_dtypes.float8_e4m3fn)),
    "F8_E5M2": (CODES8, CODES8.view(ml_dtypes.float8_e5m2)),
    "F8_E4M3FNUZ": (CODES8, CODES8.view(ml_dtypes.float8_e4m3fnuz)),
    "F8_E5M2FNUZ": (CODES8, CODES8.view(ml_dtypes.float8_e5m2fnuz)),
    "F8_E8M0": (CODES8, CODES8.view(ml_dtypes.float8_e8m0fnu)),
    "I8": (CODES8, CODES8.view(np.int8)),
    "U8": (CODES8, CODES8),
    "I16": (CODES16, CODES16.view(np.int16)),
    "U16": (CODES16, CODES16),
    "BOOL": (CODES8, CODES8 != 0),
}


@over("dtype", EVERY_CODE)
def test_every_code(dtype):
    codes, values = EVERY_CODE[dtype]
    found = to_float32(dtype, memoryview(codes.tobytes()))
    expected = values.astype(np.float32)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    numbers = ~np.isnan(expected)
    assert (np.signbit(found) == np.signbit(expected))[numbers].all()


def test_bfloat16_and_float32_keep_every_bit():
    found = to_float32("BF16", memoryview(CODES16.tobytes()))
    np.testing.assert_array_equal(found.view(np.uint32), CODES16.astype(np.uint32) << 16)
    words = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    found = to_float32("F32", memoryview(words.tobytes()))
    np.testing.assert_array_equal(found.view(np.uint32), words)


@pytest.mark.parametrize("dtype", ["F64", "I32", "I64", "U32", "U64"])
def test_wide_numbers_round_to_float32(dtype):
    kind = {"F64": "f8", "I32": "i4", "I64": "i8", "U32": "u4", "U64": "u8"}[dtype]
    random = np.random.default_rng(3)
    raw = random.integers(0, 256, 8 * 4096, dtype=np.uint8).tobytes()
    if dtype == "F64":
        special = [1e300, -1e300, np.inf, -np.inf, np.nan, -0.0, 1e-320, 0.1]
        raw = np.array(special, "f8").tobytes() + raw
    found = to_float32(dtype, memoryview(raw))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.frombuffer(raw, kind).astype(np.float32))
    if dtype == "F64":
        assert list(found[:4]) == [np.inf, -np.inf, np.inf, -np.inf]
        assert np.isnan(found[4])
        assert found[7] == np.float32(0.1)


def test_readable_dtypes_have_a_decoder_and_others_have_none():
    for dtype in DTYPE_BITS:
        if dtype in READABLE_DTYPES:
            assert to_float32(dtype, memoryview(bytes(DTYPE_BITS[dtype] // 8))).shape == (1,)
        else:
            with pytest.raises(ModelError, match="does not read"):
                to_float32(dtype, memoryview(b""))


@pytest.fixture
def model(tmp_path: Path):
    random = np.random.default_rng(5)
    arrays = {
        "matrix": random.normal(size=(20, 7)).astype(np.float16),
        "cube": random.normal(size=(4, 3, 5)).astype(np.float32),
        "vector": random.normal(size=9).astype(np.float64),
        "scalar": np.array(2.5, np.float32),
        "none": np.zeros((0, 4), np.float32),
        "narrow": np.zeros((4, 0), np.float32),
        "bf16": random.normal(size=(8, 6)).astype(ml_dtypes.bfloat16).view(np.uint16),
    }
    save_file(arrays, tmp_path / "m.safetensors")
    with open_model(tmp_path / "m.safetensors") as source:
        yield source, arrays


def test_rows(model):
    source, arrays = model
    for name in ("matrix", "cube", "vector"):
        columns = {"matrix": 7, "cube": 5, "vector": 1}[name]
        whole = arrays[name].astype(np.float32).reshape(-1, columns)
        np.testing.assert_array_equal(read_float32(source, name), whole)
        np.testing.assert_array_equal(read_float32(source, name, 1, 3), whole[1:3])
        reader = RowReader(source, name)
        assert reader.shape == whole.shape
        assert reader.dtype == source.tensors[name].dtype
        parts = [reader.rows(i, min(i + 3, len(whole))) for i in range(0, len(whole), 3)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert read_float32(source, "scalar").tolist() == [[2.5]]
    assert read_float32(source, "none").shape == (0, 4)
    assert read_float32(source, "narrow").shape == (4, 0)
    assert read_float32(source, "matrix", 2, 2).shape == (0, 7)


@pytest.mark.parametrize("shape", [(6, 70), (4, 3, 70), (4, 3, 7, 2), (4, 3, 2, 2, 2), (9,)])
def test_rows_are_the_rows_that_scales_are_for(tmp_path, shape):
    """Reading and quantizing treat a tensor as the same matrix."""
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    save_file({"x": x}, tmp_path / "x.safetensors")
    with open_model(tmp_path / "x.safetensors") as source:
        reader = RowReader(source, "x")
        if x.ndim > 1:
            assert reader.shape == matrix_shape(shape)
            for text in ("int8:row", "int4:group7:asym", "int8:column", "nf4:block33:dq"):
                read, held = (quantize(t, Scheme.parse(text)) for t in (reader, x))
                np.testing.assert_array_equal(read.scales, held.scales)
                np.testing.assert_array_equal(read.codes.reshape(-1), held.codes.reshape(-1))
                np.testing.assert_array_equal(read.dequantize().reshape(shape), held.dequantize())
        assert (
            b"".join(source.read_rows("x", i, i + 1) for i in range(reader.shape[0])) == x.tobytes()
        )


def test_results_are_new_arrays_that_outlive_the_file(model):
    source, arrays = model
    for name in ("matrix", "cube"):
        rows = read_float32(source, name)
        assert rows.flags.owndata or rows.base is not None
        assert rows.flags.writeable
        rows[:] = 0
        assert read_float32(source, name).any()
    kept = read_float32(source, "cube")
    source.close()
    np.testing.assert_array_equal(kept.reshape(4, 3, 5), arrays["cube"])


@over("dtype", sorted(READABLE_DTYPES))
def test_memory_is_the_result_and_little_more(tmp_path, write, dtype):
    elements = 1 << 21
    nbytes = elements * DTYPE_BITS[dtype] // 8
    path = write(
        {"a": {"dtype": dtype, "shape": [2048, 1024], "data_offsets": [0, nbytes]}}, bytes(nbytes)
    )
    with open_model(path) as source:
        to_float32(dtype, memoryview(b""))  # its table is made once
        tracemalloc.start()
        try:
            read_float32(source, "a")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 1.6 * 4 * elements


def test_a_row_that_would_fill_the_memory_is_refused_and_its_header_is_read(tmp_path):
    """The file has no bytes on the disk: a file on a hub may be as empty, and as large."""
    size = LONGEST_ROW + 1
    entry = {"dtype": "F32", "shape": [1, size], "data_offsets": [0, 4 * size]}
    header = json.dumps({"wide": entry}).encode()
    path = tmp_path / "wide.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + 4 * size)
    with open_model(path) as source:
        assert source.tensors["wide"].elements == size
        with pytest.raises(ModelError, match=r"'wide' has rows of 16,777,217 elements"):
            RowReader(source, "wide").rows(0, 1)
