"""The array functions besides their codes: shapes, dtypes, chunks, refused input."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from every import over
from formats_oracle import INTEGERS, SMALL_FLOATS, name_of, probes

from qtui_core.formats import (
    BF16,
    E2M1,
    E4M3,
    FORMATS,
    FP16,
    FP32,
    FP64,
    INT4,
    TF32,
    Rounding,
    encode,
)
from qtui_core.formats.array import CHUNK, code_dtype, decode_array, encode_array, round_array


def test_codes_take_the_smallest_unsigned_type() -> None:
    widths = {f.name: code_dtype(f).itemsize for f in FORMATS.values()}
    assert widths["int4"] == widths["e4m3"] == 1
    assert widths["bf16"] == widths["int16"] == 2
    assert widths["tf32"] == widths["fp32"] == 4
    assert widths["fp64"] == 8


@over("shape", [(), (0,), (5,), (3, 0, 2), (2, 3, 4), (CHUNK + 1,)])
@over("fmt", [E4M3, BF16, FP16, FP64, INT4], ids=name_of)
def test_shapes_are_kept_across_chunks(fmt, shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    values = np.linspace(-7, 7, size, dtype=np.float32).reshape(shape)
    codes = encode_array(fmt, values)
    assert (codes.shape, codes.dtype) == (shape, code_dtype(fmt))
    rounded = round_array(fmt, values)
    assert (rounded.shape, rounded.dtype) == (shape, np.float32)
    assert np.array_equal(rounded, decode_array(fmt, codes, np.float32))
    for index in range(0, size, max(1, size // 7)):
        assert codes.flat[index] == encode(fmt, values.flat[index])


def test_any_layout_is_read() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (values.T, values[::2, ::-1], values[:, 1:4]):
        assert np.array_equal(round_array(E2M1, view), round_array(E2M1, view.copy()))
        assert np.array_equal(encode_array(INT4, view), encode_array(INT4, view.copy()))


def test_float16_is_read_exactly_and_rounds_to_float32() -> None:
    values = np.array([0.1, 3.3, 65504], np.float16)
    assert np.array_equal(encode_array(E4M3, values), encode_array(E4M3, values.astype("f4")))
    assert round_array(BF16, values).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.int64, np.complex64, np.longdouble, np.bool_])
def test_other_types_are_refused_instead_of_rounded_twice(dtype: type) -> None:
    with pytest.raises(TypeError, match="must be float16, float32 or float64"):
        encode_array(E4M3, np.ones(3, dtype))


@over("fmt", [*SMALL_FLOATS, *INTEGERS, TF32, FP32, FP64], ids=name_of)
def test_both_float_types_give_the_same_codes(fmt) -> None:
    values = np.random.default_rng(0).standard_normal(5000).astype(np.float32) * 50
    for rounding in (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY, Rounding.UP):
        assert np.array_equal(
            encode_array(fmt, values, rounding),
            encode_array(fmt, values.astype(np.float64), rounding),
        )


@over("fmt", [*SMALL_FLOATS, TF32], ids=name_of)
def test_rounding_twice_changes_nothing(fmt) -> None:
    values = probes(fmt, np.float32)[:4000]
    once = round_array(fmt, values)
    assert np.array_equal(round_array(fmt, once), once, equal_nan=True)


def test_the_input_is_left_alone() -> None:
    values = np.array([0.1, np.nan, -np.inf, 1e-40], np.float32)
    before = values.tobytes()
    for fmt in (E4M3, BF16, FP16, FP32, FP64):
        encode_array(fmt, values)
        round_array(fmt, values)
    assert values.tobytes() == before
    values.flags.writeable = False
    round_array(E4M3, values)


def test_no_warning_is_raised_for_special_values() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3e38, 1e-45, 0], np.float32)
    signalling = np.array([0x7F800001], np.uint32).view(np.float32)
    with np.errstate(all="raise"):
        for fmt in FORMATS.values():
            usable = values if fmt.has_nan else values[1:]
            for given in (usable, usable.astype(np.float64)):
                encode_array(fmt, given)
                round_array(fmt, given)
            if fmt.has_nan:
                encode_array(fmt, signalling)


def test_the_scalar_verbs_need_no_numpy() -> None:
    program = (
        "import sys; from qtui_core.formats import E4M3, round_value, describe_value, summarize; "
        "round_value(E4M3, 0.1); summarize(describe_value(0.1)); "
        "assert not {'numpy', 'torch', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
