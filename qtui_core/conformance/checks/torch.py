"""Casts of torch on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from qtui_core.conformance import data
from qtui_core.conformance.checks.ours import Array, cast_sample, representable, split_cast
from qtui_core.conformance.checks.registry import check, probe
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


def torch_codes(name: str, x: Array) -> Array:
    """The bytes of `x` cast to the torch type of that format."""
    dtype = _DTYPES[name]
    cast = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
    return cast.view(torch.int16 if dtype.itemsize == 2 else torch.uint8).numpy()


@check("torch.bf16", "torch.fp16", "torch.e4m3", "torch.e5m2", "torch.e4m3fnuz", "torch.e5m2fnuz")
def casts(convention: Convention) -> Iterator[ConformanceSample]:
    fmt = split_cast(convention.ours)[0]
    for name, x in (("every BF16", data.every_bf16()), ("ties", data.between_16_bits())):
        codes = torch_codes(fmt.name, x).view(np.uint16 if fmt.bits == 16 else np.uint8)
        yield cast_sample(convention, name, x, codes)


@check("torch.e8m0")
def scales(convention: Convention) -> Iterator[ConformanceSample]:
    fmt = split_cast(convention.ours)[0]
    x = representable(fmt, data.every_bf16())
    normal = x[x >= 2.0**-126]
    yield cast_sample(convention, "positive BF16", normal, torch_codes("e8m0", normal))


@check("torch.e8m0-smallest")
def smallest_scales(convention: Convention) -> Iterator[ConformanceSample]:
    x = data.every_bf16()
    small = np.ascontiguousarray(x[(x > 0) & (x < 2.0**-126)])
    yield cast_sample(convention, "subnormal BF16", small, torch_codes("e8m0", small))


@check("torch.e8m0-zero")
def zero_scale(convention: Convention) -> Iterator[ConformanceSample]:
    zero = np.zeros(1, np.float32)
    yield cast_sample(convention, "zero", zero, torch_codes("e8m0", zero))


@check("torch.e5m2-nan")
def nan(convention: Convention) -> Iterator[ConformanceSample]:
    x = np.array([np.nan, -np.nan], np.float32)
    yield cast_sample(convention, "NaN", x, torch_codes("e5m2", x))


@probe("torch.e4m3-infinity")
def saturates_infinities() -> tuple[bool, str]:
    became = torch.tensor([float("inf")]).to(torch.float8_e4m3fn).float().item()
    return became == 448.0, f"infinity became {became:g}"


@probe("torch.e4m3-overflow")
def overflows_to_nan() -> tuple[bool, str]:
    became = torch.tensor([1000.0]).to(torch.float8_e4m3fn).float().item()
    return became != became, f"1000 became {became:g}"
