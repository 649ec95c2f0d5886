"""What is said of an error on a tensor: true causes, and schemes that are possible."""

from __future__ import annotations

import re

import numpy as np
import pytest
from every import every, in_parts, over
from scheme_table import EVERY_PAIR, EVERY_SCHEME
from told_truly import faults_of

from qtui_core.quant import Scheme, explain, find_outliers, measure, statistics
from qtui_core.quant.case import finer_schemes, same_bits


def sentence(x, *texts, with_outliers=True, model_absmax=None):
    stats = statistics(x)
    reports = [measure(x, Scheme.parse(t), model_absmax=model_absmax) for t in texts]
    outliers = find_outliers(x, stats) if with_outliers else None
    return explain(reports if len(reports) > 1 else reports[0], stats, outliers)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def with_outlier_columns():
    x = normal(400, 512)
    x[:, [7, 100]] *= 30
    return x


def test_gaussian_tensor_is_normal():
    text = sentence(normal(512, 512), "nf4")
    assert "as good as a Gaussian tensor" in text
    assert "20.7 dB" in text


def test_outlier_columns_are_named_with_the_measured_cure():
    text = sentence(with_outlier_columns(), "int4:row", "int4:group64", "int8:row")
    assert "2 columns of 512" in text
    found = re.search(r"from ([\d.]+) to ([\d.]+) dB at 4.50 bits .* \(measured\)", text)
    assert found
    before, after = map(float, found.groups())
    x = with_outlier_columns()
    assert before == pytest.approx(measure(x, Scheme.parse("int4:row")).sqnr_db, abs=0.06)
    assert after == pytest.approx(measure(x, Scheme.parse("int4:group64")).sqnr_db, abs=0.06)
    assert after > before + 3


def test_heavy_tails_without_single_outliers():
    x = np.random.default_rng(0).laplace(size=(512, 512)).astype(np.float32)
    text = sentence(x, "int4:tensor", with_outliers=False)
    assert "tails are heavy" in text
    assert "kurtosis" in text


def test_rows_of_different_size():
    x = normal(256, 256) * np.linspace(0.5, 2.0, 256, dtype=np.float32)[:, None]
    assert "worse" in sentence(x, "int4:tensor", with_outliers=False)


def test_ordinary_values_of_a_cast_are_those_it_fits():
    """FP16 treats tiny values as it treats tiny Gaussian ones, but that is not called normal."""
    text = sentence(normal(512, 512) * np.float32(1e-7), "fp16")
    assert "dB worse here than on Gaussian values" in text
    assert "as good as a Gaussian" in sentence(normal(512, 512) * np.float32(1e-7), "bf16")


def test_ordinary_values_under_the_scale_of_a_model_have_one_of_their_own():
    x = normal(256, 256) * np.float32(1e-5)
    text = sentence(x, "int8:model", model_absmax=10.0)
    assert "scale of the model is too wide for this tensor, and every value became 0" in text
    assert "int8:tensor" in text
    wide = sentence(normal(256, 256), "int8:model", model_absmax=50.0)
    assert "too wide for this tensor; int8:tensor" in wide
    fitting = sentence(normal(256, 256), "int8:model", model_absmax=4.5)
    assert "scale of the model" not in fitting


def test_exact_is_said_of_exact_tensors_only():
    """Groups of one element are exact, unless their values are too small for a scale."""
    x = normal(64, 1) * np.float32(1e-40)
    assert measure(x, Scheme.parse("int8:row")).relative_mse == 1.0
    text = sentence(x, "int8:row")
    assert "keeps every element" not in text
    assert text.startswith("int8:row gives 0.0 dB, where Gaussian values of this shape are kept")
    assert "every value became 0" in text
    assert "within the rounding of float32" in sentence(normal(3000, 1), "int8:row")


def test_one_huge_element_does_not_make_the_others_exact():
    """It has almost the whole sum of squares and is exact, but the elements that share its scale
    become 0."""
    x = normal(32, 64) * np.float32(0.02)
    x[0, 0] = 3e38
    report = measure(x, Scheme.parse("int4:group64"))
    assert report.sqnr_db is not None
    assert report.sqnr_db > 700
    text = sentence(x, "int4:group64")
    assert "keeps every element" not in text
    assert "1 element weighs more than all others together" in text
    assert f"{report.max_abs_error:.3g}" in text


def test_no_minus_zero():
    assert "-0.0" not in sentence(normal(64, 512) * np.float32(1e-40), "int8:row")


def test_better_than_gaussian():
    uniform = np.random.default_rng(0).random((300, 300)).astype(np.float32) - np.float32(0.5)
    text = sentence(uniform, "int4:tensor")
    assert "better than on Gaussian" in text
    assert "almost no tails" in text


def test_a_figure_about_one_element_is_said_to_be():
    x = normal(400, 512)
    x[7, 7] = 1e4
    text = sentence(x, "int8:row")
    assert "1 element beyond 6 sigma holds 99% of its energy" in text
    assert "so this figure is mostly about it" in text


def test_broken_and_empty_tensors():
    broken = normal(10, 64)
    broken[0, 0] = np.nan
    assert sentence(broken, "nf4").startswith("1 element is NaN or infinite")
    assert "no elements" in sentence(np.empty((0, 4)), "nf4")
    assert "Every element is zero" in sentence(np.zeros((4, 4)), "nf4")
    assert "keeps every element" in sentence(np.ones((4, 4)), "bf16")
    assert "beyond the largest number of fp16" in sentence(normal(10, 10) * 1e6, "fp16")


def spiked():
    x = normal(8, 64)
    x[3, 5] = 1e6
    return x


#: What is unusual about a tensor -> the tensor, the scheme, what is said, what must not be said.
STATES = {
    "one value that is NaN": (np.array([[np.nan, 1.0]]), "nf4",
                              "1 element is NaN or infinite: find out where it comes from", "they"),
    "nothing finite": (np.full((2, 3), np.inf), "int8:row",
                       "6 elements are NaN or infinite: find out where they come from first; no "
                       "element is finite, so there is nothing to measure.", "finite rest"),
    "most of the energy in one": (spiked(), "int4:tensor", "holds 99% of its energy", "100%"),
    "all of the energy in one": (np.eye(1, 512), "nf4:dq", "keeps every element", "%"),
    "one value": (np.array([[0.7]]), "mxfp6-e3m2:rceil", "its one value lies between two levels",
                  "largest magnitude"),
}  # fmt: skip


def test_the_sentence_of_every_state():
    def check(x, scheme, said, never):
        found = sentence(x.astype(np.float32), scheme)
        assert said in found
        assert never not in found
        assert not faults_of(found)

    every(STATES, check)


def test_saturation_is_cured_by_what_it_says():
    full = np.full((4, 64), 3.4e38, np.float32)
    text = sentence(full, "bf16")
    assert text.endswith("divide the tensor by 2 or more first.")
    assert measure(full / 2, Scheme.parse("bf16")).saturated == 0
    x = normal(10, 10) * np.float32(1e6)
    text = sentence(x, "fp16")
    factor = int(re.search(r"divide the tensor by (\d+) or more first, or use bf16", text)[1])
    assert measure(x / factor, Scheme.parse("fp16")).saturated == 0
    assert measure(x / factor * 2, Scheme.parse("fp16")).saturated
    assert "bf16 would bring it from" in sentence(x, "fp16", "bf16")


def test_groups_are_not_advised_for_casts():
    assert "group" not in sentence(normal(100, 100), "bf16")


@in_parts(12)
def test_every_scheme_has_one_sentence(awkward, parts):
    looked_at = []
    for x in awkward.values():
        stats = statistics(x)
        looked_at.append((x, stats, find_outliers(x, stats)))

    def check(text):
        scheme = Scheme.parse(text)
        for x, stats, outliers in looked_at[EVERY_PAIR.index(text) % parts :: parts]:
            said = explain(measure(x, scheme), stats, outliers)
            assert said.endswith(".")
            assert "\n" not in said
            assert said[0].isupper() or said[0].isdigit() or said.startswith(text[:4])
            assert not faults_of(said), said

    every(EVERY_PAIR, check)


def relative(x, text):
    return measure(x, Scheme.parse(text)).relative_mse


# Casts


def test_a_cast_has_no_scale_that_an_outlier_could_stretch():
    x = normal(512, 512) * np.float32(0.02)
    x[3, 5] = 129.49
    said = sentence(x, "bf16")
    assert "further from the levels of bf16" in said
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


def tensors():
    random = np.random.default_rng(41)
    normal = random.standard_normal((128, 256)).astype(np.float32)
    one, column = normal.copy(), normal.copy()
    one[5, 7], column[:, 9] = 300, column[:, 9] * 60
    return {
        "normal": normal,
        "one outlier": one,
        "a column": column,
        "heavy tails": random.standard_t(3, normal.shape).astype(np.float32),
        "no tails": random.uniform(-1, 1, normal.shape).astype(np.float32),
        "small": normal * np.float32(1e-8),
        "sparse": normal * (random.random(normal.shape) < 0.1),
    }


@over("any_scheme", EVERY_SCHEME)
def test_candidates_are_possible_for_every_scheme(any_scheme):
    scheme = Scheme.parse(any_scheme)
    for found in [*same_bits(scheme), *finer_schemes(scheme, (300, 500))]:
        assert Scheme.parse(str(found)) == found
        assert found.bits == scheme.bits


def test_formats_of_one_granularity_get_no_finer_one():
    for text in ("mxfp4", "nvfp4", "mxint8:rceil", "int8:column"):
        assert list(finer_schemes(Scheme.parse(text), (300, 500))) == []


def test_groups_of_rows_are_not_advised_instead_of_columns():
    """Groups of a row would mix outlier columns with others; scales per column do not."""
    x = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    x[:, [7, 300]] *= 40
    report = measure(x, Scheme.parse("int8:column:asym"))
    assert report.sqnr_db > measure(x, Scheme.parse("int8:group64:asym")).sqnr_db + 1
    assert "group" not in explain(report, statistics(x), find_outliers(x))


def test_candidates_cost_what_8_bit_scales_cost():
    assert Scheme.parse("nf4:block128") in list(same_bits(Scheme.parse("mxfp4")))
    assert Scheme.parse("int4:group64") in list(same_bits(Scheme.parse("nvfp4")))
    assert Scheme.parse("mxfp4:even") in list(same_bits(Scheme.parse("int4:group128")))
    assert Scheme.parse("ternary:row") in list(same_bits(Scheme.parse("int2:row")))


def test_ternary_scales_have_a_floor():
    found = sentence(tensors()["small"], "ternary")
    assert "too small for a scale, and every value became 0" in found
    assert "multiply it by" in found


@pytest.mark.parametrize("count", [1, 60])
def test_harmless_outliers_are_not_blamed(count):
    x = np.clip(np.random.default_rng(0).laplace(size=(1024, 1024)), -8, 8).astype(np.float32)
    x[:: 1024 // count, 0] = 9
    without = np.where(x == 9, np.float32(0), x)
    for text in ("int4", "int4:row", "nf4", "int4:asym"):
        assert relative(without, text) == pytest.approx(relative(x, text), rel=0.03)
        assert "its tails are heavy" in sentence(x, text)
