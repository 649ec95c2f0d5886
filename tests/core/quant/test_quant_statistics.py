"""Moments by their definition, and histograms by numpy."""

import math
import warnings

import numpy as np
import pytest
from every import in_parts, left_out, over
from shorthands import heard_by

from qtui_core.quant import elements as elements_module
from qtui_core.quant import histogram, statistics


def by_definition(x):
    x = np.asarray(x, np.float32).astype(np.float64).reshape(-1)
    finite = x[np.isfinite(x)]
    d = finite - finite.mean()
    return finite, (d**2).mean(), (d**4).mean()


def assert_as_defined(x, rel=1e-5):
    stats = statistics(x)
    finite, second, fourth = by_definition(x)
    assert (stats.count, stats.finite) == (np.size(x), finite.size)
    assert stats.nan == np.isnan(np.asarray(x, np.float32)).sum()
    assert stats.nan + stats.inf == stats.count - stats.finite
    assert stats.zeros == (finite == 0).sum()
    assert (stats.min, stats.max) == (finite.min(), finite.max())
    assert stats.absmax == np.abs(finite).max()
    spread = math.sqrt(second)
    assert stats.mean == pytest.approx(finite.mean(), rel=rel, abs=1e-6 * spread)
    assert stats.std == pytest.approx(spread, rel=rel)
    if second and fourth / second**2 < 1e300:
        assert stats.kurtosis == pytest.approx(fourth / second**2, rel=10 * rel)
    assert stats.mean_square == pytest.approx((finite**2).mean(), rel=2 * rel)


SCALES = (1.0, 0.02, 1e-5, 1e-12, 1e-25, 1e6, 1e14, 1e37)
SHIFTS = (0.0, 3.0, -0.1)


@in_parts(3)
@over("scale", SCALES)
@over("shift", SHIFTS)
def test_against_the_definition_at_every_magnitude(scale, shift, parts):
    if left_out(parts, (scale, SCALES), (shift, SHIFTS)):
        return
    x = np.random.default_rng(0).standard_normal((700, 800)) + shift
    assert_as_defined((x * scale).astype(np.float32))


def test_with_nan_infinities_and_zeros():
    x = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)
    x[::3, 7] = np.nan
    x[1, :5] = np.inf
    x[2, 3] = -np.inf
    x[:, 500:600] = 0
    assert_as_defined(x)
    stats = statistics(x)
    assert (stats.nan, stats.inf) == (100, 6)


def test_segments_of_very_different_values(monkeypatch):
    monkeypatch.setattr(elements_module.Elements.segments, "__defaults__", (1, 1000))
    random = np.random.default_rng(3)
    x = random.standard_normal(50_000) * np.repeat(10.0 ** random.integers(-9, 12, 50), 1000)
    x += np.repeat(random.integers(-5, 5, 50), 1000)
    assert_as_defined(x.astype(np.float32))


def test_two_neighbouring_float32_keep_their_kurtosis():
    """Their mean in float32 is one of them, off by as much as they differ."""
    x = np.repeat(
        np.array([1000, np.nextafter(np.float32(1000), np.inf)], np.float32), [3000, 1000]
    )
    assert statistics(x).kurtosis == pytest.approx((1 - 3 * 3 / 16) / (3 / 16))


@over("size", [131072, 524288, 262145])
@over("scale", [4.9e7, 6e7, 1.5e8, 9.9e8])
def test_large_magnitudes_keep_their_kurtosis(scale, size):
    random = np.random.default_rng(0)
    two = random.choice([-scale, scale], size).astype(np.float32)
    assert statistics(two).kurtosis == pytest.approx(1.0, abs=1e-4)
    assert_as_defined((random.standard_normal(size) * scale).astype(np.float32))
    lopsided = np.full(size, scale, np.float32)
    lopsided[: size // 2] = -scale
    assert_as_defined(lopsided)


@over("centre", [1e-7, 3e-8, 1e-4, 1000.0])
def test_small_spread_far_from_zero(centre):
    last_place = np.spacing(np.float32(centre)).astype(np.float64)
    steps = np.random.default_rng(0).integers(-2, 3, 100_000)
    assert_as_defined((np.float32(centre) + steps * last_place).astype(np.float32), rel=1e-4)


def test_nothing_finite_and_constants():
    for x in (np.empty((0, 3)), np.full((2, 2), np.nan)):
        stats = statistics(x)
        assert (stats.min, stats.max, stats.mean, stats.std, stats.kurtosis) == (None,) * 5
        assert (stats.absmax, stats.mean_square, stats.finite) == (0.0, 0.0, 0)
        assert [found.size for found in histogram(x, 4)] == [0, 0]
    stats = statistics(np.full((9, 9), 0.1))
    assert (stats.std, stats.kurtosis) == (0.0, None)
    assert stats.mean == pytest.approx(0.1)


@over("bins", [1, 7, 64, 1000])
def test_histogram_is_that_of_numpy(bins):
    random = np.random.default_rng(0)
    coarse = np.rint(random.standard_normal((300, 1000)) * 8) / 8
    for x in (random.standard_normal((300, 1000)), coarse, random.random(1000) * 1e-30):
        x = x.astype(np.float32)
        found = histogram(x, bins)
        counts, edges = np.histogram(x.astype(np.float64), bins)
        np.testing.assert_array_equal(found[0], counts)
        np.testing.assert_allclose(found[1], edges, rtol=1e-12, atol=1e-300)


@over(
    ("low", "high"),
    [(-1.0, 1.0), (0.7, 1.0), (0.1, 0.8), (-1e300, 1e300), (0.75, 1e300), (1e300, 2e300)],
)
def test_histogram_of_a_range_that_float32_need_not_hold(low, high):
    x = [0.1, 0.7, 0.75, 0.8, 0.9, 1.0, 0, -0.5, 1, -1, -2, -3e38, np.inf, -np.inf, np.nan]
    x = np.array(x, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = histogram(x, 10, low=low, high=high)
    counts, edges = np.histogram(x[np.isfinite(x)].astype(np.float64), 10, (low, high))
    np.testing.assert_array_equal(found[0], counts)
    np.testing.assert_allclose(found[1], edges)


@over("value", [2.0, 1e20, -1e20, 3.4e38, 1e8, 16777216.0, -0.0, 1e-40])
def test_histogram_of_one_value_of_any_size(value):
    found = histogram(np.full(5, value, np.float32), 4)
    assert found[0].tolist() == [0, 0, 5, 0]
    assert (np.diff(found[1]) > 0).all()
    assert found[1][0] <= np.float32(value) <= found[1][-1]
    assert value != 2 or found[1].tolist() == [1.5, 1.75, 2.0, 2.25, 2.5]


@over("options", [{}, {"low": 0, "high": 2}])
@over("rows", [0, 4000])
def test_progress_of_the_histogram(options, rows):
    heard = []
    histogram(np.ones((rows, 200), np.float32), 8, job=heard_by(heard), **options)
    assert heard == sorted(heard)
    assert not rows or heard[-1] == 1.0
