"""NF4 from quantiles, with statistics.NormalDist only, and with torch's float32 formula."""

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


def test_six_of_sixteen_are_right_in_float64():
    found = construct_nf4()
    assert found.exact == 6
    assert max(abs(level.ulps) for level in found.levels) == 6
    assert "6 of 16" in found.steps[-1].sentence


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


def normal(count):
    return np.random.default_rng(0).standard_normal(count).astype(np.float32)


def test_nf4_of_a_matrix_is_that_of_its_elements_in_order():
    x = normal(50 * 70).reshape(50, 70)
    flat = quantize(x.reshape(-1), Scheme.parse("nf4"))
    matrix = quantize(x, Scheme.parse("nf4"))
    np.testing.assert_array_equal(matrix.codes, flat.codes)
    np.testing.assert_array_equal(matrix.dequantize().reshape(-1), flat.dequantize())


# Double quantization


def test_halfway_between_two_entries_of_the_map_is_the_lower_one():
    table = dynamic_map()
    halfway = (table[:-1] + table[1:]) / np.float32(2)
    np.testing.assert_array_equal(table[nearest_codes(halfway)], table[:-1])


def nested_by_brute_force(absmax, offset):
    """The nearest entry of the map in exact arithmetic, for each block of 256."""
    table = dynamic_map().astype(np.float64)
    codes, constants = [], []
    for start in range(0, absmax.size, NESTED_BLOCK):
        deviation = (absmax[start : start + NESTED_BLOCK] - np.float32(offset)).astype(np.float32)
        largest = np.abs(deviation).max()
        constants.append(largest)
        scaled = (deviation * (np.float32(1) / largest)).astype(np.float64)
        codes.append(np.abs(scaled[:, None] - table).argmin(axis=1))
    return np.concatenate(codes), np.array(constants, np.float32)


def test_nested_codes_are_the_nearest_of_the_map():
    x = normal(64 * 1000)
    q = quantize(x, Scheme.parse("nf4:dq"))
    single = quantize(x, Scheme.parse("nf4"))
    np.testing.assert_array_equal(q.codes, single.codes)
    codes, constants = nested_by_brute_force(single.scales, q.nested.offset)
    np.testing.assert_array_equal(q.nested.codes, codes)
    np.testing.assert_array_equal(q.nested.absmax, constants)
    np.testing.assert_array_equal(q.scales, q.nested.dequantize())
    assert q.nested.offset == pytest.approx(single.scales.mean(dtype=np.float64), rel=1e-7)


def test_one_block_alone_keeps_its_scale_exactly():
    x = normal(50)
    double, single = (quantize(x, Scheme.parse(text)) for text in ("nf4:dq", "nf4"))
    assert double.nested.absmax == [0]
    np.testing.assert_array_equal(double.scales, single.scales)
