"""NF4 from quantiles, with statistics.NormalDist only, and with torch's float32 formula."""

from statistics import NormalDist

import numpy as np
import pytest

from qtui_core.quant.codebook import NF4_LEVELS, OFFSET, construct_nf4


def levels_in_float64(offset):
    quantile = NormalDist().inv_cdf
    above = [quantile(offset + (0.5 - offset) * i / 8) for i in range(8)]
    below = [-quantile(offset + (0.5 - offset) * i / 7) for i in range(7)]
    values = sorted([*above, 0.0, *below])
    return [value / max(values) for value in values]


def ulps_between(one, other):
    """The number of nextafter steps from `other` to `one`."""
    one, other, steps = np.float32(one), np.float32(other), 0
    while other != one:
        other = np.nextafter(other, one)
        steps += 1
    return steps


def test_every_level_and_its_distance_from_the_published_one():
    found = construct_nf4()
    expected = levels_in_float64(OFFSET)
    for level, value, published in zip(found.levels, expected, NF4_LEVELS, strict=True):
        assert level.derived == pytest.approx(value, abs=1e-15)
        assert level.published == published
        assert abs(level.ulps) == ulps_between(value, published)
        if level.ulps:
            assert (level.ulps > 0) == (np.float32(value) > published)
    assert [level.code for level in found.levels] == list(range(16))


def test_six_of_sixteen_in_float64_and_all_in_float32():
    found = construct_nf4()
    assert found.exact == 6
    assert max(abs(level.ulps) for level in found.levels) == 6
    assert all(level.float32_ulps == 0 for level in found.levels)
    last = found.steps[-1].sentence
    assert "6 of 16" in last
    assert "16 of 16" in last


def test_float32_throughout_is_what_torch_computes():
    torch = pytest.importorskip("torch")
    quantile = NormalDist().inv_cdf
    above = [quantile(p) for p in torch.linspace(OFFSET, 0.5, 9)[:-1].tolist()]
    below = [-quantile(p) for p in torch.linspace(OFFSET, 0.5, 8)[:-1].tolist()]
    values = torch.tensor([*above, 0.0, *below]).sort().values
    np.testing.assert_array_equal((values / values.max()).numpy(), NF4_LEVELS)


def test_probabilities_and_quantiles_belong_together():
    found = construct_nf4()
    normal = NormalDist()
    for level in found.levels:
        if level.probability is None:
            assert level.code == 7
            assert level.quantile == level.derived == level.published == 0
        else:
            assert normal.cdf(level.quantile) == pytest.approx(level.probability, abs=1e-12)
    assert found.levels[0].probability == pytest.approx(1 - OFFSET)
    assert found.levels[15].probability == OFFSET
    assert pytest.approx(1 - (1 / 32 + 1 / 30) / 2, abs=1e-7) == OFFSET


def test_another_offset_gives_other_levels():
    other = construct_nf4(0.95)
    assert other.levels[8].derived == pytest.approx(levels_in_float64(0.95)[8], abs=1e-15)
    assert other.exact < 6
    for offset in (0.5, 1.0, 0.2):
        with pytest.raises(ValueError, match="between"):
            construct_nf4(offset)
