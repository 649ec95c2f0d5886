"""Integers, compared with their definitions."""

import numpy as np
import pytest
from every import over

from qtui_core.errors import UsageError
from qtui_core.quant import Scheme, measure, quantize

ROWS, COLUMNS, GROUP = 24, 192, 64


def values(kind):
    x = np.random.default_rng(5).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    if kind == "bfloat16":  # coarse values, where ties are common
        x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if kind == "shifted":
        x += np.float32(1.5)
    if kind == "few":
        x = np.rint(x * 2) / 2
    if kind == "one-sided":
        x = np.abs(x)
    return np.ascontiguousarray(x)


@over("kind", ["normal", "bfloat16", "shifted", "few", "one-sided"])
@over("bits", range(2, 9))
def test_signed_rule_is_that_of_gguf(bits, kind):
    """Q4_0: d = max / -8, q = min(15, trunc(x / d + 8.5)), where max is the first element of
    the largest magnitude (ggml quantize_row_q4_0_ref), here for any width."""
    x = values(kind)
    half = 2 ** (bits - 1)
    groups = x.reshape(-1, GROUP)
    extreme = groups[np.arange(len(groups)), np.abs(groups).argmax(axis=1)]
    scale = extreme / np.float32(-half)
    scaled = groups * (np.float32(1) / scale)[:, None] + np.float32(half + 0.5)
    codes = np.minimum(np.trunc(scaled), 2 * half - 1).astype(int) - half
    q = quantize(x, Scheme.parse(f"int{bits}:group64:signed"))
    np.testing.assert_array_equal(q.scales.reshape(-1), scale)
    np.testing.assert_array_equal(q.codes.reshape(-1, GROUP), codes)
    found = q.dequantize().reshape(-1, GROUP)
    np.testing.assert_array_equal(found, codes.astype(np.float32) * scale[:, None])


@over("bits", range(2, 9))
@over("option", ["", ":full", ":asym"])
def test_codes_are_the_nearest_levels(bits, option):
    """In exact arithmetic no other code of the range is nearer, rounding of the scale aside."""
    x = values("shifted")
    q = quantize(x, Scheme.parse(f"int{bits}:row{option}"))
    half = 2 ** (bits - 1)
    codes = np.arange(0, 2 * half) if option == ":asym" else np.arange(-half, half)
    if option == "":
        codes = codes[1:]
    zero = 0 if q.zero_points is None else q.zero_points.astype(float)
    levels = (codes - zero) * q.scales.astype(np.float64)
    nearest = np.abs(x[:, :, None].astype(np.float64) - levels[:, None, :]).min(axis=2)
    error = np.abs(x - q.dequantize().astype(np.float64))
    np.testing.assert_allclose(error, nearest, rtol=1e-4, atol=1e-6)


def test_worked_example():
    """S = 1/127·23.5 … of a small vector, restricted range [-127, 127]."""
    x = np.array([[23.5, -11.75, 0.0, 5.0]])
    q = quantize(x, Scheme.parse("int8:row"))
    assert q.scales[0, 0] == np.float32(23.5) / np.float32(127)
    assert q.codes.tolist() == [[127, -64, 0, 27]]  # -63.5 rounds half to even
    asymmetric = quantize(x, Scheme.parse("int8:row:asym"))
    scale = (23.5 + 11.75) / 255
    assert asymmetric.scales[0, 0] == np.float32(35.25) / np.float32(255)
    assert asymmetric.zero_points[0, 0] == round(11.75 / scale)
    assert asymmetric.codes.tolist() == [[255, 0, 85, 121]]


def test_model_scale_is_that_of_the_given_extent():
    x = values("normal")
    q = quantize(x, Scheme.parse("int8:model"), model_absmax=10.0)
    assert q.scales == [np.float32(10) / np.float32(127)]
    np.testing.assert_allclose(q.dequantize(), x, atol=10 / 127 / 2 * 1.001)
    asymmetric = quantize(x, Scheme.parse("int8:model:asym"), model_absmax=(-4.0, 11.0))
    assert asymmetric.scales == [np.float32(15) / np.float32(255)]
    assert asymmetric.zero_points == [68]
    signed = quantize(x, Scheme.parse("int8:model:signed"), model_absmax=(-12.0, 11.0))
    assert signed.scales == [np.float32(12 / 128)]
    for option in ("", ":asym", ":full", ":signed"):  # what lies beyond is clipped
        scheme = Scheme.parse(f"int8:model{option}")
        y = quantize([[5.0, -5.0, 1.0]], scheme, model_absmax=1.0).dequantize()
        np.testing.assert_allclose(y, [[1.0, -1.0, 1.0]], rtol=0.01)


@pytest.mark.parametrize("extent", [float("nan"), float("inf"), (3.0, 1.0), (float("nan"), 1.0)])
def test_impossible_extents_are_refused(extent):
    with pytest.raises(UsageError, match="extent"):
        quantize(np.ones((2, 2)), Scheme.parse("int8:model"), model_absmax=extent)


def test_float_zero_points_are_float32_and_closer():
    x = np.random.default_rng(1).standard_normal((8, 128)).astype(np.float32) + 9
    scheme = Scheme.parse("int4:group64:asym:zpfloat")
    q = quantize(x, scheme)
    assert (q.zero_points.dtype, q.zero_points.shape) == (np.float32, q.scales.shape)
    # The range need not contain zero, so it is not extended to it.
    assert measure(x, scheme).mse < measure(x, Scheme.parse("int4:group64:asym")).mse / 5


@pytest.mark.parametrize("granularity", ["tensor", "row", "column", "group7", "block33"])
def test_nonfinite_elements_do_not_stretch_a_range(granularity):
    x = (np.random.default_rng(2).standard_normal((12, 70)) + 100).astype(np.float32)
    holes = x.copy()
    holes[::3, ::5] = np.nan
    holes[1, 1], holes[5] = np.inf, np.nan
    scheme = Scheme.parse(f"int8:{granularity}:asym:zpfloat")
    found = quantize(holes, scheme).dequantize()
    there = np.isfinite(holes)
    assert np.abs(found - holes)[there].max() < 0.02


def test_constant_groups_are_exact_under_a_float_zero_point():
    for value in (0.0, 0.1, -7.3e5, 3e38):
        x = np.full((4, 64), value, np.float32)
        found = quantize(x, Scheme.parse("int4:group64:asym:zpfloat")).dequantize()
        np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_ranges_beside_the_largest_float_keep_their_steps(bits):
    rng = np.random.default_rng(5)
    x = (rng.uniform(-1, 1, (40, 7)) * 3.4e38).astype(np.float32)
    found = quantize(x, Scheme.parse(f"int{bits}:group7:asym:zpfloat")).dequantize()
    wide = x.astype(np.float64)
    step = (wide.max(axis=1) - wide.min(axis=1)) / (2**bits - 1)
    error = np.abs(found - wide).max(axis=1)
    assert (error <= 0.5001 * step).all()
