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
    scale = source.tensors[_scale_of(source, code)]
    name = {"F8_E4M3": "e4m3", "F8_E5M2": "e5m2", "I8": "int8"}.get(info.dtype)
    title = {"e4m3": "FP8 E4M3", "e5m2": "FP8 E5M2", "int8": "INT8"}.get(name or "", info.dtype)
    if len(info.shape) < 2:
        raise cannot_decode(source, code, "scaled codes that are not a matrix")
    granularity = "tile{}x{}".format(*_tile(source))
    if scale.elements in (1, math.prod(info.shape[:-1])):
        granularity = "tensor" if scale.elements == 1 else "row"
    return Description(info.shape, f"{title} {granularity}", name and f"{name}:{granularity}")


class ScaledDecoder:
    """Decodes any rows of a weight."""

    def __init__(self, parts: StoredTensors) -> None:
        self._parts = parts
        *leading, rows, columns = parts.shape
        name = _scale_of(parts.source, parts.code)
        scales = parts.floats(name)
        tile = _tile(parts.source)
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


def _scale_of(source: ModelSource, code: str) -> str:
    inverse = f"{code}_scale_inv"
    return inverse if inverse in source.tensors else f"{code}_scale"


def _tile(source: ModelSource) -> tuple[int, int]:
    block = (quantization_config(source.config) or {}).get("weight_block_size")
    sizes = block if isinstance(block, list) and len(block) == 2 else [0]
    fits = all(type(size) is int and 0 < size < 1 << 31 for size in sizes)
    return (sizes[0], sizes[1]) if fits else (128, 128)
