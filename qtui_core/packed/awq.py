"""Decodes AWQ weights. No maintained library decodes them on a CPU.

Layout, from AutoAWQ's `WQLinear_GEMM.from_linear`:
- `qweight` int32 `[in, out/8]`: each word holds eight outputs of one input; its nibbles, lowest
  first, are outputs 0, 2, 4, 6, 1, 3, 5, 7,
- `qzeros` int32 `[groups, out/8]`: the zero points, packed in the same way,
- `scales` `[groups, out]`.
W[o, i] = scales[g, o] · (code[i, o] - zero[g, o]) with g = i // group_size.
"""

from __future__ import annotations

import numpy as np

from qtui_core.models import ModelSource
from qtui_core.models.quoting import quoted
from qtui_core.models.recognise import quantization_config
from qtui_core.packed.stored_tensors import (
    Array,
    Description,
    Float32,
    StoredTensors,
    cannot_decode,
    group_granularity,
    matrix_shape,
)

#: For each of the eight outputs the nibble of the word that holds it, counted from the lowest bits:
#: the inverse of the order above.
_NIBBLE_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)


def describe_awq(source: ModelSource, code: str) -> Description:
    """The shape `(out, in)` and the group size of a weight.

    Raises:
        ModelError: the weight is not in the 4-bit GEMM packing, or has no scales.
    """
    settings = quantization_config(source.config) or {}
    version = settings.get("version", "gemm")
    bits = settings.get("bits", settings.get("w_bit", 4))
    if bits != 4:
        raise cannot_decode(
            source, code, f"AWQ codes of {quoted(bits)} bits; the format is defined for 4"
        )
    if not isinstance(version, str) or version.lower() != "gemm":
        raise cannot_decode(
            source, code, f"AWQ in the packing {quoted(version)}; qtui decodes gemm"
        )
    scales = source.tensors.get(f"{code.removesuffix('qweight')}scales")
    if scales is None or len(scales.shape) != 2 or not scales.elements:
        raise cannot_decode(source, code, "its scales are missing or not a matrix")
    inputs, words = matrix_shape(source, code)
    granularity = group_granularity(-(-inputs // scales.shape[0]), inputs)
    rule = "full" if settings.get("zero_point") is False else "asym"
    return Description(
        (8 * words, inputs), f"AWQ 4 bits {granularity}", f"int4:{granularity}:{rule}"
    )


class AwqDecoder:
    """Decodes any rows of a weight: columns of the stored matrix, eight to a word."""

    def __init__(self, parts: StoredTensors) -> None:
        out, inputs = parts.shape
        stem = parts.code.removesuffix("qweight")
        self._codes = parts.words(parts.code)
        self._scales = parts.floats(f"{stem}scales")
        if self._scales.ndim != 2 or self._scales.shape[1] != out or not len(self._scales):
            raise parts.fault(f"its scales are of shape {self._scales.shape}, for {out:,} outputs")
        groups = len(self._scales)
        if inputs % groups:
            raise parts.fault(f"{inputs:,} inputs do not divide into its {groups:,} groups")
        self._size = inputs // groups
        if f"{stem}qzeros" not in parts.source.tensors:
            # Symmetric quantization: the zero point is the middle code.
            self._zeros = np.full((groups, out), 8, np.float32)
            return
        zeros = parts.words(f"{stem}qzeros")
        if zeros.shape != (groups, out // 8):
            raise parts.fault(f"its zero points are of shape {zeros.shape}, for {groups:,} groups")
        self._zeros = _nibbles(zeros).astype(np.float32)

    def rows(self, start: int, stop: int) -> Float32:
        first = start // 8
        codes = _nibbles(self._codes[:, first : -(-stop // 8)])[:, start - 8 * first :]
        values = codes[:, : stop - start].astype(np.float32)
        grouped = values.reshape(-1, self._size, stop - start)
        grouped -= self._zeros[:, None, start:stop]
        grouped *= self._scales[:, None, start:stop]
        return np.ascontiguousarray(values.T)


def _nibbles(words: Array) -> Array:
    """Unpacks int32 `[n, w]` to uint8 `[n, 8·w]`, with the outputs in order."""
    shifts = np.array([4 * n for n in _NIBBLE_OF_OUTPUT], np.uint32)
    nibbles = np.ascontiguousarray(words).view(np.uint32)[:, :, None] >> shifts
    nibbles &= np.uint32(15)
    return nibbles.astype(np.uint8).reshape(len(words), -1)
