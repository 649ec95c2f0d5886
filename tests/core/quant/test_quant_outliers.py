import math

import numpy as np
import pytest
from every import over

from qtui_core.quant import find_outliers, statistics
from qtui_core.quant.outliers import crowded_columns, poisson_tail


def planted():
    x = np.random.default_rng(0).standard_normal((600, 512)).astype(np.float32)
    x[:, 17] *= 25
    x[:40, 300] = -30
    x[5, 6] = 90
    return x


def test_against_plain_numpy():
    x = planted()
    stats = statistics(x)
    report = find_outliers(x, stats)
    wide = x.astype(np.float64)
    far = np.abs(wide - stats.mean) > 6 * stats.std
    assert report.count == far.sum()
    assert report.share == far.mean()
    assert report.energy_share == pytest.approx((wide[far] ** 2).sum() / (wide**2).sum(), rel=1e-5)
    order = np.argsort(-np.abs(wide - stats.mean), axis=None)[:10]
    assert [(o.row, o.column) for o in report.top] == [divmod(int(i), 512) for i in order]
    for o in report.top:
        assert o.value == x[o.row, o.column]
        assert o.sigmas == pytest.approx(abs(o.value - stats.mean) / stats.std)
    counts = far.sum(axis=0)
    assert {c.column: c.count for c in report.columns} == {
        c: counts[c] for c in np.flatnonzero(counts)
    }
    assert [c.column for c in report.columns] == [17, 300, 6]
    assert report.column_total == 512


def test_columns_with_more_outliers_than_chance():
    report = find_outliers(planted())
    columns, share = crowded_columns(report)
    assert columns == 2
    assert share == (report.columns[0].count + report.columns[1].count) / report.count


@over("count", [1, 2, 3, 10, 100, 1000, 20_000])
@over("seed", range(4))
def test_outliers_that_fall_anywhere_crowd_no_column(count, seed):
    random = np.random.default_rng(seed)
    x = random.standard_normal((1024, 2048)).astype(np.float32)
    x.flat[random.choice(x.size, count, replace=False)] = 20 if count < 10_000 else 60
    report = find_outliers(x)
    assert report.count >= count
    assert crowded_columns(report) == (0, 0.0)


def test_probability_of_many_in_a_column():
    for mean in (1e-3, 0.1, 2.0, 30.0):
        terms = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(400)]
        for count in (1, 2, 3, 5, 10, 60):
            exact = math.fsum(terms[count:])
            assert poisson_tail(mean, count) >= exact
            if count > 2 * mean + 2:
                assert poisson_tail(mean, count) == pytest.approx(exact, rel=0.6)


@pytest.mark.parametrize("mean", [3e6, -3e6, 33333333.0, 1e8])
def test_outliers_far_from_zero(mean):
    """The mean is so large that the nearest float32 numbers are more than a sigma away."""
    random = np.random.default_rng(0)
    steps = random.choice([-1, 0, 0, 0, 0, 0, 1], (500, 400))
    steps[random.random(steps.shape) < 1e-3] = 9
    steps[7, 7] = -10
    x = (np.float32(mean).astype(np.float64) + steps * np.spacing(np.float32(abs(mean)))).astype(
        np.float32
    )
    stats = statistics(x)
    wide = x.astype(np.float64)
    sigmas = np.abs(wide - stats.mean) / stats.std
    for sigma in (1.0, 6.0, sigmas.max() * (1 - 1e-9)):
        assert find_outliers(x, stats, sigma=sigma).count == (sigmas > sigma).sum() > 0


def test_sigma_and_top_are_chosen_by_the_caller():
    x = planted()
    few, many = find_outliers(x, sigma=12.0, top=3), find_outliers(x, sigma=3.0, top=25)
    assert few.count < many.count
    assert len(few.top) == 3
    assert len(many.top) == 25
    assert few.top == many.top[:3]


def test_without_outliers():
    for x in (np.ones((4, 4)), np.zeros((4, 4)), np.empty((0, 4)), np.full((2, 2), np.nan)):
        report = find_outliers(x)
        assert (report.count, report.share, report.top, report.columns) == (0, 0.0, (), ())
        assert crowded_columns(report) == (0, 0.0)


def test_nonfinite_elements_are_not_outliers():
    x = planted()
    x[100, 100], x[200, 200] = np.inf, np.nan
    report = find_outliers(x)
    assert (100, 100) not in [(o.row, o.column) for o in report.top]
    assert all(np.isfinite(o.value) for o in report.top)
    assert report.count > 0


def test_a_vector_has_no_columns():
    x = np.zeros(10_000)
    x[77] = 5
    report = find_outliers(x)
    assert [(o.row, o.column, o.value) for o in report.top] == [(0, 77, 5.0)]
    assert report.columns == ()


def test_ties_come_in_the_order_of_the_tensor():
    x = np.zeros((100, 100))
    x[3, 4] = x[90, 2] = 1.0
    x[7, 7] = -1.0
    x[0, 0] = -1.0
    top = [(o.row, o.column) for o in find_outliers(x, top=4).top]
    assert top == [(0, 0), (3, 4), (7, 7), (90, 2)]  # the mean is zero
