"""torchao on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torchao.quantization import quant_primitives as primitives

from qtui_core.conformance import data
from qtui_core.conformance.checks.qtui_side import (
    as_codes,
    numbers,
    quantized,
    refusals,
    side_of,
    split_cast,
)
from qtui_core.conformance.compare import Array, ConformanceSample, Side
from qtui_core.conformance.convention import Convention
from qtui_core.formats import get_format
from qtui_core.formats.array import decode_array, encode_array
from qtui_core.quant import Scheme
from qtui_core.quant.codebook import dynamic_map
from qtui_core.schemes.granularity import PerGroup, PerRow


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


def affine(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in {**data.matrices(), **data.subnormals()}.items():
        yield _affine(convention.ours, name, x, torch.float32)


def affine_of_bf16(convention: Convention) -> Iterator[ConformanceSample]:
    for name in ("normal", "ties"):
        yield _affine(convention.ours, name, data.matrices()[name], torch.bfloat16)


def short_groups(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in data.ragged().items():
        with refusals(AssertionError, RuntimeError):
            sample = _affine(convention.ours, name, x, torch.float32)
        yield sample


def affine_nonfinite(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in data.with_holes().items():
        yield _affine(convention.ours, name, x, torch.float32)


def _affine(text: str, name: str, x: Array, dtype: torch.dtype) -> ConformanceSample:
    scheme = Scheme.parse(text)
    mapping, code_dtype, low, high = _range(scheme)
    tensor, block = torch.from_numpy(x).to(dtype), _block(scheme, x.shape)
    kind = getattr(primitives.MappingType, mapping)
    scale, zero = primitives.choose_qparams_affine(tensor, kind, block, code_dtype, low, high)
    codes = primitives.quantize_affine(tensor, block, scale, zero, code_dtype, low, high)
    values = primitives.dequantize_affine(codes, block, scale, zero, code_dtype, low, high)
    scales = {"scale": numbers(scale)}
    if not scheme.symmetric:
        scales["zero point"] = numbers(zero)
    return ConformanceSample(
        name, x, side_of(quantized(text, x)), Side(numbers(codes), numbers(values), scales)
    )


def tinygemm(convention: Convention) -> Iterator[ConformanceSample]:
    scheme = Scheme.parse(convention.ours)
    for name, x in data.matrices().items():
        if name == "huge":  # max - min overflows in torchao
            continue
        tensor, block = torch.from_numpy(x), _block(scheme, x.shape)
        arguments: tuple[Any, ...] = (torch.uint8, 0, 15)
        scale, zero = primitives._choose_qparams_affine_tinygemm(
            tensor, primitives.MappingType.ASYMMETRIC, block, *arguments
        )
        codes = primitives._quantize_affine_tinygemm(tensor, block, scale, zero, *arguments)
        values = primitives._dequantize_affine_tinygemm(
            codes, block, scale, zero, torch.uint8, 0, 15
        )
        q = quantized(convention.ours, x)
        ours = Side(q.codes, q.dequantize(), {"scale": q.scales})
        yield ConformanceSample(
            name, x, ours, Side(numbers(codes), numbers(values), {"scale": scale.numpy()})
        )


def float8(convention: Convention) -> Iterator[ConformanceSample]:
    scheme = Scheme.parse(convention.ours)
    dtype = torch.float8_e4m3fn if scheme.format == "e4m3" else torch.float8_e5m2
    zero_row = convention.name == "e4m3-zero-row"
    for name, x in data.matrices().items():
        if (name == "zero groups") != zero_row and isinstance(scheme.granularity, PerRow):
            continue
        tensor = torch.from_numpy(x)
        scale = primitives._choose_scale_float8(tensor, list(_block(scheme, x.shape)), dtype)
        codes = primitives._quantize_affine_float8(tensor, scale, dtype)
        values = primitives._dequantize_affine_float8(codes, scale)
        theirs = Side(codes.view(torch.uint8).numpy(), numbers(values), {"scale": scale.numpy()})
        yield ConformanceSample(name, x, side_of(quantized(convention.ours, x)), theirs)


def nf4_levels(convention: Convention) -> Iterator[ConformanceSample]:
    from qtui_core.quant.codebook import LEVELS

    ours = LEVELS[Scheme.parse(convention.ours).format]
    theirs = _nf4(torch.from_numpy(data.matrices()["normal"])).nf4.float().numpy()
    yield ConformanceSample("16 levels", ours, as_codes(ours), as_codes(theirs))


def nf4(convention: Convention) -> Iterator[ConformanceSample]:
    for name in ("normal", "ties", "one sided"):
        x = data.matrices()[name]
        q = quantized(convention.ours, x)
        tensor = _nf4(torch.from_numpy(x))
        theirs = Side(numbers(tensor.quantized_data), numbers(tensor.get_original_weight()))
        yield ConformanceSample(name, x, Side(q.codes, q.dequantize()), theirs)


def _nf4(x: torch.Tensor) -> Any:
    from torchao.quantization.quantize_.workflows.nf4 import nf4_tensor

    return nf4_tensor.to_nf4(x, 64, 64)


def map_of_optimizer_states(convention: Convention) -> Iterator[ConformanceSample]:
    from torchao.optim.quant_utils import create_dynamic_map

    ours, theirs = dynamic_map(), np.array(create_dynamic_map(True), np.float32)
    yield ConformanceSample("256 levels", ours, as_codes(ours), as_codes(theirs))


def optimizer_states(convention: Convention) -> Iterator[ConformanceSample]:
    """Scaled optimizer states: every level of the map, and every point half way between two
    levels."""
    from torchao.optim.quant_utils import quantize_8bit_with_qmap

    table = dynamic_map()
    ties = (table[:-1] + table[1:]) / np.float32(2)
    x = np.concatenate([table, ties])
    theirs = numbers(quantize_8bit_with_qmap(torch.from_numpy(x), torch.from_numpy(table.copy())))
    ours = np.searchsorted(ties, x).astype(np.uint8)
    yield ConformanceSample(
        "levels and ties", x, Side(ours, table[ours]), Side(theirs, table[theirs])
    )


def ternary(convention: Convention) -> Iterator[ConformanceSample]:
    """Whole numbers, whose mean does not depend on the order in which they are added."""
    x = np.rint(data.matrices()["normal"] * 8)
    yield _bitnet(convention, "whole numbers", np.ascontiguousarray(x, np.float32))


def ternary_mean(convention: Convention) -> Iterator[ConformanceSample]:
    for name in ("normal", "mixed magnitudes", "tiny"):
        yield _bitnet(convention, name, data.matrices()[name])


def activations(convention: Convention) -> Iterator[ConformanceSample]:
    from torchao.prototype.quantized_training.int8 import quantize_int8_rowwise

    for name in ("normal", "ties", "one sided", "mixed magnitudes"):
        x = data.matrices()[name]
        codes, scale = quantize_int8_rowwise(torch.from_numpy(x))
        values = numbers(codes).astype(np.float32) * numbers(scale)[:, None]
        theirs = Side(numbers(codes), values, {"scale": numbers(scale)})
        yield ConformanceSample(name, x, side_of(quantized(convention.ours, x)), theirs)


def stochastic(convention: Convention) -> Iterator[ConformanceSample]:
    """Both sides get the same draw; qtui counts it from the other end (0xFFFF - draw)."""
    from torchao.optim.quant_utils import _fp32_to_bf16_sr

    fmt, rounding, saturate = split_cast(convention.ours)
    x = data.between_16_bits()
    x = np.ascontiguousarray(x[np.abs(x) < 1e38])
    torch.manual_seed(1)
    draw = torch.randint(0, 1 << 16, x.shape, dtype=torch.int32).numpy()
    torch.manual_seed(1)
    theirs = _fp32_to_bf16_sr(torch.from_numpy(x)).view(torch.int16).numpy().view(np.uint16)
    bits = (0xFFFF - draw).astype(np.uint16)
    ours = encode_array(fmt, x, rounding, saturate, bits, 16)
    sides = [Side(codes, decode_array(fmt, codes)) for codes in (ours, theirs)]
    yield ConformanceSample("ties", x, *sides)


def granularities(convention: Convention) -> Iterator[ConformanceSample]:
    """The block of a matrix that shares a scale, as each side gives it."""
    from torchao.quantization.granularity import PerAxis
    from torchao.quantization.granularity import PerRow as TheirPerRow
    from torchao.quantization.utils import get_block_size

    shape = (48, 256)
    theirs = TheirPerRow() if convention.name == "per-row" else PerAxis(0)
    sizes = [np.array(_block(Scheme.parse(convention.ours), shape), np.float32),
             np.array(get_block_size(shape, theirs), np.float32)]  # fmt: skip
    ours, other = (Side(size.astype(np.int64), size) for size in sizes)
    yield ConformanceSample("block size", sizes[0], ours, other)


def _bitnet(convention: Convention, name: str, x: Array) -> ConformanceSample:
    from torchao.prototype.quantized_training import bitnet

    tensor = torch.from_numpy(x)
    scale = bitnet.get_bitnet_scale(tensor)
    codes = numbers(bitnet.quantize_bitnet_weight(tensor, scale))
    theirs = Side(codes, codes.astype(np.float32) * numbers(scale), {"scale": numbers(scale)})
    return ConformanceSample(name, x, side_of(quantized(convention.ours, x)), theirs)


def zero_rows_become_nan() -> tuple[bool, str]:
    x = torch.ones(2, 64)
    x[1] = 0
    scale = primitives._choose_scale_float8(x, [1, 64])
    values = primitives._dequantize_affine_float8(
        primitives._quantize_affine_float8(x, scale), scale
    )
    count = int(torch.isnan(values[1]).sum())
    return count > 0, f"{count} of 64 zeros became NaN"


_MX_ELEMENTS: dict[str, Any] = {
    "mxfp8-e4m3": torch.float8_e4m3fn,
    "mxfp8-e5m2": torch.float8_e5m2,
    "mxfp6-e3m2": "fp6_e3m2",
    "mxfp6-e2m3": "fp6_e2m3",
    "mxfp4": "float4_e2m1fn_x2",
}


def microscaling(convention: Convention) -> Iterator[ConformanceSample]:
    from torchao.prototype.mx_formats import mx_tensor

    scheme = Scheme.parse(convention.ours)
    mode = mx_tensor.ScaleCalculationMode[scheme.scale_rule.upper()]
    element = _MX_ELEMENTS[scheme.format]
    if scheme.format == "mxfp4":
        element = getattr(torch, element)
    for name, x in data.matrices().items():
        scale, raw = mx_tensor.to_mx(torch.from_numpy(x), element, 32, mode)
        values = mx_tensor.to_dtype(raw, scale, element, 32, torch.float32)
        codes = _unpack_low_first(raw) if scheme.format == "mxfp4" else raw.view(torch.uint8)
        stored = decode_array(get_format("e8m0"), scale.view(torch.uint8).numpy(), np.float32)
        theirs = Side(numbers(codes), numbers(values), {"scale": stored})
        yield ConformanceSample(name, x, side_of(quantized(convention.ours, x)), theirs)


def nvfp4(convention: Convention) -> Iterator[ConformanceSample]:
    from torchao.prototype.mx_formats import nvfp4_tensor

    for name, x in data.matrices().items():
        tensor = torch.from_numpy(x)
        whole = nvfp4_tensor.per_tensor_amax_to_scale(tensor.abs().max())
        result = nvfp4_tensor.NVFP4Tensor.to_nvfp4(tensor, per_tensor_scale=whole)
        values = result.dequantize(torch.float32)
        codes = _unpack_low_first(result.qdata)
        q = quantized(convention.ours, x)
        assert q.scale_codes is not None
        ours = Side(q.codes, q.dequantize(), {"scale": q.scale_codes})
        stored = {"scale": result.scale.view(torch.uint8).numpy()}
        yield ConformanceSample(name, x, ours, Side(numbers(codes), numbers(values), stored))


def _unpack_low_first(packed: torch.Tensor) -> torch.Tensor:
    packed = packed.view(torch.uint8)
    return torch.stack([packed & 15, packed >> 4], dim=-1).reshape(packed.shape[0], -1)
