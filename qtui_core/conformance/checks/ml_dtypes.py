"""Casts of ml_dtypes, the number types of JAX and TensorFlow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from qtui_core.conformance import data
from qtui_core.conformance.checks.ours import (
    Array,
    cast_sample,
    finite_only,
    representable,
    split_cast,
)
from qtui_core.conformance.checks.registry import check, probe
from qtui_core.conformance.compare import ConformanceSample
from qtui_core.conformance.convention import Convention

#: By name, since older versions have fewer of them.
_DTYPES = {
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3-ieee": "float8_e4m3",
    "e3m4": "float8_e3m4",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3b11fnuz": "float8_e4m3b11fnuz",
    "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn",
    "e2m1": "float4_e2m1fn",
    "e8m0": "float8_e8m0fnu",
    "int4": "int4",
}
_NAN = np.array([np.nan, -np.nan], np.float32)


def their_codes(name: str, x: Array) -> Array:
    dtype: Any = getattr(ml_dtypes, _DTYPES[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow, which is what is asked
        cast = np.ascontiguousarray(x).astype(dtype)
    return cast.view(np.uint16 if cast.dtype.itemsize == 2 else np.uint8)


@check(*(f"ml_dtypes.{name}" for name in _DTYPES if name not in ("e8m0", "int4")))
def casts(convention: Convention) -> Iterator[ConformanceSample]:
    name = split_cast(convention.ours)[0].name
    for what, x in (("every BF16", data.every_bf16()), ("ties", data.between_16_bits())):
        yield cast_sample(convention, what, x, their_codes(name, x))


@check("ml_dtypes.e8m0")
def scales(convention: Convention) -> Iterator[ConformanceSample]:
    fmt = split_cast(convention.ours)[0]
    x = representable(fmt, data.every_bf16())
    x = np.ascontiguousarray(x[x >= 2.0**-126])
    yield cast_sample(convention, "positive BF16", x, their_codes("e8m0", x))


@check("ml_dtypes.e8m0-smallest")
def smallest_scales(convention: Convention) -> Iterator[ConformanceSample]:
    x = data.every_bf16()
    x = np.ascontiguousarray(x[(x > 0) & (x < 2.0**-126)])
    yield cast_sample(convention, "subnormal BF16", x, their_codes("e8m0", x))


@check("ml_dtypes.e8m0-zero")
def zero_scale(convention: Convention) -> Iterator[ConformanceSample]:
    zero = np.zeros(1, np.float32)
    yield cast_sample(convention, "zero", zero, their_codes("e8m0", zero))


@check("ml_dtypes.e4m3-saturate")
def saturation(convention: Convention) -> Iterator[ConformanceSample]:
    x = data.every_bf16()
    yield cast_sample(convention, "every BF16", x, their_codes("e4m3", x))


@check("ml_dtypes.nan")
def nan(convention: Convention) -> Iterator[ConformanceSample]:
    yield cast_sample(convention, "NaN", _NAN, their_codes("e5m2", _NAN))


@check("ml_dtypes.int4", "ml_dtypes.int4-wraps")
def integers(convention: Convention) -> Iterator[ConformanceSample]:
    x = finite_only(data.every_bf16())
    x = np.ascontiguousarray(x[np.abs(x) < 64])
    codes = their_codes("int4", x) & 15
    yield cast_sample(convention, "BF16 below 64", x, codes)


@probe("ml_dtypes.int4-overflow")
def wraps() -> tuple[bool, str]:
    became = int(np.array([8.0], np.float32).astype(ml_dtypes.int4).astype(np.int64)[0])
    return became == -8, f"8.0 became {became}"


@probe("ml_dtypes.nan-to-zero")
def loses_nan() -> tuple[bool, str]:
    became = _NAN.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return not np.isnan(became).any(), f"NaN became {became[0]:g}"
