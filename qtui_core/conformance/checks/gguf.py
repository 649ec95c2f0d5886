"""The block formats of GGUF, the files of llama.cpp, through its Python package."""

from __future__ import annotations

import gguf
import numpy as np

from qtui_core.conformance.checks.sides import Check, check, coded_side, quantized
from qtui_core.conformance.compare import Array, Side
from qtui_core.schemes.scheme import Scheme

_BLOCK = 32
_TYPES = gguf.GGMLQuantizationType
#: Tensors whose scales fit in FP16, as GGUF stores them. Without groups of zeros, whose scale of
#: zero has an arbitrary sign.
_FIT = ("normal", "ties", "one sided", "constant")


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


def _symmetric(kind: str, zero: int) -> Check:
    """Formats that begin with one FP16 scale, in which `zero` is the code of 0."""

    @check(*_FIT)
    def sides(scheme: Scheme, x: Array) -> tuple[Side, Side]:
        stored, values = _theirs(x, _TYPES[kind])
        q = quantized(scheme, x)
        ours = q.codes.reshape(-1, _BLOCK).astype(np.int16)
        half = q.scales.reshape(-1, 1).astype(np.float16)
        mine = ours.astype(np.float32) * half.astype(np.float32)
        scale = np.ascontiguousarray(stored[:, :2]).view(np.float16)
        codes = _codes(kind, stored[:, 2:]).astype(np.int16) - zero
        return Side(ours, mine, {"scale": half}), Side(codes, values, {"scale": scale})

    return sides


def _codes(kind: str, rest: Array) -> Array:
    if kind == "Q8_0":
        return np.ascontiguousarray(rest).view(np.int8)
    if kind == "Q5_0":
        fifth = np.unpackbits(rest[:, :4], axis=1, bitorder="little")
        return _halves(rest[:, 4:]) | (fifth << 4)
    return _halves(rest)


q4_0 = _symmetric("Q4_0", 8)
q5_0 = _symmetric("Q5_0", 16)
q8_0 = _symmetric("Q8_0", 0)


@check(*_FIT)
def q4_1(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    """Compares codes and values only: GGUF stores a minimum where qtui stores a zero point."""
    stored, values = _theirs(x, _TYPES.Q4_1)
    q = quantized(scheme, x)
    return Side(q.codes.reshape(-1, _BLOCK), q.dequantize()), Side(_halves(stored[:, 4:]), values)


@check()
def mxfp4(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    stored, values = _theirs(x, _TYPES.MXFP4)
    theirs = Side(_halves(stored[:, 1:]), values, {"scale": stored[:, 0]})
    return coded_side(quantized(scheme, x)), theirs


@check(*_FIT)
def ternary(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    stored, values = _theirs(x, _TYPES.TQ2_0)
    q = quantized(scheme, x)
    quarters = stored[:, :-2].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6])[:, None]
    return Side(q.codes, q.dequantize()), Side((quarters & 3).astype(np.int8) - 1, values)


@check("rows of 100", refuses=(gguf.quants.QuantError, ValueError, AssertionError))
def short_blocks(scheme: Scheme, x: Array) -> Side:
    stored = gguf.quants.quantize(x, _TYPES.Q4_0)
    return Side(stored, stored)
