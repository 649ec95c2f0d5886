"""Decodes AWQ and GPTQ weights. No maintained library decodes them on a CPU.

W[o, i] = scales[g, o] · (code[i, o] - zero[g, o]), where g is the group of input i.

AWQ, from AutoAWQ's `WQLinear_GEMM.from_linear`:
- `qweight` int32 `[in, out/8]`: each word holds eight outputs of one input; its nibbles, lowest
  first, are outputs 0, 2, 4, 6, 1, 3, 5, 7,
- `qzeros` int32 `[groups, out/8]`: the zero points, packed in the same way,
- `scales` `[groups, out]`; g = i // group_size.

GPTQ, from the packing code of AutoGPTQ and GPTQModel (`pack` of their QuantLinear). Codes are
packed end to end into words, the lowest bits first:
- `qweight` int32 `[in·bits/32, out]`: the codes of an output, packed down its column,
- `qzeros` int32 `[groups, out·bits/32]`: zero points, packed along the row. Format "gptq" (v1)
  stores them less one, modulo 2^bits; "gptq_v2" stores them unchanged,
- `scales` `[groups, out]`,
- `g_idx` int32 `[in]`: the group of each input; i // group_size if it is not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qtui_core.models.quoting import quoted
from qtui_core.packed.stored_tensors import (
    Array,
    Description,
    Float32,
    StoredTensors,
)

UInt8 = NDArray[np.uint8]

BITS = (2, 3, 4, 8)
#: For each of the eight outputs the nibble of the word that holds it, counted from the lowest bits:
#: the inverse of the order above.
_NIBBLE_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)


def describe_awq(parts: StoredTensors) -> Description:
    """The shape `(out, in)` and the group size of a weight.

    Raises:
        ModelError: the weight is not in the 4-bit GEMM packing, or has no scales.
    """
    settings = parts.settings
    version = settings.get("version", "gemm")
    bits = settings.get("bits", settings.get("w_bit", 4))
    if bits != 4 or not isinstance(version, str) or version.lower() != "gemm":
        stored = f"AWQ codes of {quoted(bits)} bits in the packing {quoted(version)}"
        raise parts.fault(f"{stored}; qtui decodes 4 bits in gemm")
    inputs, words = parts.matrix()
    rule = "full" if settings.get("zero_point") is False else "asym"
    groups = _granularity(parts, inputs)
    return Description((8 * words, inputs), f"AWQ 4 bits {groups}", f"int4:{groups}:{rule}")


def describe_gptq(parts: StoredTensors) -> Description:
    """The shape `(out, in)`, the bits and the group size of a weight.

    Raises:
        ModelError: the bits are unknown or not 2, 3, 4 or 8, or there are no scales.
    """
    settings = parts.settings
    bits = _bits(parts)
    rows, columns = parts.matrix()
    rule = "asym" if settings.get("sym") is False else "full"
    ordered = " act-order" if settings.get("desc_act") is True else ""
    inputs = 32 * rows // bits
    groups = _granularity(parts, inputs)
    words = f"GPTQ {bits} bits {groups}{ordered}"
    return Description((columns, inputs), words, f"int{bits}:{groups}:{rule}")


def _granularity(parts: StoredTensors, inputs: int) -> str:
    """That of the stored scales."""
    scales = parts.tensors.get(f"{parts.code.removesuffix('qweight')}scales")
    if scales is None or len(scales.shape) != 2 or not scales.elements:
        raise parts.fault("its scales are missing or not a matrix")
    size = -(-inputs // scales.shape[0])
    return "row" if size >= inputs else f"group{size}"


def _bits(parts: StoredTensors) -> int:
    """The bits of a code: from the config, of this module (in GPTQModel's `dynamic` rules, of which
    only exact names are matched) or of all, else from the shape of the zero points."""
    stem = parts.code.removesuffix("qweight")
    settings = parts.settings
    dynamic = settings.get("dynamic")
    own = dynamic.get(stem.rstrip(".")) if isinstance(dynamic, dict) else None
    bits = own.get("bits") if isinstance(own, dict) else None
    bits = settings.get("bits") if bits is None else bits
    if bits is None:
        scales, zeros = parts.tensors.get(f"{stem}scales"), parts.tensors.get(f"{stem}qzeros")
        if scales and zeros and len(scales.shape) == len(zeros.shape) == 2 and scales.shape[1]:
            bits = 32 * zeros.shape[1] // scales.shape[1]
    if type(bits) is not int or bits not in BITS:
        stored = f"GPTQ codes of {bits!s:.20} bits"
        raise parts.fault(f"{stored}; qtui decodes 2, 3, 4 and 8")
    return bits


def _scales_and_zeros(parts: StoredTensors, width: int) -> tuple[Float32, Array | None]:
    """The scales `[groups, out]` of a weight, and the words of its zero points `[groups, width]`,
    if it has any."""
    stem = parts.code.removesuffix("qweight")
    scales = parts.floats(f"{stem}scales")
    if scales.ndim != 2 or scales.shape[1] != parts.shape[0] or not len(scales):
        raise parts.fault(f"its scales are of shape {scales.shape}, for {parts.shape[0]:,} outputs")
    if f"{stem}qzeros" not in parts.tensors:
        return scales, None
    zeros, groups = parts.words(f"{stem}qzeros"), len(scales)
    if zeros.shape != (groups, width):
        raise parts.fault(f"its zero points are of shape {zeros.shape}, for {groups:,} groups")
    return scales, zeros


class AwqDecoder:
    """Decodes any rows of a weight: columns of the stored matrix, eight to a word."""

    def __init__(self, parts: StoredTensors) -> None:
        out, inputs = parts.shape
        self._codes = parts.words(parts.code)
        self._scales, zeros = _scales_and_zeros(parts, out // 8)
        groups = len(self._scales)
        if inputs % groups:
            raise parts.fault(f"{inputs:,} inputs do not divide into its {groups:,} groups")
        self._size = inputs // groups
        # Symmetric quantization: the zero point is the middle code.
        self._zeros: Float32 = np.full((groups, out), 8, np.float32)
        if zeros is not None:
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


class GptqDecoder:
    """Decodes any rows of a weight: columns of the stored matrix."""

    def __init__(self, parts: StoredTensors) -> None:
        out, self._inputs = parts.shape
        settings = parts.settings
        self._bits = bits = _bits(parts)
        self._codes = parts.words(parts.code)
        if self._codes.shape[0] != words_of(self._inputs, bits):
            raise parts.fault(
                f"{self._codes.shape[0]:,} rows of words do not hold {self._inputs:,} inputs of "
                f"{bits} bits; it was cut off, or packed another way"
            )
        self._scales, words = _scales_and_zeros(parts, words_of(out, bits))
        if words is None:
            raise parts.fault("its zero points are missing")
        self._zeros = unpack_down(words.T, bits, out).T
        if settings.get("checkpoint_format", "gptq") != "gptq_v2":
            # v1 stores the zero points less one, modulo 2^bits; the addition wraps in the same way.
            self._zeros = (self._zeros + np.uint8(1)) & np.uint8((1 << bits) - 1)
        self._group = _groups_of_inputs(parts, len(self._scales), settings)

    def rows(self, start: int, stop: int) -> Float32:
        values = unpack_down(self._codes[:, start:stop], self._bits, self._inputs).astype("f4")
        values -= self._zeros[:, start:stop].astype(np.float32)[self._group]
        values *= self._scales[:, start:stop][self._group]
        return np.ascontiguousarray(values.T)


def _groups_of_inputs(parts: StoredTensors, groups: int, settings: Mapping[str, Any]) -> Array:
    """int64 `[in]`: the group of each input."""
    inputs, name = parts.shape[1], f"{parts.code.removesuffix('qweight')}g_idx"
    if name in parts.tensors and parts.info(name).elements:
        index = parts.integers(name).astype(np.int64)
        if index.shape != (inputs,) or index.min() < 0 or index.max() >= groups:
            raise parts.fault(f"{quoted(name)} does not name one of {groups:,} groups an input")
        return index
    size = settings.get("group_size")
    if type(size) is not int or size < 1:
        size = max(1, -(-inputs // groups))
    if -(-inputs // size) != groups:
        raise parts.fault(
            f"{inputs:,} inputs in groups of {size:,} are not the {groups:,} groups it has"
        )
    return np.arange(inputs) // size


def unpack_down(words: Array, bits: int, count: int) -> UInt8:
    """The first `count` codes of each column: 32-bit words `[w, n]` to uint8 `[count, n]`.

    Code k is bits [k·bits, (k + 1)·bits) of its column's words; with 3 bits some codes are spread
    over two words. `bits` is 1 to 8.
    """
    words = np.ascontiguousarray(words).view(np.uint32)
    if 32 % bits == 0:
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        codes = words[:, None, :] >> shifts[None, :, None]
        codes &= np.uint32((1 << bits) - 1)
        return codes.astype(np.uint8).reshape(-1, words.shape[1])[:count]
    position = np.arange(count, dtype=np.int64) * bits
    low = position // 32
    high = np.minimum(low + 1, len(words) - 1)
    pairs: NDArray[Any] = words[high].astype(np.uint64)
    pairs <<= np.uint64(32)
    pairs |= words[low]
    pairs >>= (position % 32).astype(np.uint64)[:, None]
    pairs &= np.uint64((1 << bits) - 1)
    return pairs.astype(np.uint8)


def words_of(count: int, bits: int) -> int:
    """The number of 32-bit words that `count` codes take."""
    return -(-count * bits // 32)
