"""Column statistics, and elements beyond a number of sigmas or a magnitude, compared with numpy."""

import math

import numpy as np
import pytest
from every import over
from shorthands import column_statistics

from qtui_core.errors import UsageError
from qtui_core.quant import find_outliers, statistics
from qtui_core.quant.columns import threshold_ladder
from qtui_core.quant.elements import ArrayRows
from qtui_core.quant.layout import matrix_shape
from qtui_core.quant.outliers import crowded_columns, find_beyond, poisson_tail


def planted(rows=600, columns=500):
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    x[:, 17] *= 25
    x[: rows // 15, 300] = -30
    x[5, 6] = 90
    return x


def check_report(report, x, beyond, distance):
    """`beyond` is a mask; `distance`, by which the top is ordered, an array."""
    stats, wide = statistics(x), np.where(np.isfinite(x), x, 0).astype(np.float64)
    assert report.count == beyond.sum()
    assert report.share == beyond.sum() / np.isfinite(x).sum()
    energy = (wide[beyond] ** 2).sum() / (wide**2).sum()
    assert report.energy_share == pytest.approx(energy, rel=1e-5)
    counts = beyond.sum(axis=0)
    assert {c.column: c.count for c in report.columns} == {
        c: counts[c] for c in np.flatnonzero(counts)
    }
    found = [c.count for c in report.columns]
    assert found == sorted(found, reverse=True)
    order = np.argsort(-distance, axis=None, kind="stable")[: min(10, report.count)]
    assert [(o.row, o.column) for o in report.top] == [divmod(int(i), x.shape[1]) for i in order]
    for o in report.top:
        assert o.value == x[o.row, o.column]
        assert o.sigmas == pytest.approx(abs(o.value - stats.mean) / stats.std)
    assert report.column_total == x.shape[1]


# Beyond a number of standard deviations


@over("sigma", [6.0, 3.0, 12.0])
def test_outliers_against_plain_numpy(sigma):
    x = planted()
    x[100, 100], x[200, 200] = np.inf, np.nan
    stats = statistics(x)
    distance = np.abs(np.where(np.isfinite(x), x, stats.mean).astype(np.float64) - stats.mean)
    report = find_outliers(x, stats, sigma=sigma)
    check_report(report, x, distance > sigma * stats.std, distance)
    assert find_outliers(x, sigma=sigma, top=3).top == report.top[:3]


def test_columns_with_more_outliers_than_chance():
    report = find_outliers(planted())
    columns, share = crowded_columns(report)
    assert columns == 2
    assert share == (report.columns[0].count + report.columns[1].count) / report.count


@over("count", [1, 2, 3, 10, 100, 1000, 20_000])
@over("seed", range(2))
def test_outliers_that_fall_anywhere_crowd_no_column(count, seed):
    random = np.random.default_rng(seed)
    x = random.standard_normal((512, 2048)).astype(np.float32)
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


@over("mean", [3e6, -3e6, 33333333.0, 1e8])
def test_outliers_far_from_zero(mean):
    """The mean is so large that the nearest float32 numbers are more than a sigma away."""
    random = np.random.default_rng(0)
    steps = random.choice([-1, 0, 0, 0, 0, 0, 1], (500, 400))
    steps[random.random(steps.shape) < 1e-3] = 9
    steps[7, 7] = -10
    x = np.float32(mean).astype(np.float64) + steps * np.spacing(np.float32(abs(mean)))
    x = x.astype(np.float32)
    stats = statistics(x)
    sigmas = np.abs(x.astype(np.float64) - stats.mean) / stats.std
    for sigma in (1.0, 6.0, sigmas.max() * (1 - 1e-9)):
        assert find_outliers(x, stats, sigma=sigma).count == (sigmas > sigma).sum() > 0


def test_without_outliers():
    for x in (np.ones((4, 4)), np.zeros((4, 4)), np.empty((0, 4)), np.full((2, 2), np.nan)):
        report = find_outliers(x)
        assert (report.count, report.share, report.top, report.columns) == (0, 0.0, (), ())
        assert crowded_columns(report) == (0, 0.0)


def test_vectors_have_no_columns_and_ties_the_order_of_the_tensor():
    x = np.zeros(10_000)
    x[77] = 5
    report = find_outliers(x)
    assert [(o.row, o.column, o.value) for o in report.top] == [(0, 77, 5.0)]
    assert report.columns == ()
    x = np.zeros((100, 100))
    x[3, 4] = x[90, 2] = 1.0
    x[7, 7] = x[0, 0] = -1.0
    top = [(o.row, o.column) for o in find_outliers(x, top=4).top]
    assert top == [(0, 0), (3, 4), (7, 7), (90, 2)]  # the mean is zero


# Columns


@over("shape", [(600, 512), (3, 50, 70), (9, 200_001), (1, 40), (33, 1), (11,)])
@over("make", [np.asarray, ArrayRows])
def test_columns_against_plain_numpy(shape, make):
    x = np.random.default_rng(1).standard_t(3, shape).astype(np.float32)
    found = column_statistics(make(x))
    wide = x.reshape(matrix_shape(shape)).astype(np.float64)
    assert (found.absmax == np.abs(wide).max(axis=0)).all()
    np.testing.assert_allclose(found.rms, np.sqrt((wide**2).mean(axis=0)), rtol=1e-9)
    assert found.median_absmax == np.median(found.absmax)
    assert found.median_rms == np.median(found.rms)


def test_large_columns_are_ranked_by_their_ratio_to_the_median():
    x = planted()
    found = column_statistics(x)
    rms = np.sqrt((x.astype(np.float64) ** 2).mean(axis=0))
    absmax = np.abs(x).max(axis=0).astype(float)
    assert [c.column for c in found.standing_out()] == [6, 17, 300]
    for c in found.standing_out():
        assert c.absmax == absmax[c.column]
        assert c.absmax_ratio == c.absmax / np.median(absmax)
        assert c.rms_ratio == pytest.approx(rms[c.column] / np.median(rms))
    ranked = [c.absmax for c in found.largest(10_000)]
    assert (len(ranked), ranked) == (500, sorted(ranked, reverse=True))


@over("rows", [1, 2, 3, 4, 8, 100])
def test_no_gaussian_column_stands_out(rows):
    """For any number of rows; columns of one or two rows differ as much as single numbers do."""
    x = np.random.default_rng(rows).standard_normal((rows, 20_000)).astype(np.float32)
    assert column_statistics(x).standing_out() == ()


def test_columns_that_stand_out_by_their_rms_or_not_at_all():
    x = np.full((400, 50), 0.01, np.float32)
    x[0] = 1.0  # every column has the same largest magnitude
    x[:, 7] = 1.0
    assert [c.column for c in column_statistics(x).standing_out()] == [7]
    x = np.zeros((6, 5), np.float32)
    x[2, 3] = 2.0
    found = column_statistics(x)
    assert found.standing_out() == ()
    assert [(c.column, c.absmax_ratio) for c in found.largest(2)] == [(3, np.inf), (0, 1.0)]


def test_columns_without_what_is_not_finite_and_without_elements():
    x = planted(40, 330)
    x[1, 2], x[3, 4], x[:, 8] = np.inf, np.nan, np.nan
    found = column_statistics(x)
    clean = np.where(np.isfinite(x), x, 0).astype(np.float64)
    assert (found.absmax == np.abs(clean).max(axis=0)).all()
    counted = np.maximum(np.isfinite(x).sum(axis=0), 1)
    assert found.rms == pytest.approx(np.sqrt((clean**2).sum(axis=0) / counted))
    assert column_statistics(np.empty((0, 3))).absmax.tolist() == [0, 0, 0]
    found = column_statistics(np.empty((3, 0)))
    assert (found.largest(3), found.standing_out(), found.median_rms) == ((), (), 0.0)


# Beyond a magnitude


def kept_columns(columns, threshold):
    """The columns with an element of at least `threshold` as float32, which LLM.int8() keeps in 16
    bits (Dettmers et al. 2022), the largest absmax first."""
    with np.errstate(over="ignore"):
        return columns.largest(int((columns.absmax >= np.float32(threshold)).sum()))


@over("threshold", [0.5, 3.0, 6.0, 70.0, 1e30, 5.5e-45])
def test_elements_beyond_a_threshold_against_plain_numpy(threshold):
    x = planted()
    x[9, 9], x[0, 0], x[1, 1] = 6.0, np.inf, np.nan
    clean = np.abs(np.where(np.isfinite(x), x, 0).astype(np.float64))
    report = find_beyond(x, threshold)
    assert (report.threshold, report.sigma) == (threshold, None)
    check_report(report, x, clean >= threshold, clean)
    columns = kept_columns(column_statistics(x), threshold)
    assert {c.column for c in columns} == {c.column for c in report.columns}


@over("threshold", [0.1, 0.3, 0.7, 6.0])
def test_an_element_that_was_stored_as_the_threshold_is_an_outlier(threshold):
    """0.7 as a float32 is below 0.7."""
    x = np.zeros((4, 6), np.float32)
    x[1, 2], x[0, 5] = threshold, np.nextafter(np.float32(threshold), np.float32(0))
    assert find_beyond(x, threshold).count == 1


@over("threshold", [0.0, -1.0, 1e-60, np.inf, np.nan])
def test_a_threshold_is_a_magnitude(threshold):
    with pytest.raises(UsageError, match="magnitude above 0"):
        find_beyond(np.ones((2, 2)), threshold)


@over("scale", [1.0, 1e-3, 1e30, 1e-44])
def test_a_ladder_of_thresholds_lets_columns_in_one_after_another(scale):
    with np.errstate(under="ignore"):
        columns = column_statistics(planted() * np.float32(scale))
    ladder = threshold_ladder(columns)
    counts = [len(kept_columns(columns, threshold)) for threshold in ladder]
    assert list(ladder) == sorted(ladder, reverse=True)
    assert counts[0] == 0
    assert counts == sorted(set(counts))
    if scale != 1e-44:  # where numbers are so few that columns are equal
        assert counts == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
        assert all(float(f"{threshold:.6g}") == threshold for threshold in ladder)
    assert counts[-1] <= 500 // 8


def test_ladders_of_few_columns():
    assert threshold_ladder(column_statistics(np.zeros((3, 3)))) == ()
    assert threshold_ladder(column_statistics(np.empty((0, 3)))) == ()
    for x, counts in ((np.ones((4, 8)), [0]), (np.ones((4, 1)), [0, 1])):
        columns = column_statistics(x)
        assert [len(kept_columns(columns, t)) for t in threshold_ladder(columns)] == counts
