"""What a quantized tensor costs: where its bits go. Needs no values."""

from __future__ import annotations

import math
from functools import lru_cache

from qtui_core.answers import BitBudget, BitPart
from qtui_core.quant.layout import matrix_shape, scale_shape
from qtui_core.schemes.granularity import PerModel
from qtui_core.schemes.scheme import Family, Scheme

SCALE_BITS = 32
NESTED_CODE_BITS = 8
#: An element of a column that is kept, and the place of the column.
KEPT_BITS = 16
COLUMN_INDEX_BITS = 32
#: Of the scales of blocks that are small floats themselves: E8M0 and E4M3.
SMALL_SCALE_BITS = {Family.MICROSCALING: 8, Family.TWO_LEVEL: 8}


@lru_cache(4096)  # the tensors of a model have few shapes
def bit_budget(scheme: Scheme, shape: tuple[int, ...], outlier_columns: int = 0) -> BitBudget:
    """What a tensor of `shape` takes under `scheme`, with so many columns kept in 16 bits.

    Codes are packed at their width; a scale is 32 bits, or 8 in the mx formats and in nvfp4,
    which has one of 32 for the tensor; a zero point is as wide as a code, or 32 bits where it is
    a float; a kept column has 16 bits an element instead of a code, and 32 for its index. Double
    quantization stores 8 bits a scale, 32 for every nested block of them and 32 for the offset.
    A scale of the whole model belongs to no tensor and is not counted here.
    """
    kept = outlier_columns * matrix_shape(shape)[0]
    codes = BitPart("codes", math.prod(shape) - kept, scheme.bits)
    scales = math.prod(scale_shape(scheme.granularity, shape))
    if isinstance(scheme.granularity, PerModel):
        scales = 0
    if scheme.double_quantization:
        parts = [
            BitPart("nested codes", scales, NESTED_CODE_BITS),
            BitPart("nested constants", -(-scales // scheme.nested_block), SCALE_BITS),
            BitPart("offset", 1 if scales else 0, SCALE_BITS),
        ]
    else:
        parts = [BitPart("scales", scales, SMALL_SCALE_BITS.get(scheme.family, SCALE_BITS))]
        if scheme.family is Family.TWO_LEVEL:
            parts.append(BitPart("tensor scale", 1 if scales else 0, SCALE_BITS))
        if not scheme.symmetric:
            bits = SCALE_BITS if scheme.float_zero_point else scheme.bits
            parts.append(BitPart("zero points", scales, bits))
        parts.append(BitPart("outlier columns", kept, KEPT_BITS))
        parts.append(BitPart("outlier indices", outlier_columns, COLUMN_INDEX_BITS))
    return BitBudget(scheme, shape, (codes, *(part for part in parts if part.count)))


def quantized_bytes(scheme: Scheme, shape: tuple[int, ...], outlier_columns: int = 0) -> int:
    """Bytes of a tensor of `shape` under `scheme`: the parts of its `bit_budget`. How many
    columns an outlier threshold keeps in 16 bits only a measurement tells."""
    return bit_budget(scheme, shape, outlier_columns).bytes


def bits_per_parameter(scheme: Scheme, shape: tuple[int, ...], outlier_columns: int = 0) -> float:
    """Bits of storage for each element, everything that `quantized_bytes` counts; the bits
    of a code for an empty tensor."""
    return float(bit_budget(scheme, shape, outlier_columns).bits_per_parameter)
