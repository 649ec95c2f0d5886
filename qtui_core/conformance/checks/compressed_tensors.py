"""compressed-tensors, the format of the checkpoints of vLLM and llm-compressor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle import forward
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from qtui_core.conformance.checks.sides import check, numbers, quantized
from qtui_core.conformance.compare import Array, Side
from qtui_core.formats import float_format
from qtui_core.formats.array import encode_array
from qtui_core.schemes.granularity import PerGroup, PerRow
from qtui_core.schemes.scheme import SCHEME_FORMATS, Family, Scheme


def _arguments(scheme: Scheme) -> QuantizationArgs:
    """The scheme as quantization arguments of this library."""
    given: dict[str, Any] = {
        "num_bits": scheme.bits,
        "type": "int" if scheme.family is Family.INTEGER else "float",
        "symmetric": scheme.symmetric,
        "strategy": "tensor",
    }
    match scheme.granularity:
        case PerGroup(size):
            given |= {"strategy": "group", "group_size": size}
        case PerRow():
            given |= {"strategy": "channel"}
    if scheme.family is Family.MICROSCALING:
        given |= {"scale_dtype": torch.uint8, "zp_dtype": torch.uint8}
    if scheme.family is Family.TWO_LEVEL:
        given |= {"strategy": "tensor_group", "scale_dtype": torch.float8_e4m3fn}
    return QuantizationArgs(**given)


def _extents(x: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    match scheme.granularity:
        case PerGroup(size):
            groups = x.reshape(x.shape[0], -1, size)
            return groups.amin(-1), groups.amax(-1)
        case PerRow():
            return x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        case _:
            return x.min(), x.max()


@check()
def schemes(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    tensor, arguments = torch.from_numpy(x), _arguments(scheme)
    two_level = scheme.family is Family.TWO_LEVEL
    whole = generate_gparam(tensor.min(), tensor.max()) if two_level else None
    scale, zero = calculate_qparams(*_extents(tensor, scheme), arguments, whole)
    codes = forward.quantize(tensor, scale, zero, arguments, global_scale=whole)
    values = numbers(
        forward.dequantize(codes, scale, zero, arguments, dtype=torch.float32, global_scale=whole)
    )
    q = quantized(scheme, x)
    if scheme.family is not Family.INTEGER:
        element = float_format(SCHEME_FORMATS[scheme.format].element or "")
        stored = encode_array(element, numbers(codes).astype(np.float32))
        return Side(q.codes, q.dequantize()), Side(stored, values)
    shift = 0 if scheme.symmetric else 2 ** (scheme.bits - 1)
    kept: dict[str, Array] = {"scale": q.scales}
    theirs = {"scale": numbers(scale)}
    if q.zero_points is not None:
        kept["zero point"] = q.zero_points
        theirs["zero point"] = numbers(zero).astype(np.int16) + shift
    stored = numbers(codes).astype(np.int16) + shift
    return Side(q.codes, q.dequantize(), kept), Side(stored, values, theirs)


@check("normal")
def packing(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    """Eight 4-bit codes, less 8, in an int32, the first in the lowest bits."""
    q = quantized(scheme, x)
    words = numbers(pack_to_int32(torch.from_numpy(q.codes), 4)).view(np.uint32)
    codes = (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    codes = codes.reshape(x.shape).astype(np.int8) - 8
    return Side(q.codes, q.codes.astype(np.float32)), Side(codes, codes.astype(np.float32))


@check("rows of 100", refuses=(ValueError,))
def short_groups(scheme: Scheme, x: Array) -> Side:
    scale = torch.ones(x.shape[0], 2)
    codes = forward.quantize(torch.from_numpy(x), scale, scale * 0, _arguments(scheme))
    return Side(numbers(codes), numbers(codes))
