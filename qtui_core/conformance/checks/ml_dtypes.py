"""Casts of ml_dtypes, the number types of JAX and TensorFlow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from qtui_core.conformance import data
from qtui_core.conformance.checks.qtui_side import Array, cast_samples, split_cast
from qtui_core.conformance.compare import ConformanceSample
from qtui_core.conformance.convention import Convention

#: Types are looked up by name, since older versions have fewer of them.
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


def _codes(text: str, x: Array) -> Array:
    name = split_cast(text)[0].name
    dtype: Any = getattr(ml_dtypes, _DTYPES[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow is part of the comparison
        cast = np.ascontiguousarray(x).astype(dtype)
    codes: Any = cast.view(np.uint16 if cast.dtype.itemsize == 2 else np.uint8)
    return codes & 15 if name == "int4" else codes


def casts(convention: Convention) -> Iterator[ConformanceSample]:
    return cast_samples(convention, _codes)


def wraps() -> tuple[bool, str]:
    became = int(np.array([8.0], np.float32).astype(ml_dtypes.int4).astype(np.int64)[0])
    return became == -8, f"8.0 became {became}"


def loses_nan() -> tuple[bool, str]:
    became = data.NUMBERS["NaN"]().astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return not np.isnan(became).any(), f"NaN became {became[0]:g}"
