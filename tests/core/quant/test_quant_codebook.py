"""NF4 from quantiles, with statistics.NormalDist only, and double quantization by brute force."""

from statistics import NormalDist

import numpy as np
import pytest

from qtui_core.quant import Scheme, quantize
from qtui_core.quant.codebook import (
    NESTED_BLOCK,
    NF4_LEVELS,
    OFFSET,
    construct_nf4,
    dynamic_map,
    nearest_codes,
)

NORMAL = NormalDist()


def levels_in_float64(offset):
    above = [NORMAL.inv_cdf(offset + (0.5 - offset) * i / 8) for i in range(8)]
    below = [-NORMAL.inv_cdf(offset + (0.5 - offset) * i / 7) for i in range(7)]
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
    """Six are equal in float64."""
    found = construct_nf4()
    expected = levels_in_float64(OFFSET)
    for level, value, published in zip(found.levels, expected, NF4_LEVELS, strict=True):
        assert level.derived == pytest.approx(value, abs=1e-15)
        assert level.published == published
        assert abs(level.ulps) == ulps_between(value, published)
        assert not level.ulps or (level.ulps > 0) == (np.float32(value) > published)
        if level.code == 7:
            assert (level.probability, level.quantile, level.derived) == (None, 0, 0)
        else:
            assert NORMAL.cdf(level.quantile) == pytest.approx(level.probability, abs=1e-12)
    assert [level.code for level in found.levels] == list(range(16))
    assert (found.levels[0].probability, found.levels[15].probability) == (1 - OFFSET, OFFSET)
    assert pytest.approx(1 - (1 / 32 + 1 / 30) / 2, abs=1e-7) == OFFSET
    assert (found.exact, max(abs(level.ulps) for level in found.levels)) == (6, 6)
    assert "6 of 16" in found.steps[-1].sentence


def test_in_float32_throughout_all_are_the_published_ones():
    torch = pytest.importorskip("torch")
    sides = [
        sign * NORMAL.inv_cdf(p)
        for sign, count in ((1, 9), (-1, 8))
        for p in torch.linspace(OFFSET, 0.5, count)[:-1].tolist()
    ]
    levels = torch.tensor(sorted([*sides, 0.0]))
    assert (levels / levels.max()).tolist() == NF4_LEVELS.tolist()


def test_halfway_between_two_entries_of_the_map_is_the_lower_one():
    table = dynamic_map()
    halfway = (table[:-1] + table[1:]) / np.float32(2)
    np.testing.assert_array_equal(table[nearest_codes(halfway)], table[:-1])


def test_nested_codes_are_the_nearest_of_the_map():
    x = np.random.default_rng(0).standard_normal(64 * 1000).astype(np.float32)
    q, single = (quantize(x, Scheme.parse(text)) for text in ("nf4:dq", "nf4"))
    np.testing.assert_array_equal(q.codes, single.codes)
    table = dynamic_map().astype(np.float64)
    for at in range(0, single.scales.size, NESTED_BLOCK):
        block = single.scales[at : at + NESTED_BLOCK] - np.float32(q.nested.offset)
        largest = np.abs(block).max()
        assert q.nested.absmax[at // NESTED_BLOCK] == largest
        scaled = (block * (np.float32(1) / largest)).astype(np.float64)
        nearest = np.abs(scaled[:, None] - table).argmin(axis=1)
        np.testing.assert_array_equal(q.nested.codes[at : at + NESTED_BLOCK], nearest)
    np.testing.assert_array_equal(q.scales, q.nested.dequantize())
    assert q.nested.offset == pytest.approx(single.scales.mean(dtype=np.float64), rel=1e-7)


def test_one_block_alone_keeps_its_scale_exactly():
    x = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    double, single = (quantize(x, Scheme.parse(text)) for text in ("nf4:dq", "nf4"))
    assert double.nested.absmax == [0]
    np.testing.assert_array_equal(double.scales, single.scales)
