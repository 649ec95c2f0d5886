"""Decodes 8-bit floats and integers with separate scales: value = code · scale.

`X_scale` has one number for the matrix, for each row, or for each tile. DeepSeek calls it
`X_scale_inv`, although it multiplies too; the size of its tiles, 128 x 128, is `weight_block_size`
in the config.
"""

from __future__ import annotations

import math

import numpy as np

from qtui_core.models import ModelSource
from qtui_core.models.quoting import quoted
from qtui_core.models.recognise import quantization_config
from qtui_core.packed.stored_tensors import Description, Float32, StoredTensors, cannot_decode


def describe_scaled(source: ModelSource, code: str) -> Description:
    """The shape of a weight, which is that of its codes, and the granularity of its
    scales. Raises ModelError if the codes are not a matrix."""
    info = source.tensors[code]
    scale = source.tensors.get(f"{code}_scale_inv") or source.tensors[f"{code}_scale"]
    name = {"F8_E4M3": "e4m3", "F8_E5M2": "e5m2", "I8": "int8"}.get(info.dtype)
    title = {"e4m3": "FP8 E4M3", "e5m2": "FP8 E5M2", "int8": "INT8"}.get(name or "", info.dtype)
    if len(info.shape) < 2:
        raise cannot_decode(source, code, "scaled codes that are not a matrix")
    if scale.elements == 1:
        granularity = "tensor"
    elif scale.elements == math.prod(info.shape[:-1]):
        granularity = "row"
    else:
        rows, columns = _tile(source)
        granularity = f"tile{rows}x{columns}"
    return Description(info.shape, f"{title} {granularity}", name and f"{name}:{granularity}")


class ScaledDecoder:
    """Decodes any rows of a weight."""

    def __init__(self, parts: StoredTensors) -> None:
        self._parts = parts
        rows, columns = parts.shape[-2], parts.shape[-1]
        name = f"{parts.code}_scale_inv"
        if name not in parts.source.tensors:
            name = f"{parts.code}_scale"
        scales = parts.floats(name)
        leading = parts.shape[:-2]
        if scales.size == 1:
            scales = scales.reshape(1, 1)
            self._tile = (math.prod(parts.shape[:-1]), columns)
        elif scales.shape in ((rows,), (*leading, rows), (*leading, rows, 1)):
            scales = scales.reshape(-1, 1)
            self._tile = (1, columns)
        else:
            self._tile = _tile(parts.source)
            grid = (-(-rows // self._tile[0]), -(-columns // self._tile[1]))
            if scales.shape != (*leading, *grid):
                raise parts.fault(
                    f"{quoted(name)} is of shape {scales.shape}, which is not one scale, one for "
                    f"each of {rows:,} rows, or one for each tile of "
                    f"{self._tile[0]} x {self._tile[1]}"
                )
            scales = scales.reshape(-1, grid[1])
        self._scales = scales
        self._height = rows

    def rows(self, start: int, stop: int) -> Float32:
        values = self._parts.float_rows(self._parts.code, start, stop)
        matrix, row = np.divmod(np.arange(start, stop), self._height)
        if self._tile[0] > self._height:
            matrix, row = np.zeros_like(matrix), np.zeros_like(row)
        strips = -(-self._height // self._tile[0])
        scales = self._scales[matrix * strips + row // self._tile[0]]
        if scales.shape[1] > 1:
            scales = np.repeat(scales, self._tile[1], axis=1)[:, : values.shape[1]]
        values *= scales
        return values


def _tile(source: ModelSource) -> tuple[int, int]:
    settings = quantization_config(source.config) or {}
    block = settings.get("weight_block_size")
    if (
        isinstance(block, list)
        and len(block) == 2
        and all(type(b) is int and 0 < b < 1 << 31 for b in block)
    ):
        return block[0], block[1]
    return 128, 128
