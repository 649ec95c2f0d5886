"""The expected error on Gaussian data, compared with `measure` on Gaussian data."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from every import in_parts, left_out, over
from scheme_table import EVERY_SCHEME

from qtui_core.quant import Scheme, gaussian_relative_mse, levels, measure, quantize
from qtui_core.quant.gaussian import _relative_mse, normal_rows
from qtui_core.quant.layout import run_lengths
from qtui_core.quant.levels import levels_at_scale
from qtui_core.quant.measure import decibels

SHAPE = (1024, 1024)
CASTS = ["bf16", "fp16", "tf32"]
FACTS = json.loads(Path(__file__).with_name("gaussian_facts.json").read_text("utf-8"))
#: The shapes and standard deviations of each row of facts, SQNR in decibels.
FACTS_OF = [((4096, 4096), 1.0), ((1000, 1536), 1.0), ((64, 300), 1.0), ((4096, 4096), 0.0237)]


@pytest.fixture(scope="module")
def samples():
    random = np.random.default_rng(42)
    return [random.standard_normal(SHAPE, dtype=np.float32) for _ in range(2)]


def assert_expected(samples, text, model_absmax=None, sigma=1.0):
    """Checks an expected error within four standard errors of the sample, or half a percent."""
    scheme = Scheme.parse(text)
    axis = 1 if "column" in text else 0
    parts = [p * np.float32(sigma) for x in samples for p in np.split(x, 16, axis=axis)]
    found = [measure(p, scheme, model_absmax=model_absmax).relative_mse for p in parts]
    error = np.std(found) / np.sqrt(len(found))
    expected = gaussian_relative_mse(scheme, SHAPE, sigma=sigma, model_absmax=model_absmax)
    assert np.mean(found) == pytest.approx(expected, abs=4 * error, rel=1e-2), text


@in_parts(2)
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


@pytest.mark.parametrize(
    "text", ["int4:group48", "e4m3:group700", "nf4:block100", "int4:block999:asym"]
)
def test_short_last_groups_count_with_their_own_length(samples, text):
    scheme = Scheme.parse(text)
    assert len(run_lengths(scheme.granularity, SHAPE)) == 2
    assert np.mean([measure(x, scheme).relative_mse for x in samples]) == pytest.approx(
        gaussian_relative_mse(scheme, SHAPE), rel=1e-2
    )


@over("text", CASTS)
@over("sigma", [1.0, 0.02, 0.7, 3e-5, 2e-6, 4e-8, 1e-9, 900.0, 3e4, 1e6, 1e10])
def test_casts_depend_on_the_size_of_the_values(samples, text, sigma):
    x = samples[0] * np.float32(sigma)
    report = measure(x, Scheme.parse(text))
    assert report.relative_mse == pytest.approx(report.gaussian_relative_mse, rel=2e-2)


@over(
    ("text", "sigma"),
    [("fp16", 2.0**-k) for k in range(13, 27)]
    + [("bf16", 2.0**-k) for k in (124, 126, 127, 128, 129, 131)]
    + [("tf32", 2.0**-k) for k in (126, 128, 130, 132)],
)
def test_casts_around_their_smallest_numbers(text, sigma):
    """Brute force over every cell of the format with a noticeable share."""
    mantissa, lowest = {"fp16": (10, -14), "bf16": (7, -126), "tf32": (10, -126)}[text]
    exponents = np.arange(lowest, lowest + 18)
    normal = (1 + np.arange(2**mantissa) / 2**mantissa) * 2.0 ** exponents[:, None]
    numbers = np.concatenate(
        [np.arange(2**mantissa) * 2.0 ** (lowest - mantissa), normal.reshape(-1)]
    )
    numbers = numbers[numbers < 12 * sigma] / sigma
    edges = np.concatenate([[0], (numbers[1:] + numbers[:-1]) / 2, [numbers[-1]]])
    x, w = np.polynomial.legendre.leggauss(40)
    centre, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    nodes = centre[:, None] + half[:, None] * x
    density = np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    error = (nodes - numbers[:, None]) ** 2 * density * w * half[:, None]
    expected = 2 * error.sum()
    found = gaussian_relative_mse(Scheme.parse(text), (100, 100), sigma=sigma)
    assert found == pytest.approx(expected, rel=0.01)


def test_casts_below_the_normal_numbers_of_float32():
    x = np.random.default_rng(0).standard_normal((500, 500)) * 2e-39
    for text in ("bf16", "tf32"):
        report = measure(x, Scheme.parse(text))
        assert report.relative_mse == pytest.approx(report.gaussian_relative_mse, rel=2e-2)


@over("text", ["int8:model", "int4:model:asym", "int4:model:signed", "e4m3:model"])
@over("extent", [0.5, 3.0, 20.0, (-1.0, 4.0)])
def test_a_given_scale_of_the_model(samples, text, extent):
    for sigma in (1.0, 0.1):
        assert_expected(samples, text, extent, sigma)
    report = measure(samples[0], Scheme.parse(text), model_absmax=extent)
    assert report.relative_mse == pytest.approx(report.gaussian_relative_mse, rel=0.1)


def test_an_empty_tensor_has_no_expected_error():
    assert gaussian_relative_mse(Scheme.parse("nf4"), (0, 3)) is None


def test_groups_of_one_element_are_exact():
    for text in ("int4:block1", "int8:block1:asym", "nf4:block1", "e4m3:block1"):
        assert gaussian_relative_mse(Scheme.parse(text), (5, 5)) == pytest.approx(0, abs=1e-13)


def test_known_values_of_uniform_noise():
    """Many levels over a wide range: the error of a uniform quantizer is step² / 12."""
    scheme = Scheme.parse("int8:model")
    step = 5.0 / 127
    found = gaussian_relative_mse(scheme, (10, 10), sigma=1.0, model_absmax=5.0)
    assert found == pytest.approx(step**2 / 12, rel=0.01)


def test_nf4_does_not_always_win_at_equal_bits():
    """Asymmetric INT4 in groups of 64 beats NF4 on Gaussian data."""
    asymmetric, codebook = (
        gaussian_relative_mse(Scheme.parse(t), (4096, 4096)) for t in ("int4:asym", "nf4")
    )
    assert asymmetric < codebook


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


# Levels


@over("any_scheme", EVERY_SCHEME)
def test_levels_are_the_values_a_group_can_have(any_scheme):
    scheme = Scheme.parse(any_scheme)
    low, high = -0.75, 0.5
    grid = levels(scheme, low, high)
    if scheme.bits > 8:
        assert grid.size == 0
        return
    assert (np.diff(grid) > 0).all()
    assert 0 in grid
    if "tensor" not in any_scheme and "block1024" not in any_scheme:
        return
    x = np.linspace(low, high, 1024)
    found = np.unique(quantize(x[None], scheme).dequantize())
    distance = np.abs(found[:, None] - grid)
    # The mean of 1024 numbers is not quite that of the whole range.
    close = 1e-3 if scheme.format == "ternary" else 1e-6
    assert distance.min(axis=1).max() < close
    if scheme.bits <= 6:  # levels lie further apart than the elements: all inside are reached
        assert distance.min(axis=0)[(grid > low) & (grid < high)].max() < close


@over("rule", ["floor", "ceil", "even", "rceil"])
@over("name", ["mxfp4", "mxfp6-e3m2", "mxfp8-e4m3", "mxint8"])
@over(("low", "high"), [(-1, 1), (-0.75, 0.5), (-7.9, 3), (0, 448), (-3e-9, 0)])
def test_levels_of_scales_that_are_powers_of_two(name, rule, low, high):
    scheme = Scheme.parse(f"{name}:{rule}")
    grid = levels(scheme, low, high)
    x = np.linspace(low, high, 32)[None]
    q = quantize(x, scheme)
    distance = np.abs(q.dequantize().reshape(-1, 1) - grid).min(axis=1)
    assert distance.max() < 1e-6 * max(abs(low), high)
    assert np.diff(grid).min() == pytest.approx(
        np.diff(levels_at_scale(scheme, q.scales[0, 0])).min()
    )


def test_levels_of_nvfp4_and_ternary():
    nvfp4 = levels(Scheme.parse("nvfp4"), -3, 1.5)
    np.testing.assert_allclose(
        nvfp4, np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]) / 2
    )
    np.testing.assert_allclose(levels(Scheme.parse("ternary")), [-0.5, 0, 0.5])
    np.testing.assert_allclose(levels_at_scale(Scheme.parse("ternary"), 0.25), [-0.25, 0, 0.25])
    assert levels(Scheme.parse("mxfp4"), 0, 0).size == 15


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int2", [-1, 0, 1]),
        ("int2:full", [-2 / 1.5, -1 / 1.5, 0, 1 / 1.5]),
        ("int2:signed", [-0.5, 0, 0.5, 1]),
        ("e2m1", [-1, -2 / 3, -0.5, -1 / 3, -0.25, -1 / 6, -1 / 12, 0]),
    ],
)
def test_levels_of_a_group_of_absmax_one(text, expected):
    np.testing.assert_allclose(levels(Scheme.parse(text))[: len(expected)], expected, atol=1e-15)
    assert levels(Scheme.parse("int4:asym")).size == 16
    assert levels(Scheme.parse("nf4")).size == 16
    assert levels(Scheme.parse("fp4")).size == 15  # its two zeros are one value
    assert levels(Scheme.parse("e4m3")).size == 253
