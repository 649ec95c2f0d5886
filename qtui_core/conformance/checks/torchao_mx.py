"""Microscaling and NVFP4 of torchao, which are prototypes there. They are imported when they are
checked, so that in a version without them only these checks fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from qtui_core.conformance import data
from qtui_core.conformance.checks.our_side import numbers, quantized, side_of
from qtui_core.conformance.compare import ConformanceSample, Side
from qtui_core.conformance.convention import Convention
from qtui_core.formats import get_format
from qtui_core.formats.array import decode_array
from qtui_core.quant import Scheme

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
