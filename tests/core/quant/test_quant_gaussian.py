"""The expected error on Gaussian data, compared with `measure` on Gaussian data."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from every import in_parts, left_out, over
from shorthands import code_occupancy

from qtui_core.quant import Scheme, gaussian_relative_mse, measure
from qtui_core.quant.gaussian import LONGEST, _relative_mse, normal_rows, usual_absmax
from qtui_core.quant.measure import decibels
from qtui_core.quant.occupancy import expected_shares

SHAPE = (1024, 1024)
FACTS = json.loads(Path(__file__).with_name("gaussian_facts.json").read_text("utf-8"))
#: The shapes and standard deviations of each row of facts, SQNR in decibels.
FACTS_OF = [((4096, 4096), 1.0), ((1000, 1536), 1.0), ((64, 300), 1.0), ((4096, 4096), 0.0237)]


@in_parts(4)
@over("text", FACTS)
def test_the_sample_gives_what_exact_quadrature_gave(text, parts):
    """The facts are integrals over the density of the extremes of groups."""
    if left_out(parts, (text, FACTS)):
        return
    scheme = Scheme.parse(text)
    for (shape, sigma), fact in zip(FACTS_OF, FACTS[text], strict=True):
        found = decibels(gaussian_relative_mse(scheme, shape, sigma=sigma))
        if fact is None:  # no error at all, or columns beyond the threshold
            assert found is None or found > 130
        else:
            assert found == pytest.approx(fact, abs=0.05), (shape, sigma)


def test_casts_below_the_normal_numbers_of_float32():
    x = np.random.default_rng(0).standard_normal((500, 500)) * 2e-39
    for text in ("bf16", "tf32"):
        report = measure(x, Scheme.parse(text))
        assert report.relative_mse == pytest.approx(report.gaussian_relative_mse, rel=2e-2)


@over("text", ["int8:model", "int4:model:asym", "int4:model:signed", "e4m3:model"])
@over("extent", [0.5, 3.0, 20.0, (-1.0, 4.0)])
@over("sigma", [1.0, 0.1])
def test_a_given_scale_of_the_model(text, extent, sigma):
    """Within four standard errors of a sample, or a percent."""
    scheme, how = Scheme.parse(text), {"model_absmax": extent}
    random = np.random.default_rng(42)
    parts = random.standard_normal((16, 64, 1024), dtype=np.float32) * np.float32(sigma)
    reports = [measure(part, scheme, **how) for part in parts]
    found = [report.relative_mse for report in reports]
    expected = gaussian_relative_mse(scheme, SHAPE, sigma=sigma, **how)
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) == pytest.approx(expected, abs=4 * error, rel=1e-2)
    assert found[0] == pytest.approx(reports[0].gaussian_relative_mse, rel=0.1)


def test_what_is_exact_and_what_is_not_known():
    for text in ("int4:block1", "int8:block1:asym", "nf4:block1", "e4m3:block1"):
        assert gaussian_relative_mse(Scheme.parse(text), (5, 5)) == pytest.approx(0, abs=1e-13)
    for text, shape in (("int8:row:outliers3", CODES_SHAPE), ("nf4", (0, 8))):
        assert expected_shares(Scheme.parse(text), shape) == (None, None)
    assert gaussian_relative_mse(Scheme.parse("nf4"), (0, 3)) is None


@pytest.mark.bench
def test_expectations_are_quick():
    times = {}
    for text in (
        "nf4:dq", "int8:row:asym", "int4:group64", "e4m3", "bf16", "tf32", "int8:column", "mxfp4",
        "mxint8", "mxfp8-e5m2:rceil", "nvfp4", "ternary:row",
    ):  # fmt: skip
        best = 1.0
        for _ in range(3):
            for cached in (_relative_mse, normal_rows):
                cached.cache_clear()
            start = time.process_time()
            gaussian_relative_mse(Scheme.parse(text), (4096, 11008), sigma=0.02)
            best = min(best, time.process_time() - start)
        times[text] = best
    assert max(times.values()) < 0.3, times  # 0.05 on a machine with nothing else to do


@over("length", [0, 1, 7, 64, 1000, LONGEST])
def test_the_sample_is_standard_normal(length):
    rows = normal_rows(length)
    assert rows.shape[1] == length or length == 0
    assert rows.mean() == pytest.approx(0, abs=1e-6)
    assert np.square(rows, dtype=np.float64).mean() == pytest.approx(1, rel=2e-3)
    assert (np.abs(rows) > 2).mean() == pytest.approx(math.erfc(2 / math.sqrt(2)), rel=0.02)


@over("count", [64, 1000, 1 << 24])
def test_groups_reach_as_far_as_so_many_elements_do(count):
    """Half of them on each side of the median: P(absmax < m) = erf(m / sqrt 2)^count = 1/2."""
    usual = usual_absmax(count)
    assert math.erf(usual / math.sqrt(2)) ** count == pytest.approx(0.5, rel=1e-3)
    beyond = (np.abs(normal_rows(count)).max(axis=1) > usual).mean()
    assert beyond == pytest.approx(0.5, abs=0.1 if count > 64 else 0.02)


# Codes


CODES_SHAPE = (1024, 512)
PIECES = 16
CODED = [
    "nf4:block64", "nf4:block64:dq", "nf4:block16", "nf4:block4096", "fp4:block64", "fp4:block7",
    "int4:group64", "int4:row", "int4:column", "int4:tensor", "int4:tile64x64", "int4:group7",
    "int4:group64:signed", "int4:group64:asym", "int4:group16:asym", "int4:group3:asym",
    "int4:group2:asym", "int4:group1:asym", "int2:group64:asym", "int3:group64:asym",
    "int8:row", "int8:row:asym", "int2:group64", "e2m1:group64", "e3m0:group64", "e4m3:tensor",
    "mxfp4", "mxfp4:ceil", "mxfp4:even", "mxfp4:rceil", "mxint8", "mxfp6-e3m2", "nvfp4",
    "ternary", "ternary:row",
]  # fmt: skip


@pytest.fixture(scope="module")
def sample():
    return np.random.default_rng(3).standard_normal(CODES_SHAPE, dtype=np.float32)


@in_parts(2)
@over("text", CODED)
def test_shares_of_a_sample(sample, text, parts):
    """The tolerance is four standard errors of the sample, which are larger for groups than for
    single elements, plus the error of the quadrature where a zero point jumps from node to node."""
    if left_out(parts, (text, CODED)):
        return
    scheme = Scheme.parse(text)
    whole = text.endswith(("column", "tensor")) or text == "ternary"
    slack = {"int2:group64:asym": 1e-3}.get(text, 4e-4)
    found = code_occupancy(sample, scheme)
    expected = found.expected
    assert expected is not None
    assert expected.sum() == pytest.approx(1, abs=1e-9)
    assert (expected[~found.reachable] == 0).all()
    shares = found.counts / found.total
    if whole:
        error = np.full(shares.shape, 2e-3)  # one scale, which varies from tensor to tensor
        if text == "int4:column":
            error = np.full(shares.shape, 2e-4)
    else:
        parts = [code_occupancy(part, scheme) for part in np.split(sample, PIECES)]
        each = np.array([part.counts / part.total for part in parts])
        error = each.std(axis=0) / np.sqrt(PIECES)
    assert (np.abs(shares - expected) < 4 * error + slack).all(), np.abs(shares - expected).max()
    if text in ("nf4:block64", "int4:group64:asym", "mxfp4", "nvfp4"):
        assert found.expected_density.sum() == pytest.approx(1, abs=1e-9)
        assert np.abs(found.density / found.total - found.expected_density).max() < 2e-3


def test_full_integers_put_the_lower_extreme_on_an_edge(sample):
    """-absmax lies between two codes; the rounding of the scale decides, and it becomes the outer
    one."""
    found = code_occupancy(sample, Scheme.parse("int4:group64:full"))
    assert np.abs(found.counts / found.total - found.expected).max() < 2.5e-3


def test_the_size_of_the_values_matters_for_powers_of_two_only(sample):
    for text, same in (("nf4", True), ("int4:group64:asym", True), ("mxfp4", False)):
        one, other = (
            expected_shares(Scheme.parse(text), CODES_SHAPE, sigma=sigma)[0] for sigma in (1.0, 0.7)
        )
        assert np.allclose(one, other, atol=1e-12) is same
    quarter = expected_shares(Scheme.parse("mxfp4"), CODES_SHAPE, sigma=0.25)[0]
    np.testing.assert_allclose(
        quarter, expected_shares(Scheme.parse("mxfp4"), CODES_SHAPE)[0], atol=1e-12
    )
    small = code_occupancy(sample * np.float32(0.7e-3), Scheme.parse("mxfp4"))
    assert np.abs(small.counts / small.total - small.expected).max() < 2e-3
