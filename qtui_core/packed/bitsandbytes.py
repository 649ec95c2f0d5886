"""Decodes bitsandbytes weights: 4 bits (NF4, FP4), with or without nested scales, and LLM.int8().

Layout, from `QuantState.as_dict(packed=True)` and `Linear8bitLt._save_to_state_dict` of
bitsandbytes 0.50. With the 4-bit codes `X` are stored `X.absmax`, `X.quant_map` and JSON in
`X.quant_state.bitsandbytes__nf4`; with nested scales also `X.nested_absmax` and
`X.nested_quant_map`. With the 8-bit codes `M.weight` is stored `M.SCB`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qtui_core.models.files.local import load_object
from qtui_core.models.files.safetensors import MAX_RANK
from qtui_core.packed.stored_tensors import (
    Description,
    Float32,
    StoredTensors,
)
from qtui_core.quant.codebook import LEVELS, unpack_nibbles

#: The block sizes that bitsandbytes' `dequantize_4bit` accepts.
_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
#: Larger than any offset of scales: float32 ends soon after.
_LARGEST = 1e38


def describe_4bit(parts: StoredTensors) -> Description:
    """The shape, the type and the block size that the JSON with the codes gives.

    Raises:
        ModelError: the JSON is missing or broken.
    """
    state = _state(parts)
    block, nested = state["blocksize"], state.get("nested_blocksize")
    kind = str(state["quant_type"])
    words = f"bnb {kind.upper()} block{block}"
    scheme = f"{kind}:block{block}"
    if nested is not None:
        words += " dq"
        scheme += ":dq" if nested == 256 else f":dq{nested}"
    return Description(tuple(state["shape"]), words, scheme)


def _state(parts: StoredTensors) -> Mapping[str, Any]:
    stem = f"{parts.code}.quant_state.bitsandbytes__"
    kind = "fp4" if f"{stem}fp4" in parts.tensors else "nf4"
    raw = parts.raw(f"{stem}{kind}").tobytes()
    state = load_object(raw, f"The quant_state of {parts.code!r}", unique=False)
    shape, block, nested = (state.get(k) for k in ("shape", "blocksize", "nested_blocksize"))
    if not (
        isinstance(shape, list)
        and len(shape) <= MAX_RANK
        and all(type(n) is int and n >= 0 for n in shape)
        and type(block) is int
        and block in _BLOCKS
        and state.get("quant_type") == kind
        and (nested is None or (type(nested) is int and 0 < nested < 1 << 31))
    ):
        raise parts.fault("its quant_state is not one that bitsandbytes 4-bit weights have")
    return state


class FourBitDecoder:
    """Decodes any rows of a weight: level · absmax of its block."""

    def __init__(self, parts: StoredTensors) -> None:
        state = _state(parts)
        count = math.prod(parts.shape)
        self._levels, self._block = LEVELS[str(state["quant_type"])], int(state["blocksize"])
        self._columns = parts.shape[-1] if parts.shape else 1
        blocks = -(-count // self._block)
        self._codes = parts.raw(parts.code)
        if self._codes.size < -(-count // 2):
            raise parts.fault(
                f"{self._codes.size:,} bytes do not hold {count:,} codes; it was cut off"
            )
        name = f"{parts.code}.absmax"
        if state.get("nested_blocksize") is not None:
            offset = state.get("nested_offset")
            if not isinstance(offset, int | float) or not abs(offset) < _LARGEST:
                raise parts.fault("its quant_state has nested scales and no nested_offset")
            codes = parts.integers(name).reshape(-1)
            nested = parts.floats(f"{parts.code}.nested_absmax").reshape(-1)
            levels = parts.floats(f"{parts.code}.nested_quant_map").reshape(-1)
            size = int(state["nested_blocksize"])
            if codes.size != blocks or nested.size != -(-blocks // size) or levels.size != 256:
                raise parts.fault(f"its nested scales are not those of {blocks:,} blocks")
            with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are data
                self._scales = levels[codes] * np.repeat(nested, size)[:blocks]
                self._scales += np.float32(offset)
        else:
            self._scales = parts.floats(name).reshape(-1)
        if self._scales.size != blocks:
            raise parts.fault(f"it has {self._scales.size:,} scales for {blocks:,} blocks")

    def rows(self, start: int, stop: int) -> Float32:
        first, last = start * self._columns, stop * self._columns
        low, high = first // self._block, -(-last // self._block)
        # From the byte that holds the first code to the one that holds the last.
        codes = self._codes[first // 2 : -(-last // 2)]
        values = self._levels[unpack_nibbles(codes, 2 * codes.size)][first % 2 :][: last - first]
        values *= np.repeat(self._scales[low:high], self._block)[first - low * self._block :][
            : last - first
        ]
        return values.reshape(stop - start, self._columns)


def describe_int8(parts: StoredTensors) -> Description:
    """The shape of an LLM.int8() weight, which has one scale for each row.

    Raises:
        ModelError: the codes are not a matrix, or not stored by rows.
    """
    shape = parts.matrix()
    form = parts.tensors.get(f"{parts.code.removesuffix('.weight')}.weight_format")
    if form is not None and parts.raw(form.name).any():
        raise parts.fault(
            "its codes are in a layout of some GPU generation; save it again with a newer "
            "bitsandbytes, which writes rows",
        )
    return Description(shape, "bnb LLM.int8()", "int8:row")


class Int8Decoder:
    """Decodes any rows of a weight."""

    def __init__(self, parts: StoredTensors) -> None:
        self._codes = parts.integers(parts.code)
        self._scales = parts.floats(f"{parts.code.removesuffix('.weight')}.SCB").reshape(-1)
        if self._codes.dtype != np.int8 or self._scales.size != len(self._codes):
            raise parts.fault(
                f"{self._scales.size:,} scales for {len(self._codes):,} rows of {self._codes.dtype}"
            )

    def rows(self, start: int, stop: int) -> Float32:
        # In the order and with the 1/127 of the library (`int8_vectorwise_dequant`).
        values = self._codes[start:stop].astype(np.float32)
        values *= self._scales[start:stop, None]
        values *= np.float32(7.874015718698502e-3)
        return values
