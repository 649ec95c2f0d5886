"""Limits, compared with the published ones and with tables of other libraries."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from every import over
from formats_oracle import ML_DTYPES, SMALL_FLOATS, name_of
from lazy_imports import LazyImport

import qtui_core.formats as qf
from qtui_core.errors import UsageError
from qtui_core.formats.catalog import E4M3_IEEE, E4M3B11FNUZ

torch = LazyImport("torch")


@over(
    ("fmt", "largest", "min_normal", "min_subnormal"),
    [
        (qf.FP16, 65504, Fraction(1, 2**14), Fraction(1, 2**24)),
        (qf.E4M3, 448, Fraction(1, 2**6), Fraction(1, 2**9)),
        (qf.E5M2, 57344, Fraction(1, 2**14), Fraction(1, 2**16)),
        (E4M3_IEEE, 240, Fraction(1, 2**6), Fraction(1, 2**9)),
        (qf.E4M3FNUZ, 240, Fraction(1, 2**7), Fraction(1, 2**10)),
        (E4M3B11FNUZ, 30, Fraction(1, 2**10), Fraction(1, 2**13)),
        (qf.E3M2, 28, Fraction(1, 4), Fraction(1, 16)),
        (qf.E2M3, Fraction(15, 2), 1, Fraction(1, 8)),
        (qf.E2M1, 6, 1, Fraction(1, 2)),
        (qf.E3M0, 16, Fraction(1, 4), None),
        (qf.E8M0, 2**127, Fraction(1, 2**127), None),
    ],
)
def test_limits_are_the_published_ones(fmt, largest, min_normal, min_subnormal) -> None:
    assert fmt.max == largest
    assert fmt.min_normal == min_normal
    assert fmt.min_subnormal == min_subnormal
    assert fmt.min_positive == (min_subnormal or min_normal)


@over("name", [*ML_DTYPES, "fp32", "fp64"])
def test_limits_agree_with_numpy_and_ml_dtypes(name: str) -> None:
    fmt = qf.FORMATS[name]
    assert isinstance(fmt, qf.FloatFormat)
    info = ml_dtypes.finfo({"fp32": np.float32, "fp64": np.float64, **ML_DTYPES}[name])
    assert float(info.max) == fmt.max
    assert float(info.smallest_normal) == fmt.min_normal
    assert float(info.smallest_subnormal) == fmt.min_positive
    assert float(info.eps) == fmt.epsilon
    assert info.bits == fmt.bits
    assert (info.nexp, info.nmant) == (fmt.exponent_bits, fmt.mantissa_bits)


@over("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "bfloat16", "float64"])
def test_limits_agree_with_torch(dtype: str) -> None:
    info, fmt = torch.finfo(getattr(torch, dtype)), qf.get_format(dtype)
    assert (info.max, info.min, info.eps) == (fmt.max, fmt.min, fmt.epsilon)
    assert info.smallest_normal == fmt.min_normal


def test_special_values_of_each_format() -> None:
    assert [f.name for f in qf.FORMATS.values() if f.has_infinity] == [
        "fp64", "fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3-ieee", "e3m4",
    ]  # fmt: skip
    without_nan = [f.name for f in qf.FORMATS.values() if not f.has_nan]
    assert without_nan == ["e3m2", "e2m3", "e2m1", "e3m0", "int16", "int8", "int4", "mxint8"]
    assert [f.name for f in qf.FORMATS.values() if not f.has_zero] == ["e8m0"]
    assert not any(f.has_negative_zero for f in (qf.E4M3FNUZ, qf.E8M0, qf.INT8))
    assert qf.E4M3.has_negative_zero
    assert qf.E2M1.has_negative_zero


def test_facts_of_single_formats() -> None:
    assert all(f.saturates != f.has_infinity for f in qf.FORMATS.values())
    assert (qf.TF32.bits, qf.TF32.storage_bits, qf.TF32.code_count) == (19, 32, 1 << 19)
    assert qf.TF32.word(0b0_01111111_0000000000) == 0x3F800000
    assert qf.TF32.hardware_rounding is qf.Rounding.NEAREST_AWAY
    ends = [(fmt.min, fmt.max) for fmt in (qf.INT16, qf.INT8, qf.INT4, qf.MXINT8)]
    assert ends == [(-32768, 32767), (-128, 127), (-8, 7), (-2, Fraction(127, 64))]
    digits = [fmt.decimal_digits for fmt in (qf.FP64, qf.FP32, qf.FP16, qf.BF16, qf.E4M3)]
    assert digits == [16.0, 7.2, 3.3, 2.4, 1.2]


@over("fmt", SMALL_FLOATS, ids=name_of)
def test_max_exponent_is_the_floor_of_log2_of_max(fmt: qf.FloatFormat) -> None:
    assert Fraction(2) ** fmt.max_exponent <= fmt.max < Fraction(2) ** (fmt.max_exponent + 1)


@over(
    ("make", "sentence"),
    [
        (lambda: qf.FloatFormat("x", "X", 4, 0, 7, qf.Specials.IEEE), "NaN from infinity"),
        (lambda: qf.FloatFormat("x", "X", 4, 3, 7, qf.Specials.FNUZ, signed=False), "-0 would be"),
        (lambda: qf.FloatFormat("x", "X", 4, 3, 7, qf.Specials.FINITE, signed=False), "need a NaN"),
        (lambda: qf.FloatFormat("x", "X", 0, 3, 7, qf.Specials.FN), "exponent field"),
        (lambda: qf.IntFormat("int1", "INT1", 1), "no room"),
    ],
)
def test_contradicting_fields_are_refused(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_formats_are_found_by_any_of_their_names() -> None:
    for name, fmt in qf.FORMATS.items():
        assert fmt.name == name
        assert qf.get_format(name.upper()) is fmt
    assert qf.get_format("float8_e4m3fn") is qf.E4M3
    assert qf.get_format(" bfloat16 ") is qf.BF16
    with pytest.raises(UsageError, match=r"no format 'fp7'.*fp64, fp32, .*mxint8\."):
        qf.get_format("fp7")
