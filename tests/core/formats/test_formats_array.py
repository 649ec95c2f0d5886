"""The array functions: codes and values of scalar.py, in any shape."""

import numpy as np
from every import over
from formats_oracle import name_of

import qtui_core.formats as qf
from qtui_core.formats.array import code_dtype, decode_array, encode_array

FLOATS = [fmt for fmt in qf.FORMATS.values() if isinstance(fmt, qf.FloatFormat)]


@over("rounding", list(qf.Rounding))
@over("fmt", FLOATS, ids=name_of)
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
        draw = (bits, 9) if rounding is qf.Rounding.STOCHASTIC else None
        codes = encode_array(fmt, values, rounding, saturate, draw)
        one_by_one = [
            qf.encode(fmt, value, rounding, saturate, int(draw), 9)
            for value, draw in zip(values.tolist(), bits, strict=True)
        ]
        assert codes.tolist() == one_by_one
        read = [qf.decode(fmt, code).to_float() for code in one_by_one]
        assert np.array_equal(decode_array(fmt, codes), read, equal_nan=True)


def test_codes_take_the_smallest_unsigned_type_and_the_shape() -> None:
    widths = {"e4m3": 1, "bf16": 2, "tf32": 4, "fp32": 4, "fp64": 8}
    for name, width in widths.items():
        fmt = qf.FORMATS[name]
        for shape in ((), (0,), (3, 0, 2), (2, 3, 4)):
            codes = encode_array(fmt, np.zeros(shape, np.float32))
            assert (codes.shape, codes.dtype.itemsize) == (shape, width)
            assert codes.dtype == code_dtype(fmt)
            assert decode_array(fmt, codes, np.float32).shape == shape


def test_no_warning_is_raised_for_special_values() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3e38, 1e-45, 0], np.float32)
    before = values.tobytes()
    with np.errstate(all="raise"):
        for fmt in FLOATS:
            decode_array(fmt, encode_array(fmt, values), np.float32)
    assert values.tobytes() == before
