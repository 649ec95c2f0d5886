"""The difference of two matrices, against numpy in float64."""

import math

import numpy as np
import pytest
from shorthands import Rows

from qtui_core.inspection.comparison.difference import difference


def pair(rows=300, columns=701, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((rows, columns)).astype(np.float32)
    b = a + (0.01 * rng.standard_normal((rows, columns))).astype(np.float32)
    return a, b


def test_every_figure_is_that_of_float64():
    a, b = pair()
    found = difference(Rows(a), Rows(b), [(0, 300)])
    x, y = a.astype(np.float64), b.astype(np.float64)
    d = y - x
    assert found.count == x.size
    assert found.mse == pytest.approx((d**2).mean(), rel=1e-12)
    assert found.relative_mse == pytest.approx((d**2).sum() / (x**2).sum(), rel=1e-12)
    assert found.sqnr_db == pytest.approx(-10 * math.log10((d**2).sum() / (x**2).sum()))
    assert found.max_abs_error == np.abs(d).max()
    assert found.max_abs_error_index == np.unravel_index(np.abs(d).argmax(), d.shape)
    assert found.mean_shift == pytest.approx(d.mean(), rel=1e-9)
    cosine = (x * y).sum() / math.sqrt((x**2).sum() * (y**2).sum())
    assert found.cosine == pytest.approx(cosine, rel=1e-12)
    assert not found.identical


def test_only_the_strips_are_read_and_rows_are_those_of_the_tensor():
    a, b = pair()
    b[50] += 100  # in no strip
    b[201, 7] += 50
    found = difference(Rows(a), Rows(b), [(10, 20), (200, 210)])
    d = (b.astype(np.float64) - a)[np.r_[10:20, 200:210]]
    assert found.mse == pytest.approx((d**2).mean(), rel=1e-12)
    assert found.max_abs_error_index == (201, 7)
    assert found.count == 20 * 701


def test_identical_is_to_the_bit_and_nothing_is_relative_to_zero():
    a, _ = pair()
    assert difference(Rows(a), Rows(a.copy()), [(0, 300)]).identical
    b = a.copy()
    a[7, 3], b[7, 3] = 0.0, -0.0
    found = difference(Rows(a), Rows(b), [(0, 300)])
    assert (found.identical, found.mse, found.sqnr_db) == (False, 0, None)
    found = difference(Rows(np.zeros((4, 4), "f4")), Rows(np.ones((4, 4), "f4")), [(0, 4)])
    assert (found.relative_mse, found.cosine, found.mse) == (None, None, 1)


def test_values_that_are_not_finite_are_counted_and_left_out():
    a, b = pair(20, 30)
    a[3, 4], b[5, 6], b[5, 7] = np.nan, np.inf, -np.inf
    found = difference(Rows(a), Rows(b), [(0, 20)])
    finite = np.isfinite(a) & np.isfinite(b)
    d = (b.astype(np.float64) - a)[finite]
    assert found.nonfinite == 3
    assert found.mse == pytest.approx((d**2).mean(), rel=1e-12)
    assert np.isfinite(found.max_abs_error)
