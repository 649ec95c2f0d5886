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
    """Measured errors are those of the dequantized tensor. Each scheme takes half of the tensors by
    turn in the slow suite, and a few in the default suite."""
    scheme, step = Scheme.parse(any_scheme), max(parts, 2)
    for name, x in list(awkward.items())[EVERY_SCHEME.index(any_scheme) % step :: step]:
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
            check_measured(name, measure(x, scheme), q, single, y)


def check_measured(name, report, q, single, y):
    """Compares a report with the errors of `y`, the dequantized tensor."""
    finite = np.isfinite(single)
    wide = np.where(finite, single, 0).astype(np.float64)
    error = np.abs(np.where(finite, wide - y, 0))
    assert (report.scheme, report.shape, report.count) == (q.scheme, single.shape, single.size)
    assert (report.bits_per_parameter, report.bytes) == (q.bits_per_parameter, q.nbytes)
    if not finite.any():
        assert (report.mse, report.relative_mse, report.max_abs_error) == (0.0, None, 0.0)
        return
    assert report.mse == pytest.approx((error**2).sum() / finite.sum(), rel=1e-5), name
    # One rounding of float32 between the two ways to the largest error.
    assert report.max_abs_error == pytest.approx(error.max(), rel=1e-6), name
    at = np.ravel_multi_index(report.max_abs_error_index, matrix_shape(single.shape))
    assert error.reshape(-1)[at] == pytest.approx(error.max(), rel=1e-6)
    power = (wide**2).sum()
    if not power:
        assert (report.relative_mse, report.sqnr_db, report.gaussian_mse) == (None, None, None)
        return
    relative, gaussian = (error**2).sum() / power, report.gaussian_relative_mse
    assert report.relative_mse == pytest.approx(relative, rel=1e-5), name
    assert report.sqnr_db == (
        pytest.approx(-10 * np.log10(relative), abs=1e-4) if relative else None
    )
    assert 0 <= gaussian < 1.001, name
    assert report.gaussian_mse == pytest.approx(gaussian * power / finite.sum(), rel=1e-5)
    if gaussian:
        assert report.gaussian_sqnr_db == pytest.approx(-10 * np.log10(gaussian), rel=1e-9)


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
    for values in (q.scales, q.nested.dequantize(), y):
        assert np.isfinite(values).all()
    wide = x.astype(np.float64)
    assert ((wide - y) ** 2).sum() / (wide**2).sum() < 1e-3


def test_what_is_a_tensor():
    for thing in ("weights", np.array(["a"]), np.ones(3, complex), {"a": 1}, None):
        with pytest.raises(UsageError):
            quantize(thing, Scheme.parse("int4"))
    assert quantize([[1.0, -7.0]], Scheme.parse("int4:row")).codes.tolist() == [[1, -7]]
    x = np.ma.masked_array(np.arange(12.0).reshape(3, 4), mask=np.arange(12).reshape(3, 4) == 5)
    for verb in (statistics, find_outliers, lambda t: measure(t, Scheme.parse("int8"))):
        with pytest.raises(UsageError, match="1 elements of this array are masked"):
            verb(x)
    assert statistics(np.ma.masked_array(x.data)) == statistics(x.data)


def test_torch_tensors_of_every_float_type():
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(1))
    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    small = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
    for text in ("nf4:dq", "int8:row", "int4:group50:asym", "bf16", "mxfp4"):
        for dtype in floats + small * (text == "int8:row"):
            plain, scheme = x.to(dtype).float().numpy(), Scheme.parse(text)
            assert_same(quantize(x.to(dtype), scheme), quantize(plain, scheme))
            assert statistics(x.to(dtype)) == statistics(plain)
    parameter, plain = torch.nn.Parameter(x.t()), x.t().contiguous().numpy()
    assert_same(*(quantize(each, Scheme.parse("int8")) for each in (parameter, plain)))
    z = torch.randn(3, 64, dtype=torch.complex64)
    negated = z.conj().imag
    assert negated.is_neg()
    assert statistics(negated) == statistics((-z.imag).numpy())
    half = negated.bfloat16()
    assert statistics(half) == statistics(half.resolve_neg().float().numpy())
    with pytest.raises(UsageError, match="real numbers"):
        statistics(z.conj())


def assert_same(a, b):
    np.testing.assert_array_equal(a.codes, b.codes)
    np.testing.assert_array_equal(a.dequantize(threads=1), b.dequantize(threads=2))


@over("text", ["int8:row", "int4:group64:asym", "e4m3", "nf4", "int4:row:signed"])
def test_nonfinite_elements_do_not_touch_the_others(text):
    clean = np.random.default_rng(0).standard_normal((8, 192)).astype(np.float32)
    clean[2, 5] = 0  # not the extreme of its group
    dirty = clean.copy()
    dirty[2, 5], dirty[3, 7] = np.nan, np.inf
    clean[3, 7] = 0
    scheme = Scheme.parse(text)
    a, b = quantize(clean, scheme), quantize(dirty, scheme)
    np.testing.assert_array_equal(a.scales, b.scales)
    same = np.isfinite(dirty)
    np.testing.assert_array_equal(a.dequantize()[same], b.dequantize()[same])
    assert b.nonfinite == 2


@over("text", ["int8:tensor", "e4m3:tensor", "nvfp4"])
def test_an_infinity_among_words_of_bfloat16_sets_no_scale(text):
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    x[7] = np.inf
    words = torch.from_numpy(x).bfloat16()
    ours, plain = (quantize(each, Scheme.parse(text)) for each in (words, words.float()))
    np.testing.assert_array_equal(ours.scales, plain.scales)
    assert np.isfinite(ours.scales).all()
    np.testing.assert_array_equal(ours.codes, plain.codes)
