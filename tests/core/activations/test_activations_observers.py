"""Observers and ranges, compared with numpy on all values at once."""

import numpy as np
import pytest
from every import over

from qtui_core.activations.observers import ActivationRecord, Observed, RangeRule
from qtui_core.errors import UsageError


def values(tokens: int = 3000, features: int = 40) -> np.ndarray:
    rng = np.random.default_rng(3)
    x = rng.standard_t(3, (tokens, features)).astype(np.float32)
    x[:, 7] *= 25
    x[5] = 0
    x[9, 3] = -0.0
    return x


def bfloat16(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


def observe(x: np.ndarray, pieces: int = 7):
    observed = Observed(x.shape[1])
    for part in np.array_split(x, pieces):
        observed.add(part)
    return observed


@over("pieces", [1, 7, 500])
@over("broken", [0, 3])
def test_what_is_observed_is_numpy_s(pieces: int, broken: int) -> None:
    """What is not finite is counted and left out."""
    x = values()
    given = x.copy()
    for at, bad in zip(range(broken), (np.nan, np.inf, -np.inf), strict=False):
        given[at, at], x[at, at] = bad, 0
    found = observe(given, pieces)
    assert (found.tokens, found.features, found.nonfinite) == (3000, 40, broken)
    assert (found.min, found.max) == (x.min(), x.max())
    assert np.array_equal(found.channel_absmax, np.abs(x).max(axis=0))
    exact = (x.astype(np.float64) ** 2).mean(axis=0)
    np.testing.assert_allclose(found.second_moment, exact, rtol=1e-12)
    assert found.counts.sum() == x.size - broken


def test_nothing_finite_has_no_range() -> None:
    for x in (np.full((4, 3), np.nan, np.float32), np.empty((0, 3), np.float32)):
        found = observe(x, 1)
        assert (found.min, found.max) == (None, None)
        for rule in (RangeRule(), RangeRule(99.9)):
            with pytest.raises(UsageError, match="No finite value"):
                rule.range_of(found, symmetric=True)


def test_min_max_and_percentiles_of_tiny_and_huge_numbers() -> None:
    x = values()
    x[x < -3] = -3
    found = observe(x)
    assert RangeRule().range_of(found, symmetric=False) == (-3.0, float(x.max()))
    assert RangeRule().range_of(found, symmetric=True) == (-float(x.max()), float(x.max()))
    x = np.array([[1e-45, -1e-45, 3e38, -3e38, 0.0, -0.0, 1.0, -2.0]], np.float32)
    found = observe(x, 1)
    low, high = RangeRule(100).range_of(found, symmetric=False)
    assert -3e38 <= low <= -3e38 * (1 - 2**-10)
    assert 3e38 * (1 - 2**-10) <= high <= 3e38


@over("percent", [60.0, 90.0, 99.0, 99.9, 99.99, 100.0])
def test_percentiles_of_bfloat16_values_are_exact(percent: float) -> None:
    x = bfloat16(values())
    found = observe(x)
    expected = np.quantile(np.abs(x), percent / 100, method="inverted_cdf")
    assert RangeRule(percent).range_of(found, symmetric=True) == (-expected, expected)
    low, high = RangeRule(percent).range_of(found, symmetric=False)
    tail = (100 - percent) / 200
    assert high == np.quantile(x, 1 - tail, method="inverted_cdf")
    assert low == -np.quantile(-x, 1 - tail, method="inverted_cdf")
    outside = ((x < low) | (x > high)).mean()
    assert outside <= 1 - percent / 100 + 1e-12


@over("percent", [90.0, 99.9, 100.0])
def test_percentiles_of_float32_values_are_within_a_bin(percent: float) -> None:
    x = values()
    expected = np.quantile(np.abs(x), percent / 100, method="inverted_cdf")
    found = RangeRule(percent).range_of(observe(x), symmetric=True)[1]
    assert expected * (1 - 2**-10) <= found <= expected


@over(("rows", "capacity"), [(10, 10), (11, 10), (1000, 10), (999, 64), (5, 1)])
@over("step", [1, 3, 1000])
def test_the_kept_rows_are_every_stride_th(rows: int, capacity: int, step: int) -> None:
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    record = ActivationRecord(2, 8 * capacity)
    for start in range(0, rows, step):
        record.add(x[start : start + step])
    assert np.array_equal(record.rows, x[:: record.stride])
    assert record.rows.shape[0] <= capacity
    assert record.stride == 1 or 2 * record.rows.shape[0] >= capacity
    assert record.whole is (record.stride == 1)


def test_a_row_larger_than_all_that_may_be_kept_is_kept_alone() -> None:
    record = ActivationRecord(100, 8)
    record.add(np.ones((5, 100), np.float32))
    assert (record.rows.shape, record.whole) == ((1, 100), False)


def test_kept_rows_are_copies() -> None:
    x = np.ones((4, 2), np.float32)
    record = ActivationRecord(2, 80)
    record.add(x)
    x[:] = 5
    assert (record.rows == 1).all()
