"""Rounding and encoding of gfloat, Graphcore's reference implementation."""

from __future__ import annotations

from collections.abc import Iterator

import gfloat
import numpy as np
from gfloat import formats

from qtui_core.conformance import data
from qtui_core.conformance.checks.ours import Array, cast_sample, finite_only, split_cast
from qtui_core.conformance.checks.registry import check, probe
from qtui_core.conformance.compare import Sample
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


def their_codes(text: str, x: Array) -> Array:
    fmt, rounding, saturate = split_cast(text)
    info = getattr(formats, f"format_info_{_INFO[fmt.name]}")
    with np.errstate(all="ignore"):
        rounded = gfloat.round_ndarray(info, x, _MODES[str(rounding)], saturate)
        return gfloat.encode_ndarray(info, rounded)


def _samples(convention: Convention, text: str, x: Array, name: str) -> Iterator[Sample]:
    part = x.astype(np.float64)
    codes = their_codes(text, part)
    like = type(convention)(convention.id, "", text, "", convention.expected)
    yield cast_sample(like, name, part, codes)


@check(*(f"gfloat.{name}" for name in _INFO if name not in ("e8m0", "mxint8")))
def casts(convention: Convention) -> Iterator[Sample]:
    for name, x in (("every BF16", data.every_bf16()), ("ties", data.between_16_bits())):
        yield from _samples(convention, convention.ours, x, name)


@check("gfloat.mxint8")
def integers(convention: Convention) -> Iterator[Sample]:
    x = finite_only(data.every_bf16())
    yield from _samples(convention, convention.ours, x[np.abs(x) < 4], "BF16 below 4")


@check("gfloat.e8m0")
def scales(convention: Convention) -> Iterator[Sample]:
    x = finite_only(data.every_bf16())
    yield from _samples(convention, convention.ours, x[x >= 2.0**-126], "positive BF16")


@check("gfloat.nan")
def overflow(convention: Convention) -> Iterator[Sample]:
    yield from _samples(convention, convention.ours, data.every_bf16(), "every BF16")


@check("gfloat.modes")
def modes(convention: Convention) -> Iterator[Sample]:
    fmt, rounding, _ = split_cast(convention.ours)
    for mode in (str(rounding), "toward-zero", "up", "down"):
        for limit in ("saturate", "nosat"):
            text = f"encode {fmt.name} {mode} {limit}"
            yield from _samples(convention, text, data.every_bf16(), f"{mode}, {limit}")


@probe("gfloat.below-a-tie")
def rounds_below_a_tie_away() -> tuple[bool, str]:
    info = formats.format_info_ocp_e2m1
    became = gfloat.round_float(info, 0.24999999999999997, _MODES["nearest-away"], True)
    return became == 0.5, f"0.24999999999999997 became {became:g}"
