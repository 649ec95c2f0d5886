"""The causes that explanations name, for tensors with a known fault."""

import numpy as np
from every import over

from qtui_core.quant import Scheme, explain, find_outliers, measure, statistics


def sentence(x, text):
    stats = statistics(x)
    return explain(measure(x, Scheme.parse(text)), stats, find_outliers(x, stats))


def relative(x, text):
    return measure(x, Scheme.parse(text)).relative_mse


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# Casts


def test_a_cast_has_no_scale_that_an_outlier_could_stretch():
    x = normal(512, 512) * np.float32(0.02)
    x[3, 5] = 129.49
    said = sentence(x, "bf16")
    assert "between two powers of two" in said
    assert "scale" not in said


@over(("text", "smallest"), [("fp16", 2.0**-14), ("bf16", 2.0**-126)])
@over("size", [1.0, 0.3, 0.1, 0.01, 1e-3])
def test_subnormals_are_blamed_when_they_make_the_error(text, smallest, size):
    x = (np.random.default_rng(0).standard_normal((512, 512)) * smallest * size).astype(np.float32)
    report = measure(x, Scheme.parse(text))
    below = (np.abs(x) < smallest) & (x != 0)
    assert report.subnormal == np.count_nonzero(below)
    said = sentence(x, text)
    assert ("smallest normal number" in said) == ("worse here" in said)
    if size <= 0.3:
        assert "smallest normal number" in said


def test_subnormals_without_a_share_in_the_error_are_not_blamed():
    x = (1 + 0.02 * np.random.default_rng(0).random((512, 512))).astype(np.float32)
    x[:, ::2] *= np.float32(1e-6)
    x[0] = 0
    report = measure(x, Scheme.parse("fp16"))
    assert report.subnormal == 511 * 256
    assert "smallest normal" not in sentence(x, "fp16")


def test_subnormals_are_counted_wherever_they_are():
    random = np.random.default_rng(0)
    for size in (1, 100, 40_000, 600_001):
        x = (10.0 ** random.uniform(-9, 3, size)).astype(np.float32)
        x[random.random(size) < 0.1] = 0
        x[random.random(size) < 0.1] *= -1
        x[random.random(size) < 0.01] = np.nan
        below = (np.abs(x) < 2.0**-14) & (x != 0)
        assert measure(x, Scheme.parse("fp16")).subnormal == np.count_nonzero(below)
        assert measure(x, Scheme.parse("bf16")).subnormal == 0
    assert measure(x, Scheme.parse("int8:tensor")).subnormal == 0


# Scales


@over("size", [1e-37, 1e-38, 1e-40, 1e-43])
@over("text", ["int8:row", "int8:row:asym", "int8:tensor", "int4", "nf4"])
def test_values_too_small_for_a_scale(text, size):
    x = (np.random.default_rng(0).standard_normal((64, 512)) * size).astype(np.float32)
    said = sentence(x, text)
    assert ("too small for a scale" in said) == ("worse here" in said)
    if size <= 1e-40:
        assert "too small for a scale" in said
        assert ("every value became 0" in said) == (relative(x, text) == 1.0)


def test_scattered_outliers_are_not_blamed_on_columns():
    random = np.random.default_rng(0)
    x = random.standard_normal((1024, 4096)).astype(np.float32)
    x.flat[random.choice(x.size, 10, replace=False)] = 20
    said = sentence(x, "int8:tensor")
    assert "10 elements beyond 6 sigma stretch its scale;" in said
    assert "column" not in said
    assert "as good as a Gaussian" in sentence(x, "int4")  # ten groups among 65,536


@over("text", ["int8:tensor", "int4:row", "int4", "nf4", "int8:row:asym", "e2m1"])
@over("count", [1, 30, 1000, 20_000])
@over("factor", [10, 100])
def test_outliers_are_blamed_when_the_tensor_is_better_without_them(text, count, factor):
    random = np.random.default_rng(count)
    x = random.standard_normal((512, 1024)).astype(np.float32)
    chosen = random.choice(x.size, count, replace=False)
    x.flat[chosen] = factor * np.sign(x.flat[chosen])
    stats = statistics(x)
    outliers = find_outliers(x, stats)
    report = measure(x, Scheme.parse(text))
    said = explain(report, stats, outliers)
    if "worse" not in said:
        return
    without = x.copy()
    without[np.abs(x) == factor] = 0
    rest = float(np.square(without, dtype=np.float64).mean())
    usual = report.gaussian_relative_mse * rest
    excess = report.mse - usual
    saved = report.mse - measure(without, Scheme.parse(text)).mse
    if "stretch" in said:
        assert saved > excess / 3
    elif outliers.count:
        assert saved < excess / 1.2


def test_columns_are_named_when_they_are_to_blame():
    x = normal(400, 512)
    x[:, [7, 100]] *= 30
    for text in ("int4:row", "int4:tensor", "int4", "nf4"):
        assert "2 columns of 512 have 100% of them" in sentence(x, text)
