"""Decodes blocks of 4-bit floats (E2M1): MXFP4 as gpt-oss stores it, NVFP4 as ModelOpt does.

MXFP4 (transformers' `convert_moe_packed_tensors`): `X_blocks` uint8 `[experts, out, in/32, 16]`,
two codes to a byte, the first in the low nibble; `X_scales` uint8 `[experts, out, in/32]`, E8M0
with bias 127. The weight `X` of the module is the transpose, `[experts, in, out]`.
NVFP4 (ModelOpt): `weight` uint8 `[out, in/2]`, `weight_scale` E4M3 `[out, in/16]`,
`weight_scale_2` one float32 that multiplies them.
"""

from __future__ import annotations

import numpy as np

from qtui_core.formats import E2M1, decode
from qtui_core.models import ModelSource
from qtui_core.models.quoting import quoted
from qtui_core.packed.stored_tensors import (
    Array,
    Description,
    Float32,
    StoredTensors,
    cannot_decode,
    matrix_of,
)

#: The 16 values of E2M1, by code, and the two of each byte, low nibble first.
_VALUES = np.array([decode(E2M1, code).to_float() for code in range(16)], np.float32)
_PAIRS = np.stack([_VALUES[np.arange(256) & 15], _VALUES[np.arange(256) >> 4]], axis=1)
_MX_BLOCK, _NV_BLOCK = 32, 16


def describe_mxfp4(source: ModelSource, code: str) -> Description:
    """The shape of a weight: `(experts, in, out)`, or `(out, in)` without experts. Raises
    ModelError if the stored shapes are others."""
    shape = source.tensors[code].shape
    if len(shape) not in (3, 4) or shape[-1] != _MX_BLOCK // 2:
        raise cannot_decode(
            source,
            code,
            f"MXFP4 blocks of shape {list(shape)}; they come as [experts, out, in/32, 16]",
        )
    inputs = shape[-2] * _MX_BLOCK
    if len(shape) == 3:
        return Description((shape[0], inputs), "MXFP4", "mxfp4")
    # With experts, blocks run along the rows of the weight, which no scheme does.
    return Description((shape[0], inputs, shape[1]), "MXFP4", None)


def describe_nvfp4(source: ModelSource, code: str) -> Description:
    """The shape `(out, in)` of a weight. Raises ModelError if the codes are no matrix."""
    rows, columns = matrix_of(source, code)
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
