"""Small floats and casts, compared with the formats on arrays."""

import numpy as np
from every import over

from qtui_core.formats import get_format
from qtui_core.formats.array import decode_array, encode_array
from qtui_core.quant import Scheme, quantize

FORMATS = {name: get_format(name) for name in ("e4m3", "e5m2", "e2m1", "e3m2", "e2m3", "e3m0")}
CASTS = {name: get_format(name) for name in ("bf16", "fp16", "tf32")}
EVERY = FORMATS | CASTS


def as_they_are(x, name):
    """Codes and values of a format without a scale, or with a scale of exactly 1."""
    if name in CASTS:
        q = quantize(x, Scheme.parse(name))
        return q.codes, q.dequantize()
    largest = float(EVERY[name].max)
    q = quantize(x, Scheme.parse(f"{name}:model"), model_absmax=largest)
    assert q.scales == [1.0]
    return q.codes, q.dequantize()


def midpoints(fmt):
    """Every number of a format, every midpoint of neighbours, and the floats next to both."""
    step = max(1, fmt.code_count // 4096)  # all of the small ones, a sample of the wide ones
    codes = np.arange(0, fmt.max_code, step)
    low = decode_array(fmt, codes.astype(np.uint32))
    high = decode_array(fmt, (codes + 1).astype(np.uint32))
    middle = ((low + high) / 2).astype(np.float32)
    around = [np.nextafter(middle, np.float32(d)) for d in (-np.inf, np.inf)]
    top = np.float32(float(fmt.max)) * np.array([1, 1.001, 1.05, 1.9, 1e9], np.float64)
    top = np.minimum(top, np.finfo(np.float32).max).astype(np.float32)
    positive = np.concatenate([low.astype(np.float32), middle, *around, top])
    return np.concatenate([positive, -positive])


@over("name", EVERY)
def test_every_number_every_tie_and_random_words(name):
    words = np.random.default_rng(2).integers(0, 2**32, 300_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([midpoints(EVERY[name]), words[np.isfinite(words)]])
    fmt = EVERY[name]
    codes, y = as_they_are(x, name)
    expected = encode_array(fmt, x, fmt.hardware_rounding, saturate=True)
    np.testing.assert_array_equal(codes, expected)
    values = decode_array(fmt, expected, np.float32)
    np.testing.assert_array_equal(y.view(np.uint32), values.view(np.uint32))


@over("name", FORMATS)
@over("granularity", ["tensor", "row", "column", "group64", "group50", "block96"])
def test_scaled_by_absmax_over_the_largest_number(name, granularity):
    fmt = FORMATS[name]
    x = np.random.default_rng(4).standard_normal((20, 128)).astype(np.float32)
    q = quantize(x, Scheme.parse(f"{name}:{granularity}"))
    scale_of = np.empty_like(x)
    for row in range(20):
        for column in range(128):
            scale_of[row, column] = q.scale_at(row, column)[0]
    codes = encode_array(fmt, x / scale_of, saturate=True)
    np.testing.assert_array_equal(q.codes, codes)
    expected = decode_array(fmt, codes, np.float32) * scale_of
    np.testing.assert_array_equal(q.dequantize(), expected)
    assert q.scales.max() == np.abs(x).max() / np.float32(float(fmt.max))


def test_nan_and_infinity():
    x = np.array([[1.0, np.nan, np.inf, -np.inf, -0.5, 0.25]], np.float32)
    kept, lost = [1.0, np.nan, np.inf, -np.inf, -0.5, 0.25], [1.0, 0.0, 1.0, -1.0, -0.5, 0.25]
    for texts, values in (
        (("bf16", "fp16", "tf32", "e5m2:row"), kept),
        (("e2m1:row", "int8:row", "int8:row:full", "fp4:block64"), lost),
        (("e4m3:row",), [1.0, np.nan, 1.0, -1.0, -0.5, 0.25]),
        (("int8:row:asym",), [1.0, 0.0, 1.0, -0.5, -0.5, 0.25]),
        (("nf4:block64", "nf4:block64:dq"), [1.0, 0.0, 1.0, -1.0, -0.525, 0.246]),
        (("ternary:row",), 1.75 / 3 * np.array([1, 0, 1, -1, -1, 0])),
    ):
        for text in texts:
            q = quantize(x, Scheme.parse(text))
            assert q.nonfinite == 3
            np.testing.assert_allclose(q.dequantize(), [values], rtol=0.02, err_msg=text)
