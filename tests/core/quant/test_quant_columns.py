"""Column statistics and absolute thresholds, compared with numpy."""

import numpy as np
import pytest
from every import over
from shorthands import column_statistics

from qtui_core.errors import UsageError
from qtui_core.quant import statistics
from qtui_core.quant.columns import threshold_ladder
from qtui_core.quant.elements import ArrayRows
from qtui_core.quant.layout import matrix_shape
from qtui_core.quant.outliers import find_beyond


def planted(rows=600, columns=500):
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    x[:, 17] *= 25
    x[5, columns - 200] = -70
    return x


@over("shape", [(600, 512), (3, 50, 70), (9, 200_001), (1, 40), (33, 1), (11,)])
@over("make", [np.asarray, ArrayRows])
def test_against_plain_numpy(shape, make):
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
    first, second = found.standing_out()
    assert (first.column, second.column) == (17, 300)
    for c in (first, second):
        assert c.absmax == np.abs(x[:, c.column]).max()
        assert c.absmax_ratio == c.absmax / np.median(np.abs(x).max(axis=0).astype(float))
        rms = np.sqrt((x.astype(np.float64) ** 2).mean(axis=0))
        assert c.rms_ratio == pytest.approx(rms[c.column] / np.median(rms))
    absmax = [c.absmax for c in found.largest(500)]
    assert absmax == sorted(absmax, reverse=True)
    assert len(found.largest(10_000)) == 500


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 100])
def test_no_gaussian_column_stands_out(rows):
    """For any number of rows; columns of one or two rows differ as much as single numbers do."""
    x = np.random.default_rng(rows).standard_normal((rows, 20_000)).astype(np.float32)
    assert column_statistics(x).standing_out() == ()


def test_a_column_may_stand_out_by_its_rms_alone():
    x = np.full((400, 50), 0.01, np.float32)
    x[0] = 1.0  # every column has the same largest magnitude
    x[:, 7] = 1.0
    assert [c.column for c in column_statistics(x).standing_out()] == [7]


def test_columns_beside_a_median_of_zero():
    x = np.zeros((6, 5), np.float32)
    x[2, 3] = 2.0
    found = column_statistics(x)
    assert found.standing_out() == ()
    assert [(c.column, c.absmax_ratio) for c in found.largest(2)] == [(3, np.inf), (0, 1.0)]


def kept_columns(columns, threshold):
    """The columns with an element of at least `threshold` as float32, which LLM.int8() keeps in 16
    bits (Dettmers et al. 2022), the largest absmax first."""
    with np.errstate(over="ignore"):
        return columns.largest(int((columns.absmax >= np.float32(threshold)).sum()))


def test_columns_at_least_as_large_as_a_threshold():
    x = np.zeros((4, 6), np.float32)
    x[1, 2], x[3, 4], x[0, 5] = 6.0, -9.0, np.nextafter(np.float32(6), np.float32(0))
    assert [c.column for c in kept_columns(column_statistics(x), 6.0)] == [4, 2]


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.7, 6.0])
def test_an_element_that_was_stored_as_the_threshold_is_an_outlier(threshold):
    """0.7 as a float32 is below 0.7."""
    x = np.zeros((4, 6), np.float32)
    x[1, 2] = threshold
    assert find_beyond(x, threshold).count == 1
    assert [c.column for c in kept_columns(column_statistics(x), threshold)] == [2]


def test_what_is_not_finite_is_left_out():
    x = planted(40, 230)
    x[1, 2], x[3, 4], x[:, 6] = np.inf, np.nan, np.nan
    found = column_statistics(x)
    clean = np.where(np.isfinite(x), x, 0).astype(np.float64)
    assert (found.absmax == np.abs(clean).max(axis=0)).all()
    counted = np.maximum(np.isfinite(x).sum(axis=0), 1)
    assert found.rms == pytest.approx(np.sqrt((clean**2).sum(axis=0) / counted))
    assert found.absmax[6] == found.rms[6] == 0


def test_tensors_without_elements():
    assert column_statistics(np.empty((0, 3))).absmax.tolist() == [0, 0, 0]
    found = column_statistics(np.empty((3, 0)))
    assert (found.largest(3), found.standing_out(), found.median_rms) == ((), (), 0.0)
    assert find_beyond(np.empty((0, 3)), 1.0).count == 0


@pytest.mark.parametrize("threshold", [0.5, 3.0, 6.0, 70.0, 1e30, 5.5e-45])
def test_elements_beyond_a_threshold_against_plain_numpy(threshold):
    x = planted()
    x[9, 9] = 6.0
    x[0, 0], x[1, 1] = np.inf, np.nan
    report = find_beyond(x, threshold, top=7)
    wide = x.astype(np.float64)
    beyond = np.isfinite(wide) & (np.abs(wide) >= threshold)
    clean = np.where(np.isfinite(wide), wide, 0)
    assert (report.threshold, report.sigma) == (threshold, None)
    assert report.count == beyond.sum()
    assert report.share == beyond.sum() / np.isfinite(wide).sum()
    energy = (clean[beyond] ** 2).sum() / (clean**2).sum()
    assert report.energy_share == pytest.approx(energy, rel=1e-5)
    counts = beyond.sum(axis=0)
    assert {c.column: c.count for c in report.columns} == dict(
        zip(np.flatnonzero(counts), counts[counts > 0], strict=True)
    )
    columns = kept_columns(column_statistics(x), threshold)
    assert {c.column for c in columns} == {c.column for c in report.columns}
    stats = statistics(x)
    order = np.argsort(-np.abs(clean), axis=None, kind="stable")[: min(7, report.count)]
    assert [(o.row, o.column) for o in report.top] == [divmod(int(i), 500) for i in order]
    for o in report.top:
        assert o.sigmas == pytest.approx(abs(o.value - stats.mean) / stats.std)


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1e-60, np.inf, np.nan])
def test_a_threshold_is_a_magnitude(threshold):
    with pytest.raises(UsageError, match="magnitude above 0"):
        find_beyond(np.ones((2, 2)), threshold)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e30, 1e-44])
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
    equal = column_statistics(np.ones((4, 8)))
    assert [len(kept_columns(equal, t)) for t in threshold_ladder(equal)] == [0]
    one = column_statistics(np.ones((4, 1)))
    assert [len(kept_columns(one, t)) for t in threshold_ladder(one)] == [0, 1]
