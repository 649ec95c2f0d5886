import math

import numpy as np
import pytest

from qtui_core.quant.gaussian.normal import (
    absmax_nodes,
    density,
    distribution,
    interval_nodes,
    min_max_nodes,
    upper_quantile,
    upper_tail,
)


def test_distribution_is_that_of_math():
    x = np.concatenate([np.linspace(-9, 9, 20_011), [-np.inf, np.inf, 0, 40, -40]])
    expected = [0.5 * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(distribution(x), expected, rtol=0, atol=3e-16)


def test_density_is_the_derivative():
    x = np.linspace(-6, 6, 1001)
    slope = (distribution(x + 1e-4) - distribution(x - 1e-4)) / 2e-4
    np.testing.assert_allclose(density(x), slope, atol=1e-9)
    assert density(np.array([np.inf]))[0] == 0


@pytest.mark.parametrize("p", [1e-200, 1e-12, 0.01, 0.5, 0.9, 1 - 1e-9])
def test_quantile_inverts_the_tail(p):
    assert upper_tail(upper_quantile(p)) == pytest.approx(p, rel=1e-7)


def test_interval_nodes_integrate():
    x, w = interval_nodes(-2, 5, 3)
    assert (w * x**5).sum() == pytest.approx((5**6 - 2**6) / 6)


@pytest.mark.parametrize("count", [1, 2, 5, 64, 4096, 2**24])
def test_largest_magnitude_of_a_sample(count):
    m, weights = absmax_nodes(count, 12)
    assert weights.sum() == pytest.approx(1)
    # E[max] = ∫ P(max > t) dt
    t = np.linspace(0, 12, 200_001)
    inside = np.array([math.erf(v / math.sqrt(2)) for v in t[::10]])
    mean = np.trapezoid(1 - inside**count, t[::10])
    assert weights @ m == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("count", [2, 3, 16, 1024])
def test_smallest_and_largest_of_a_sample(count):
    low, high, weights = min_max_nodes(count, 6)
    assert weights.sum() == pytest.approx(1)
    assert (low < 0).all()
    assert (high > 0).all()
    random = np.random.default_rng(0)
    sample = random.standard_normal((400_000 // count + 4000, count))
    a, b = sample.min(axis=1), sample.max(axis=1)
    both = (a < 0) & (b > 0)
    for ours, theirs in ((low, a), (high, b), (low * high, a * b)):
        spread = theirs[both].std() / math.sqrt(both.sum())
        assert weights @ ours == pytest.approx(theirs[both].mean(), abs=5 * spread)
