"""No tensor makes a scheme fail, warn or skip an element."""

import warnings

import numpy as np
import pytest
from every import in_parts, over
from lazy_imports import LazyImport
from scheme_table import EVERY_PAIR, EVERY_SCHEME
from shorthands import error_map

from qtui_core.errors import UsageError
from qtui_core.job import Job
from qtui_core.quant import (
    Scheme,
    find_outliers,
    histogram,
    measure,
    quantize,
    statistics,
)
from qtui_core.quant.layout import matrix_shape

torch = LazyImport("torch")

PAIRS = frozenset(EVERY_PAIR)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@in_parts(12)
@over("any_scheme", EVERY_SCHEME)
def test_every_scheme_takes_every_tensor_and_measures_its_error(any_scheme, awkward, parts):
    """Measured errors are those of the dequantized tensor. The default suite runs pairs of
    options."""
    scheme = Scheme.parse(any_scheme)
    for name, x in list(awkward.items())[EVERY_SCHEME.index(any_scheme) % parts :: parts]:
        q = quantize(x, scheme)
        y = q.dequantize()
        assert y.shape == x.shape, name
        assert y.dtype == np.float32, name
        with np.errstate(over="ignore"):
            single = np.asarray(x.astype(np.float32))
        finite = np.isfinite(single)
        assert np.isfinite(y[finite]).all(), name
        assert q.nonfinite == single.size - np.count_nonzero(finite), name
        assert np.isfinite(q.scales).all(), name
        assert (y[single == 0] == 0).all(), name
        if any_scheme in PAIRS:
            check_measured(name, measure(x, scheme), single, y)


def check_measured(name, report, single, y):
    """Compares a report with the errors of `y`, the dequantized tensor."""
    finite = np.isfinite(single)
    wide = np.where(finite, single, 0).astype(np.float64)
    error = np.where(finite, wide - y, 0)
    assert report.count == single.size, name
    if not finite.any():
        assert (report.mse, report.relative_mse, report.max_abs_error) == (0.0, None, 0.0)
        return
    assert report.mse == pytest.approx((error**2).sum() / finite.sum(), rel=1e-5), name
    power = (wide**2).sum()
    if power:
        assert report.relative_mse == pytest.approx((error**2).sum() / power, rel=1e-5), name
        assert report.gaussian_relative_mse is not None
        assert 0 <= report.gaussian_relative_mse < 1.001, name
    else:
        assert report.relative_mse is None
    # One rounding of float32 between the two ways to the largest error.
    largest = np.abs(error).max()
    assert report.max_abs_error == pytest.approx(largest, rel=1e-6), name
    row, column = report.max_abs_error_index
    columns = matrix_shape(single.shape)[1]
    assert np.abs(error).reshape(-1)[row * columns + column] == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("text", ["int4", "nf4:dq", "int8:column", "bf16"])
def test_the_other_verbs_take_every_tensor_too(text, awkward):
    scheme = Scheme.parse(text)
    for x in awkward.values():
        stats = statistics(x)
        assert stats.count == x.size
        assert find_outliers(x, stats).count == 0 or stats.std
        assert error_map(x, scheme, 5, 7).cells.size <= 35
        assert histogram(x, 8)[0].sum() == stats.finite


@pytest.mark.parametrize("threads", [1, 2])
def test_a_signalling_nan_is_a_nan(threads):
    job, x = Job(threads=threads), np.random.default_rng(0).standard_normal((64, 64))
    x.view(np.uint64)[7, 7] = 0x7FF0000000000001
    with np.errstate(invalid="ignore"):
        single = x.astype(np.float32)  # its NaN is quiet
    single.view(np.uint32)[9, 9] = 0x7F800001
    for tensor, nan in ((x, 1), (single, 2)):
        assert statistics(tensor, job=job).nan == nan
        assert histogram(tensor, 8, job=job)[0].sum() == x.size - nan
        assert histogram(tensor, 8, low=-9, high=9, job=job)[0].sum() == x.size - nan
        for text in ("int8:tensor", "int8:tensor:asym", "int8:row:asym", "nf4:dq", "bf16"):
            scheme = Scheme.parse(text)
            assert measure(tensor, scheme, job=job).nonfinite == nan
            assert quantize(tensor, scheme, job=job).nonfinite == nan
            assert error_map(tensor, scheme, 4, 4, job=job).cells.max() < 9


def test_double_quantization_next_to_the_largest_float32():
    x = np.full(64 * 600, 3.4028235e38, np.float32)
    x[:128] = 3e37
    x[1::64] = 0
    q = quantize(x, Scheme.parse("nf4:dq"))
    y = q.dequantize()
    assert np.isfinite(q.scales).all()
    assert np.isfinite(q.nested.dequantize()).all()
    assert np.isfinite(y).all()
    assert (y[1::64] == 0).all()
    report = measure(x, Scheme.parse("nf4:dq"))
    wide = x.astype(np.float64)
    expected = ((wide - y) ** 2).sum() / (wide**2).sum()
    assert report.relative_mse == pytest.approx(expected, rel=1e-6)
    assert expected < 1e-3


def test_masked_elements_have_no_value():
    x = np.ma.masked_array(np.arange(12.0).reshape(3, 4), mask=np.arange(12).reshape(3, 4) == 5)
    for verb in (statistics, find_outliers, lambda t: measure(t, Scheme.parse("int8"))):
        with pytest.raises(UsageError, match="1 elements of this array are masked"):
            verb(x)
    unmasked = np.ma.masked_array(x.data)
    assert statistics(unmasked) == statistics(x.data)


def test_negated_and_conjugated_views_of_torch():
    torch = pytest.importorskip("torch")
    z = torch.randn(3, 64, dtype=torch.complex64)
    negated = z.conj().imag
    assert negated.is_neg()
    expected = (-z.imag).numpy()
    assert statistics(negated) == statistics(expected)
    q = quantize(negated, Scheme.parse("int8:row"))
    np.testing.assert_array_equal(q.codes, quantize(expected, Scheme.parse("int8:row")).codes)
    half = z.to(torch.complex64).conj().imag.bfloat16()
    assert statistics(half) == statistics(half.resolve_neg().float().numpy())
    with pytest.raises(UsageError, match="real numbers"):
        statistics(z.conj())


def test_text_is_not_a_tensor():
    for thing in ("weights", np.array(["a"]), np.ones(3, complex), {"a": 1}, None):
        with pytest.raises(UsageError):
            quantize(thing, Scheme.parse("int4"))


def test_lists_of_numbers_are_tensors():
    assert quantize([[1.0, -7.0]], Scheme.parse("int4:row")).codes.tolist() == [[1, -7]]


@pytest.mark.parametrize(
    "text", ["int8:row", "int4:group64:asym", "e4m3", "nf4", "int4:row:signed"]
)
def test_nonfinite_elements_do_not_touch_the_others(text):
    clean = np.random.default_rng(0).standard_normal((8, 192)).astype(np.float32)
    clean[2, 5] = 0  # not the extreme of its group
    dirty = clean.copy()
    dirty[2, 5] = np.nan
    dirty[3, 7] = np.inf
    clean[3, 7] = 0
    scheme = Scheme.parse(text)
    a, b = quantize(clean, scheme), quantize(dirty, scheme)
    np.testing.assert_array_equal(a.scales, b.scales)
    same = np.isfinite(dirty)
    np.testing.assert_array_equal(a.dequantize()[same], b.dequantize()[same])
    assert b.nonfinite == 2


def test_short_last_groups_have_scales_of_their_own():
    x = np.ones((3, 10), np.float32)
    x[:, 8:] = 0.5
    q = quantize(x, Scheme.parse("int8:group4"))
    assert q.scales.shape == (3, 3)
    np.testing.assert_array_equal(q.scales[:, 2], np.float32(0.5) / np.float32(127))
    np.testing.assert_allclose(q.dequantize(), x, rtol=1e-6)


def test_groups_longer_than_the_row_and_blocks_longer_than_the_tensor():
    x = np.random.default_rng(1).standard_normal((5, 12)).astype(np.float32)
    for text, same in (("int4:group1000", "int4:row"), ("int4:block1000", "int4:tensor")):
        a, b = (quantize(x, Scheme.parse(t)) for t in (text, same))
        np.testing.assert_array_equal(a.codes, b.codes)
        np.testing.assert_array_equal(a.scales.reshape(-1), b.scales.reshape(-1))


def test_an_infinity_among_words_of_bfloat16_sets_no_scale():
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    x[7] = np.inf
    words = torch.from_numpy(x).bfloat16()
    for text in ("int8:tensor", "e4m3:tensor", "nvfp4"):
        ours, plain = (quantize(each, Scheme.parse(text)) for each in (words, words.float()))
        np.testing.assert_array_equal(ours.scales, plain.scales)
        assert np.isfinite(ours.scales).all()
        np.testing.assert_array_equal(ours.codes, plain.codes)
