"""The array functions: codes and values of scalar.py, in any shape."""

import subprocess
import sys

import numpy as np
from every import over
from formats_oracle import name_of

from qtui_core.formats import (
    BF16,
    E4M3,
    FORMATS,
    FP32,
    FP64,
    INT4,
    TF32,
    Rounding,
    decode,
    encode,
)
from qtui_core.formats.array import code_dtype, decode_array, encode_array


@over("rounding", list(Rounding))
@over("fmt", FORMATS.values(), ids=name_of)
def test_codes_and_values_are_those_of_scalars(fmt, rounding) -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, 60, dtype=np.uint32).view(np.float32).astype(np.float64)
    ends = np.array([fmt.max, fmt.min, fmt.min_positive], np.float64)
    values = np.concatenate([
        words[np.isfinite(words)], rng.standard_normal(30) * 3, [0.0, -0.0, 0.5, -1.5, 1e300],
        *(ends * factor for factor in (0.5, 0.99, 1, -1)), 1.01 * ends[:2] if fmt.bits < 64 else [],
        [np.inf, -np.inf], [np.nan, -np.nan] if fmt.has_nan else [],
    ])  # fmt: skip
    bits = rng.integers(0, 1 << 9, values.shape)
    for saturate in (True, False):
        x = values if saturate or fmt.has_nan else values[np.isfinite(values)]
        codes = encode_array(fmt, x, rounding, saturate, bits[: x.size], 9)
        one_by_one = [
            encode(fmt, value, rounding, saturate, int(draw), 9)
            for value, draw in zip(x.tolist(), bits, strict=False)
        ]
        assert codes.tolist() == one_by_one
        read = [decode(fmt, code).to_float() for code in one_by_one]
        assert np.array_equal(decode_array(fmt, codes), read, equal_nan=True)


def test_codes_take_the_smallest_unsigned_type_and_the_shape() -> None:
    for fmt, bytes in ((INT4, 1), (E4M3, 1), (BF16, 2), (TF32, 4), (FP32, 4), (FP64, 8)):
        for shape in ((), (0,), (3, 0, 2), (2, 3, 4)):
            codes = encode_array(fmt, np.zeros(shape, np.float32))
            assert (codes.shape, codes.dtype.itemsize) == (shape, bytes)
            assert codes.dtype == code_dtype(fmt)
            assert decode_array(fmt, codes, np.float32).shape == shape


def test_no_warning_is_raised_for_special_values() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3e38, 1e-45, 0], np.float32)
    before = values.tobytes()
    with np.errstate(all="raise"):
        for fmt in FORMATS.values():
            decode_array(fmt, encode_array(fmt, values if fmt.has_nan else values[1:]), np.float32)
    assert values.tobytes() == before


def test_the_scalar_verbs_need_no_numpy() -> None:
    program = (
        "import sys; from qtui_core.formats import E4M3, encode, describe_value, summarize; "
        "encode(E4M3, 0.1); summarize(describe_value(0.1)); "
        "assert not {'numpy', 'torch', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
