"""What a quantized tensor costs, scales and zero points counted. Needs no values."""

from __future__ import annotations

import math

from qtui_core.quant.granularity import PerModel
from qtui_core.quant.layout import scale_shape
from qtui_core.quant.scheme import NESTED_BLOCK, Scheme

SCALE_BITS = 32
NESTED_CODE_BITS = 8


def quantized_bytes(scheme: Scheme, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of `shape` under `scheme`.

    Codes are counted packed at their width; a scale is 32 bits; a zero point is as wide as a
    code; double quantization stores 8 bits a scale, 32 for every 256 of them and 32 for the
    offset. A scale of the whole model belongs to no tensor and is not counted here.
    """
    count = math.prod(shape)
    total = _to_bytes(count * scheme.bits)
    scales = 0 if isinstance(scheme.granularity, PerModel) else _scale_count(scheme, shape)
    if scheme.double_quantization:
        offset_bits = SCALE_BITS if scales else 0
        nested_bits = -(-scales // NESTED_BLOCK) * SCALE_BITS
        return total + _to_bytes(scales * NESTED_CODE_BITS + nested_bits + offset_bits)
    total += _to_bytes(scales * SCALE_BITS)
    if not scheme.symmetric:
        total += _to_bytes(scales * scheme.bits)
    return total


def bits_per_parameter(scheme: Scheme, shape: tuple[int, ...]) -> float:
    """Bits of storage for each element, everything that `quantized_bytes` counts; the bits
    of a code for an empty tensor."""
    count = math.prod(shape)
    if count == 0:
        return float(scheme.bits)
    return 8 * quantized_bytes(scheme, shape) / count


def _scale_count(scheme: Scheme, shape: tuple[int, ...]) -> int:
    return math.prod(scale_shape(scheme.granularity, shape))


def _to_bytes(bits: int) -> int:
    return -(-bits // 8)
