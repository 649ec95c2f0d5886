"""Stored rows as float32 numpy arrays."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from qtui_core.errors import ModelError, UsageError
from qtui_core.extras import importing
from qtui_core.formats import E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0, decode
from qtui_core.models.files.gguf import BY_NAME, ggml_type
from qtui_core.models.quoting import quoted
from qtui_core.models.source import ModelSource
from qtui_core.models.tensors import row_elements, rows_of

Float32 = NDArray[np.float32]

_FLOAT8 = {
    "F8_E4M3": E4M3, "F8_E5M2": E5M2, "F8_E4M3FNUZ": E4M3FNUZ, "F8_E5M2FNUZ": E5M2FNUZ,
    "F8_E8M0": E8M0,
}  # fmt: skip

#: Elements converted at a time where numpy needs scratch memory.
_PIECE = 1 << 18

#: Numbers as numpy has them.
NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
}  # fmt: skip


def read_float32(
    source: ModelSource, name: str, start: int = 0, stop: int | None = None
) -> Float32:
    """Rows [start, stop) of a tensor as a new float32 array [rows, row_elements].

    Rows are those of `ModelSource.read_rows`: a vector of n elements is [n, 1], a scalar
    [1, 1]. NaN and infinities stay what they are. F64 and integers round to the nearest
    float32 (F64 beyond its range to infinity); BOOL is 0 or 1; codes of quantized
    safetensors checkpoints are the stored integers, not the weights they stand for;
    GGUF blocks are decoded, since scales are part of them.

    Memory: the array, and what holds the stored bytes: the mapped file, or what the hub sent.

    Raises:
        ModelError: no such tensor, a dtype that is not read, or the bytes cannot be had.
        UsageError: GGUF blocks without the gguf library.
        ValueError: not 0 <= start <= stop <= rows.
    """
    info = source.tensor(name)
    stop = rows_of(info) if stop is None else stop
    raw = source.read_rows(name, start, stop)
    shape = (stop - start, row_elements(info))
    if not raw.nbytes:
        return np.empty(shape, np.float32)
    return to_float32(info.dtype, raw).reshape(shape)


def to_float32(dtype: str, raw: memoryview) -> Float32:
    """Stored bytes of a dtype as a new flat float32 array. Raises ModelError if it is not read."""
    if dtype in NUMPY:
        # Overflow to infinity is the documented result, and NaN is data, not a mistake.
        with np.errstate(over="ignore", invalid="ignore"):
            return np.frombuffer(raw, NUMPY[dtype]).astype(np.float32)
    if dtype == "BF16":  # the upper half of a float32 word
        words = np.frombuffer(raw, "<u2").astype(np.uint32)
        words <<= 16
        return words.view(np.float32)
    if dtype in _FLOAT8:
        return _from_float8(dtype, raw)
    if ggml_type(dtype) is not None:
        return _from_ggml(dtype, raw)
    if dtype == "BOOL":
        return (np.frombuffer(raw, np.uint8) != 0).astype(np.float32)
    raise ModelError(f"{quoted(dtype)} is a dtype qtui lists but does not read.")


def _from_ggml(dtype: str, raw: memoryview) -> Float32:
    """Whole blocks of a GGUF tensor, decoded by the gguf library, which owns these formats."""
    with importing(f"Reading {dtype} blocks", "gguf"):
        from gguf import GGMLQuantizationType, quants
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, BY_NAME[dtype].nbytes)
    try:
        # Scales that are NaN or infinite are data: their blocks become that.
        with np.errstate(all="ignore"):
            values = quants.dequantize(blocks, GGMLQuantizationType[dtype])
    except (KeyError, NotImplementedError) as error:
        raise UsageError(
            f"The installed gguf library does not decode {dtype}: pip install -U gguf."
        ) from error
    return np.ascontiguousarray(values, np.float32).reshape(-1)


@cache
def _float8_table(dtype: str) -> Float32:
    """The 256 values of an 8-bit format; float32 holds each exactly."""
    format_ = _FLOAT8[dtype]
    return np.array([decode(format_, code).to_float() for code in range(256)], np.float32)


def _from_float8(dtype: str, raw: memoryview) -> Float32:
    table, codes = _float8_table(dtype), np.frombuffer(raw, np.uint8)
    values = np.empty(codes.size, np.float32)
    # In pieces, because numpy widens the codes to 8 bytes each to index with them.
    for start in range(0, codes.size, _PIECE):
        part = slice(start, start + _PIECE)
        np.take(table, codes[part], out=values[part], mode="clip")
    return values


class RowReader:
    """Rows of one tensor as float32, read when asked for: what measurements accept in place
    of an array that is already in memory.

    Attributes:
        shape: (rows, elements of a row), as `read_float32` shapes them.
        dtype: the stored dtype, a safetensors tag.
    """

    def __init__(self, source: ModelSource, name: str) -> None:
        info = source.tensor(name)
        self.source = source
        self.name = name
        self.shape = (rows_of(info), row_elements(info))
        self.dtype = info.dtype

    def rows(self, start: int, stop: int) -> Float32:
        """Rows [start, stop), a new array [stop - start, shape[1]]. Raises as `read_float32`."""
        return read_float32(self.source, self.name, start, stop)
