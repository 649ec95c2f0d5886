"""The fixed normal sample."""

import math

import numpy as np
import pytest

from qtui_core.quant.gaussian import LONGEST, normal_rows, usual_absmax


@pytest.mark.parametrize("length", [0, 1, 7, 64, 1000, LONGEST])
def test_the_sample_is_standard_normal(length):
    rows = normal_rows(length)
    assert rows.shape[1] == length or length == 0
    assert rows.mean() == pytest.approx(0, abs=1e-6)
    assert np.square(rows, dtype=np.float64).mean() == pytest.approx(1, rel=2e-3)
    assert (np.abs(rows) > 2).mean() == pytest.approx(math.erfc(2 / math.sqrt(2)), rel=0.02)


@pytest.mark.parametrize("count", [64, 1000, 1 << 24])
def test_groups_reach_as_far_as_so_many_elements_do(count):
    """Half of them on each side of the median: P(absmax < m) = erf(m / sqrt 2)^count = 1/2."""
    usual = usual_absmax(count)
    assert math.erf(usual / math.sqrt(2)) ** count == pytest.approx(0.5, rel=1e-3)
    beyond = (np.abs(normal_rows(count)).max(axis=1) > usual).mean()
    assert beyond == pytest.approx(0.5, abs=0.1 if count > 64 else 0.02)
