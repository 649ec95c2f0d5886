import warnings

import numpy as np
import pytest
from shorthands import heard_by

from qtui_core.quant import histogram


@pytest.mark.parametrize("bins", [1, 7, 64, 1000])
def test_histogram_is_that_of_numpy(bins):
    random = np.random.default_rng(0)
    coarse = np.rint(random.standard_normal((300, 1000)) * 8) / 8
    for x in (random.standard_normal((300, 1000)), coarse, random.random(1000) * 1e-30):
        x = x.astype(np.float32)
        found = histogram(x, bins)
        counts, edges = np.histogram(x.astype(np.float64), bins)
        np.testing.assert_array_equal(found[0], counts)
        np.testing.assert_allclose(found[1], edges, rtol=1e-12, atol=1e-300)


def test_histogram_of_a_range():
    x = np.array([-2.0, -1, 0, 0.5, 1, 3, np.nan, np.inf], np.float32)
    found = histogram(x, 4, low=-1.0, high=1.0)
    assert found[0].tolist() == [1, 0, 1, 2]
    assert found[1].tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("low", "high"), [(0.7, 1.0), (0.1, 0.8), (-1e300, 1e300), (0.75, 1e300), (1e300, 2e300)]
)
def test_histogram_of_a_range_that_float32_does_not_hold(low, high):
    x = np.array([0.1, 0.7, 0.75, 0.8, 0.9, 1.0, -3e38, np.inf, -np.inf, np.nan], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = histogram(x, 10, low=low, high=high)
    finite = x[np.isfinite(x)].astype(np.float64)
    np.testing.assert_array_equal(found[0], np.histogram(finite, 10, (low, high))[0])


@pytest.mark.parametrize("value", [1e20, -1e20, 3.4e38, 1e8, 16777216.0, -0.0, 1e-40])
def test_histogram_of_one_value_of_any_size(value):
    found = histogram(np.full(5, value, np.float32), 4)
    assert found[0].tolist() == [0, 0, 5, 0]
    assert (np.diff(found[1]) > 0).all()
    assert found[1][0] <= np.float32(value) <= found[1][-1]


def test_histogram_of_one_value_and_of_none():
    found = histogram(np.full(9, 2.0), 4)
    assert found[0].tolist() == [0, 0, 9, 0]
    assert found[1].tolist() == [1.5, 1.75, 2.0, 2.25, 2.5]
    empty = histogram(np.array([np.nan]), 4)
    assert (empty[0].size, empty[1].size) == (0, 0)


def test_progress_of_the_histogram():
    x = np.ones((4000, 200), np.float32)
    for options in ({}, {"low": 0, "high": 2}):
        heard = []
        histogram(x, 8, job=heard_by(heard), **options)
        assert heard == sorted(heard)
        assert heard[-1] == 1.0


def test_progress_of_an_empty_tensor_is_no_division_by_zero():
    seen: list[float] = []
    found = histogram(np.empty((0, 8), np.float32), 4, low=0.0, high=1.0, job=heard_by(seen))
    assert found[0].sum() == 0
    assert all(share == 1.0 for share in seen)
