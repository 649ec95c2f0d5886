"""Decodes codes with separate scales: value = code · scale.

FP8 and INT8: `X_scale` has one number for the matrix, for each row, or for each tile. DeepSeek
calls it `X_scale_inv`, although it multiplies too; the size of its tiles, 128 x 128, is
`weight_block_size` in the config.
MXFP4 (transformers' `convert_moe_packed_tensors`): `X_blocks` uint8 `[experts, out, in/32, 16]`,
two E2M1 codes to a byte, the first in the low nibble; `X_scales` uint8 `[experts, out, in/32]`,
E8M0 with bias 127. The weight `X` of the module is the transpose, `[experts, in, out]`.
NVFP4 (ModelOpt): `weight` uint8 `[out, in/2]`, `weight_scale` E4M3 `[out, in/16]`,
`weight_scale_2` one float32 that multiplies them.
"""

from __future__ import annotations

import math

import numpy as np

from qtui_core.formats import E2M1, decode
from qtui_core.models.quoting import quoted
from qtui_core.packed.stored_tensors import (
    Array,
    Description,
    Float32,
    StoredTensors,
)

#: The 16 values of E2M1, by code, and the two of each byte, low nibble first.
_VALUES = np.array([decode(E2M1, code).to_float() for code in range(16)], np.float32)
_PAIRS = np.stack([_VALUES[np.arange(256) & 15], _VALUES[np.arange(256) >> 4]], axis=1)
_MX_BLOCK, _NV_BLOCK = 32, 16


def describe_scaled(parts: StoredTensors) -> Description:
    """The shape of a weight, which is that of its codes, and the granularity of its
    scales. Raises ModelError if the codes are not a matrix."""
    info = parts.tensors[parts.code]
    scale = parts.tensors[_scale_of(parts)]
    name = {"F8_E4M3": "e4m3", "F8_E5M2": "e5m2", "I8": "int8"}.get(info.dtype)
    title = {"e4m3": "FP8 E4M3", "e5m2": "FP8 E5M2", "int8": "INT8"}.get(name or "", info.dtype)
    if len(info.shape) < 2:
        raise parts.fault("scaled codes that are not a matrix")
    granularity = "tile{}x{}".format(*_tile(parts))
    if scale.elements in (1, math.prod(info.shape[:-1])):
        granularity = "tensor" if scale.elements == 1 else "row"
    return Description(info.shape, f"{title} {granularity}", name and f"{name}:{granularity}")


class ScaledDecoder:
    """Decodes any rows of a weight."""

    def __init__(self, parts: StoredTensors) -> None:
        self._parts = parts
        *leading, rows, columns = parts.shape
        name = _scale_of(parts)
        scales = parts.floats(name)
        tile = _tile(parts)
        grid = (*leading, -(-rows // tile[0]), -(-columns // tile[1]))
        # A row of scales for each strip of `height` rows of a matrix, a scale for each tile in it.
        self._height, self._strip, self._width = rows, 1, columns
        if scales.size == 1:
            self._height = self._strip = math.prod(parts.shape[:-1])
        elif scales.shape == grid and scales.shape not in ((*leading, rows), (*leading, rows, 1)):
            self._strip, self._width = tile
        elif scales.shape not in ((rows,), (*leading, rows), (*leading, rows, 1)):
            raise parts.fault(
                f"{quoted(name)} is of shape {scales.shape}, which is not one scale, one for "
                f"each of {rows:,} rows, or one for each tile of {tile[0]} x {tile[1]}"
            )
        self._scales = scales.reshape(-1, -(-columns // self._width) if columns else 1)

    def rows(self, start: int, stop: int) -> Float32:
        values = self._parts.float_rows(self._parts.code, start, stop)
        matrix, row = np.divmod(np.arange(start, stop), self._height)
        strips = -(-self._height // self._strip)
        scales = self._scales[matrix * strips + row // self._strip]
        if scales.shape[1] > 1:
            scales = np.repeat(scales, self._width, axis=1)[:, : values.shape[1]]
        values *= scales
        return values


def _scale_of(parts: StoredTensors) -> str:
    inverse = f"{parts.code}_scale_inv"
    return inverse if inverse in parts.tensors else f"{parts.code}_scale"


def _tile(parts: StoredTensors) -> tuple[int, int]:
    block = parts.settings.get("weight_block_size")
    sizes = block if isinstance(block, list) and len(block) == 2 else [0]
    fits = all(type(size) is int and 0 < size < 1 << 31 for size in sizes)
    return (sizes[0], sizes[1]) if fits else (128, 128)


def describe_mxfp4(parts: StoredTensors) -> Description:
    """The shape of a weight: `(experts, in, out)`, or `(out, in)` without experts. Raises
    ModelError if the stored shapes are others."""
    shape = parts.tensors[parts.code].shape
    if len(shape) not in (3, 4) or shape[-1] != _MX_BLOCK // 2:
        stored = f"MXFP4 blocks of shape {list(shape)}"
        raise parts.fault(f"{stored}; they come as [experts, out, in/32, 16]")
    inputs = shape[-2] * _MX_BLOCK
    if len(shape) == 3:
        return Description((shape[0], inputs), "MXFP4", "mxfp4")
    # With experts, blocks run along the rows of the weight, which no scheme does.
    return Description((shape[0], inputs, shape[1]), "MXFP4", None)


def describe_nvfp4(parts: StoredTensors) -> Description:
    """The shape `(out, in)` of a weight. Raises ModelError if the codes are no matrix."""
    rows, columns = parts.matrix()
    return Description((rows, 2 * columns), "NVFP4", "nvfp4")


class Mxfp4Decoder:
    """Decodes any rows of a weight. With experts, a row is one input of one expert."""

    def __init__(self, parts: StoredTensors) -> None:
        self._blocks = parts.integers(parts.code)
        name = f"{parts.code.removesuffix('_blocks')}_scales"
        self._scales = parts.integers(name)
        shape = self._scales.shape
        if shape != self._blocks.shape[:-1]:
            raise parts.fault(f"{quoted(name)} is of shape {shape}, not one for each block")

    def rows(self, start: int, stop: int) -> Float32:
        if self._blocks.ndim == 3:
            return _mx_values(self._blocks[start:stop], self._scales[start:stop])
        # Blocks [experts, out, in/32, 16] to one block of inputs after the other: [e · in/32, out].
        first, last = start // _MX_BLOCK, -(-stop // _MX_BLOCK)
        groups = self._blocks.shape[2]
        expert, group = np.divmod(np.arange(first, last), groups)
        values = _mx_values(
            self._blocks[expert, :, group].reshape(-1, 1, _MX_BLOCK // 2),
            self._scales[expert, :, group].reshape(-1, 1),
        ).reshape(last - first, -1, _MX_BLOCK)
        rows = values.transpose(0, 2, 1).reshape(-1, values.shape[1])
        return np.ascontiguousarray(rows[start - first * _MX_BLOCK :][: stop - start])


class Nvfp4Decoder:
    """Decodes any rows of a weight."""

    def __init__(self, parts: StoredTensors) -> None:
        self._parts = parts
        rows, columns = parts.shape
        self._codes = parts.integers(parts.code)
        self._scale_name = f"{parts.code}_scale"
        shape = parts.info(self._scale_name).shape
        if shape != (rows, columns // _NV_BLOCK):
            raise parts.fault(f"its scales are of shape {shape}, not one for 16 weights")
        whole = parts.floats(f"{parts.code}_scale_2")
        if whole.size != 1:
            raise parts.fault(f"{whole.size:,} scales of the whole tensor; there is one")
        self._whole = np.float32(whole.reshape(-1)[0])

    def rows(self, start: int, stop: int) -> Float32:
        scales = self._parts.float_rows(self._scale_name, start, stop) * self._whole
        values = _PAIRS[self._codes[start:stop]].reshape(*scales.shape, _NV_BLOCK)
        values *= scales[:, :, None]
        return values.reshape(stop - start, -1)


def _mx_values(blocks: Array, scales: Array) -> Float32:
    """The values of MXFP4 blocks uint8 `[n, g, 16]` with scales `[n, g]`: float32 `[n, 32·g]`."""
    values = _PAIRS[blocks].reshape(*scales.shape, _MX_BLOCK)
    values = np.ldexp(values, scales.astype(np.int32)[:, :, None] - 127)
    values[scales == 255] = np.nan
    return values.reshape(len(blocks), -1)
