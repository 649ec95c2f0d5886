"""Rounding and encoding of gfloat, Graphcore's reference implementation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import gfloat
import numpy as np
from gfloat import formats

from qtui_core.conformance import data
from qtui_core.conformance.checks.qtui_side import (
    Array,
    cast_sample,
    cast_samples,
    quantized,
    split_cast,
)
from qtui_core.conformance.compare import ConformanceSample, Side
from qtui_core.conformance.convention import Convention

_INFO = {
    "fp16": "binary16",
    "bf16": "bfloat16",
    "e4m3": "ocp_e4m3",
    "e5m2": "ocp_e5m2",
    "e3m2": "ocp_e3m2",
    "e2m3": "ocp_e2m3",
    "e2m1": "ocp_e2m1",
    "e8m0": "ocp_e8m0",
    "mxint8": "ocp_int8",
}
_MODES = {
    "nearest-even": gfloat.RoundMode.TiesToEven,
    "nearest-away": gfloat.RoundMode.TiesToAway,
    "toward-zero": gfloat.RoundMode.TowardZero,
    "up": gfloat.RoundMode.TowardPositive,
    "down": gfloat.RoundMode.TowardNegative,
}


def _codes(text: str, x: Array) -> Array:
    fmt, rounding, saturate = split_cast(text)
    info = getattr(formats, f"format_info_{_INFO[fmt.name]}")
    with np.errstate(all="ignore"):
        rounded = gfloat.round_ndarray(info, x, _MODES[str(rounding)], saturate)
        return gfloat.encode_ndarray(info, rounded)


def casts(convention: Convention) -> Iterator[ConformanceSample]:
    return cast_samples(convention, _codes, np.float64)


def modes(convention: Convention) -> Iterator[ConformanceSample]:
    """The other rounding modes, saturating and not."""
    fmt, rounding, _ = split_cast(convention.ours)
    x = data.every_bf16().astype(np.float64)
    for mode in (str(rounding), "toward-zero", "up", "down"):
        for limit in ("saturate", "nosat"):
            one = replace(convention, ours=f"encode {fmt.name} {mode} {limit}")
            yield cast_sample(one, f"{mode}, {limit}", x, _codes(one.ours, x))


_BLOCKS = {
    "mxfp4": "mxfp4_e2m1",
    "mxfp6-e3m2": "mxfp6_e3m2",
    "mxfp6-e2m3": "mxfp6_e2m3",
    "mxfp8-e4m3": "mxfp8_e4m3",
    "mxfp8-e5m2": "mxfp8_e5m2",
    "mxint8": "mxint8",
}


def microscaling(convention: Convention) -> Iterator[ConformanceSample]:
    """Blocks of 32, one at a time, as gfloat's functions take one block."""
    info = getattr(formats, f"format_info_{_BLOCKS[convention.ours]}")
    for name, whole in data.matrices().items():
        x = np.ascontiguousarray(whole[:13, :64])
        scales, codes, values = [], [], []
        for block in x.astype(np.float64).reshape(-1, 32):
            scale = gfloat.compute_scale_amax(info.etype.emax, block)
            first, *rest = gfloat.encode_block(info, scale, block / scale)
            scales.append(first)
            codes.append(rest)
            values.append(list(gfloat.decode_block(info, [first, *rest])))
        q = quantized(convention.ours, x)
        assert q.scale_codes is not None
        ours = Side(q.codes.view(np.uint8), q.dequantize(), {"scale": q.scale_codes})
        theirs = Side(np.array(codes), np.array(values), {"scale": np.array(scales)})
        yield ConformanceSample(name, x, ours, theirs)


def rounds_below_a_tie_away() -> tuple[bool, str]:
    info = formats.format_info_ocp_e2m1
    became = gfloat.round_float(info, 0.24999999999999997, _MODES["nearest-away"], True)
    return became == 0.5, f"0.24999999999999997 became {became:g}"
