"""Casts of torch on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from qtui_core.conformance.checks.qtui_side import Array, cast_samples, split_cast
from qtui_core.conformance.compare import ConformanceSample
from qtui_core.conformance.convention import Convention

_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "e8m0": torch.float8_e8m0fnu,
}


def _codes(text: str, x: Array) -> Array:
    """The codes of `x` cast to torch's type of the format in `text`."""
    dtype = _DTYPES[split_cast(text)[0].name]
    cast = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
    codes = cast.view(torch.int16 if dtype.itemsize == 2 else torch.uint8).numpy()
    return codes.view(np.uint16 if dtype.itemsize == 2 else np.uint8)


def casts(convention: Convention) -> Iterator[ConformanceSample]:
    return cast_samples(convention, _codes)


def saturates_infinities() -> tuple[bool, str]:
    became = torch.tensor([float("inf")]).to(torch.float8_e4m3fn).float().item()
    return became == 448.0, f"infinity became {became:g}"


def overflows_to_nan() -> tuple[bool, str]:
    became = torch.tensor([1000.0]).to(torch.float8_e4m3fn).float().item()
    return became != became, f"1000 became {became:g}"
