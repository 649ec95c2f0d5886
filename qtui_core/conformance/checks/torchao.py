"""torchao on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torchao.quantization import quant_primitives as primitives

from qtui_core.conformance import data
from qtui_core.conformance.checks.sides import (
    check,
    coded_side,
    numbers,
    quantized,
    same_numbers,
    split_cast,
)
from qtui_core.conformance.compare import Array, ConformanceSample, Side
from qtui_core.conformance.convention import Convention
from qtui_core.formats import get_format
from qtui_core.formats.array import decode_array, encode_array
from qtui_core.quant.codebook import LEVELS, dynamic_map
from qtui_core.schemes.granularity import PerGroup, PerRow
from qtui_core.schemes.scheme import Scheme


def _block(scheme: Scheme, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The block that shares a scale, in the form in which torchao takes it."""
    match scheme.granularity:
        case PerGroup(size):
            return (1, size)
        case PerRow():
            return (1, shape[1])
        case _:
            return shape


def _range(scheme: Scheme) -> tuple[str, torch.dtype, int, int]:
    half = 2 ** (scheme.bits - 1)
    if not scheme.symmetric:
        return "ASYMMETRIC", torch.uint8, 0, 2 * half - 1
    return "SYMMETRIC", torch.int8, -half if scheme.scale_rule == "full" else 1 - half, half - 1


@check(*data.FINITE, "subnormal", refuses=(AssertionError, RuntimeError))
def affine(scheme: Scheme, x: Array) -> Side:
    return _affine(scheme, x, torch.float32)


@check("normal", "ties")
def affine_of_bf16(scheme: Scheme, x: Array) -> Side:
    return _affine(scheme, x, torch.bfloat16)


def _affine(scheme: Scheme, x: Array, dtype: torch.dtype) -> Side:
    mapping, code_dtype, low, high = _range(scheme)
    tensor, block = torch.from_numpy(x).to(dtype), _block(scheme, x.shape)
    kind = getattr(primitives.MappingType, mapping)
    scale, zero = primitives.choose_qparams_affine(tensor, kind, block, code_dtype, low, high)
    codes = primitives.quantize_affine(tensor, block, scale, zero, code_dtype, low, high)
    values = primitives.dequantize_affine(codes, block, scale, zero, code_dtype, low, high)
    scales = {"scale": numbers(scale)}
    if not scheme.symmetric:
        scales["zero point"] = numbers(zero)
    return Side(numbers(codes), numbers(values), scales)


@check(*data.FINITE[:-1])  # not of huge ones, whose max - min overflows in torchao
def tinygemm(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    tensor, block = torch.from_numpy(x), _block(scheme, x.shape)
    whole: tuple[Any, ...] = (torch.uint8, 0, 15)
    scale, zero = primitives._choose_qparams_affine_tinygemm(
        tensor, primitives.MappingType.ASYMMETRIC, block, *whole
    )
    codes = primitives._quantize_affine_tinygemm(tensor, block, scale, zero, *whole)
    values = primitives._dequantize_affine_tinygemm(codes, block, scale, zero, *whole)
    q = quantized(scheme, x)
    theirs = Side(numbers(codes), numbers(values), {"scale": scale.numpy()})
    return Side(q.codes, q.dequantize(), {"scale": q.scales}), theirs


@check()
def float8(scheme: Scheme, x: Array) -> Side:
    dtype = torch.float8_e4m3fn if scheme.format == "e4m3" else torch.float8_e5m2
    tensor = torch.from_numpy(x)
    scale = primitives._choose_scale_float8(tensor, list(_block(scheme, x.shape)), dtype)
    codes = primitives._quantize_affine_float8(tensor, scale, dtype)
    values = primitives._dequantize_affine_float8(codes, scale)
    return Side(codes.view(torch.uint8).numpy(), numbers(values), {"scale": scale.numpy()})


_MX_ELEMENTS: dict[str, Any] = {
    "mxfp8-e4m3": torch.float8_e4m3fn,
    "mxfp8-e5m2": torch.float8_e5m2,
    "mxfp6-e3m2": "fp6_e3m2",
    "mxfp6-e2m3": "fp6_e2m3",
    "mxfp4": getattr(torch, "float4_e2m1fn_x2", None),  # from torch 2.8
}


@check()
def microscaling(scheme: Scheme, x: Array) -> Side:
    from torchao.prototype.mx_formats import mx_tensor

    mode = mx_tensor.ScaleCalculationMode[scheme.scale_rule.upper()]
    element = _MX_ELEMENTS[scheme.format]
    scale, raw = mx_tensor.to_mx(torch.from_numpy(x), element, 32, mode)
    values = mx_tensor.to_dtype(raw, scale, element, 32, torch.float32)
    codes = _unpack_low_first(raw) if scheme.format == "mxfp4" else raw.view(torch.uint8)
    stored = decode_array(get_format("e8m0"), scale.view(torch.uint8).numpy(), np.float32)
    return Side(numbers(codes), numbers(values), {"scale": stored})


@check()
def nvfp4(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    from torchao.prototype.mx_formats import nvfp4_tensor

    tensor = torch.from_numpy(x)
    whole = nvfp4_tensor.per_tensor_amax_to_scale(tensor.abs().max())
    result = nvfp4_tensor.NVFP4Tensor.to_nvfp4(tensor, per_tensor_scale=whole)
    codes, values = _unpack_low_first(result.qdata), result.dequantize(torch.float32)
    stored = {"scale": result.scale.view(torch.uint8).numpy()}
    return coded_side(quantized(scheme, x)), Side(numbers(codes), numbers(values), stored)


def _unpack_low_first(packed: torch.Tensor) -> torch.Tensor:
    packed = packed.view(torch.uint8)
    return torch.stack([packed & 15, packed >> 4], dim=-1).reshape(packed.shape[0], -1)


def _nf4(x: Array) -> Any:
    from torchao.quantization.quantize_.workflows.nf4 import nf4_tensor

    return nf4_tensor.to_nf4(torch.from_numpy(x), 64, 64)


def nf4_levels(convention: Convention) -> Iterator[ConformanceSample]:
    theirs = numbers(_nf4(data.numbers()["normal"]).nf4)
    return same_numbers("16 levels", LEVELS["nf4"], theirs)


@check("normal", "ties", "one sided")
def nf4(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    q, tensor = quantized(scheme, x), _nf4(x)
    theirs = Side(numbers(tensor.quantized_data), numbers(tensor.get_original_weight()))
    return Side(q.codes, q.dequantize()), theirs


def map_of_optimizer_states(convention: Convention) -> Iterator[ConformanceSample]:
    from torchao.optim.quant_utils import create_dynamic_map

    theirs = np.array(create_dynamic_map(True), np.float32)
    return same_numbers("256 levels", dynamic_map(), theirs)


def optimizer_states(convention: Convention) -> Iterator[ConformanceSample]:
    """Scaled optimizer states: every level of the map, and every point half way between two
    levels."""
    from torchao.optim.quant_utils import quantize_8bit_with_qmap

    table = dynamic_map()
    ties = (table[:-1] + table[1:]) / np.float32(2)
    x = np.concatenate([table, ties])
    theirs = numbers(quantize_8bit_with_qmap(torch.from_numpy(x), torch.from_numpy(table.copy())))
    ours = np.searchsorted(ties, x).astype(np.uint8)
    sides = [Side(codes, table[codes]) for codes in (ours, theirs)]
    yield ConformanceSample("levels and ties", x, *sides)


@check("normal", "mixed magnitudes", "tiny")
def ternary(scheme: Scheme, x: Array) -> Side:
    from torchao.prototype.quantized_training import bitnet

    tensor = torch.from_numpy(x)
    scale = bitnet.get_bitnet_scale(tensor)
    codes = numbers(bitnet.quantize_bitnet_weight(tensor, scale))
    return Side(codes, codes.astype(np.float32) * numbers(scale), {"scale": numbers(scale)})


@check("normal", "ties", "one sided", "mixed magnitudes")
def activations(scheme: Scheme, x: Array) -> Side:
    from torchao.prototype.quantized_training.int8 import quantize_int8_rowwise

    codes, scale = map(numbers, quantize_int8_rowwise(torch.from_numpy(x)))
    return Side(codes, codes.astype(np.float32) * scale[:, None], {"scale": scale})


def stochastic(convention: Convention) -> Iterator[ConformanceSample]:
    """Both sides get the same draw; qtui counts it from the other end (0xFFFF - draw)."""
    from torchao.optim.quant_utils import _fp32_to_bf16_sr

    fmt, rounding, saturate = split_cast(convention.ours)
    x = data.numbers()["halves"]
    x = np.ascontiguousarray(x[np.abs(x) < 1e38])
    torch.manual_seed(1)
    draw = torch.randint(0, 1 << 16, x.shape, dtype=torch.int32).numpy()
    torch.manual_seed(1)
    theirs = _fp32_to_bf16_sr(torch.from_numpy(x)).view(torch.int16).numpy().view(np.uint16)
    ours = encode_array(fmt, x, rounding, saturate, (0xFFFF - draw, 16))
    sides = [Side(codes, decode_array(fmt, codes)) for codes in (ours, theirs)]
    yield ConformanceSample("halves", x, *sides)
