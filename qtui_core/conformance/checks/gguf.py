"""The block formats of GGUF, the files of llama.cpp, through its Python package."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np

from qtui_core.conformance import data
from qtui_core.conformance.checks.qtui_side import Array, cast_sample, quantized, refusals, side_of
from qtui_core.conformance.compare import ConformanceSample, Side
from qtui_core.conformance.convention import Convention
from qtui_core.quant import QuantizedTensor

_BLOCK = 32
_TYPES = gguf.GGMLQuantizationType


def _tensors() -> dict[str, Array]:
    """Tensors whose scales fit in FP16, as GGUF stores them. Without groups of zeros, whose scale
    of zero has an arbitrary sign."""
    return {name: data.matrices()[name] for name in ("normal", "ties", "one sided", "constant")}


def _theirs(x: Array, kind: gguf.GGMLQuantizationType) -> tuple[Array, Array]:
    """The stored blocks, uint8 `[blocks, bytes per block]`, and the values that they decode to."""
    with np.errstate(all="ignore"):
        stored = gguf.quants.quantize(x, kind)
        values = gguf.quants.dequantize(stored, kind)
    return stored.reshape(x.size // gguf.GGML_QUANT_SIZES[kind][0], -1), values


def _halves(stored: Array) -> Array:
    """The codes of bytes whose low nibbles are the first half of a block and whose high nibbles are
    the second half; one code per element."""
    return np.concatenate([stored & 15, stored >> 4], axis=1)


def _in_half(q: QuantizedTensor, codes: Array) -> tuple[Array, Array]:
    """Our scales rounded to FP16, and the values of the codes with these scales."""
    half = q.scales.reshape(-1, 1).astype(np.float16)
    return half, codes.astype(np.float32) * half.astype(np.float32)


def _symmetric(
    convention: Convention, kind: str, width: int, zero: int
) -> Iterator[ConformanceSample]:
    """Formats with one FP16 scale. A block begins with the scale; its codes follow after `width`
    bytes; `zero` is the code of 0."""
    for name, x in _tensors().items():
        stored, values = _theirs(x, _TYPES[kind])
        q = quantized(convention.ours, x)
        ours = q.codes.reshape(-1, _BLOCK).astype(np.int16)
        half, mine = _in_half(q, ours)
        scale = np.ascontiguousarray(stored[:, :2]).view(np.float16)
        codes = _codes(kind, stored[:, width:]).astype(np.int16) - zero
        yield ConformanceSample(
            name, x, Side(ours, mine, {"scale": half}), Side(codes, values, {"scale": scale})
        )


def _codes(kind: str, rest: Array) -> Array:
    if kind == "Q8_0":
        return np.ascontiguousarray(rest).view(np.int8)
    if kind == "Q5_0":
        fifth = np.unpackbits(rest[:, :4], axis=1, bitorder="little")
        return _halves(rest[:, 4:]) | (fifth << 4)
    return _halves(rest)


def q4_0(convention: Convention) -> Iterator[ConformanceSample]:
    yield from _symmetric(convention, "Q4_0", 2, 8)


def q5_0(convention: Convention) -> Iterator[ConformanceSample]:
    yield from _symmetric(convention, "Q5_0", 2, 16)


def q8_0(convention: Convention) -> Iterator[ConformanceSample]:
    yield from _symmetric(convention, "Q8_0", 2, 0)


def q4_1(convention: Convention) -> Iterator[ConformanceSample]:
    """Compares codes and values only: GGUF stores a minimum where qtui stores a zero point."""
    for name, x in _tensors().items():
        stored, values = _theirs(x, _TYPES.Q4_1)
        q = quantized(convention.ours, x)
        ours = q.codes.reshape(-1, _BLOCK).astype(np.int16)
        codes = _halves(stored[:, 4:]).astype(np.int16)
        yield ConformanceSample(name, x, Side(ours, q.dequantize()), Side(codes, values))


def mxfp4(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in data.matrices().items():
        stored, values = _theirs(x, _TYPES.MXFP4)
        q = quantized(convention.ours, x)
        assert q.scale_codes is not None
        ours = Side(q.codes, q.dequantize(), {"scale": q.scale_codes})
        yield ConformanceSample(
            name, x, ours, Side(_halves(stored[:, 1:]), values, {"scale": stored[:, 0]})
        )


def ternary(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in _tensors().items():
        stored, values = _theirs(x, _TYPES.TQ2_0)
        q = quantized(convention.ours, x)
        quarters = stored[:, :-2].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6])[:, None]
        codes = (quarters & 3).astype(np.int8) - 1
        yield ConformanceSample(name, x, Side(q.codes, q.dequantize()), Side(codes, values))


def short_blocks(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in data.ragged().items():
        with refusals(gguf.quants.QuantError, ValueError, AssertionError):
            stored = gguf.quants.quantize(x, _TYPES.Q4_0)
        q = quantized(convention.ours, x)
        yield ConformanceSample(name, x, side_of(q), Side(stored, stored))


def bf16(convention: Convention) -> Iterator[ConformanceSample]:
    x = data.between_16_bits()
    x = np.ascontiguousarray(x[: x.size // 256 * 256].reshape(-1, 256))
    codes = gguf.quants.quantize(x, _TYPES.BF16).view(np.uint16)
    yield cast_sample(convention, "ties", x, codes)


def f16(convention: Convention) -> Iterator[ConformanceSample]:
    x = data.between_16_bits()
    with np.errstate(over="ignore"):
        codes = gguf.quants.quantize(x, _TYPES.F16).view(np.uint16)
    yield cast_sample(convention, "ties", x, codes)


def takes_logarithms_in_floating_point() -> tuple[bool, str]:
    x = np.zeros((1, _BLOCK), np.float32)
    x[0, 0] = np.nextafter(np.float32(8), np.float32(0))
    scale = int(gguf.quants.quantize(x, _TYPES.MXFP4)[0, 0]) - 127
    return scale != 0, f"7.9999995 has the scale 2^{scale} instead of 2^0"
