"""What a quantized tensor costs, scales and zero points counted. Needs no values."""

from __future__ import annotations

from qtui_core.quant.bit_budget import bit_budget
from qtui_core.schemes.scheme import Scheme


def quantized_bytes(scheme: Scheme, shape: tuple[int, ...], outlier_columns: int = 0) -> int:
    """Bytes of a tensor of `shape` under `scheme`: the parts of its `bit_budget`. How many
    columns an outlier threshold keeps in 16 bits only a measurement tells."""
    return bit_budget(scheme, shape, outlier_columns).bytes


def bits_per_parameter(scheme: Scheme, shape: tuple[int, ...], outlier_columns: int = 0) -> float:
    """Bits of storage for each element, everything that `quantized_bytes` counts; the bits
    of a code for an empty tensor."""
    return float(bit_budget(scheme, shape, outlier_columns).bits_per_parameter)
