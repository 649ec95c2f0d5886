import re

import numpy as np
import pytest

from qtui_core.quant import Scheme, explain, find_outliers, measure, statistics


def sentence(x, *texts, with_outliers=True):
    stats = statistics(x)
    reports = [measure(x, Scheme.parse(t)) for t in texts]
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


def test_advice_without_alternatives_fits_the_granularity():
    x = with_outlier_columns()
    assert "each row" in sentence(x, "int4:tensor")
    assert "group64" in sentence(x, "int4:row")
    assert "smaller groups" in sentence(x, "int4:group128")
    assert "more bits" in sentence(x, "int4:group32")
    assert "each tensor" in sentence(x, "int4:model")


def test_alternatives_that_do_not_help_are_not_advised():
    text = sentence(with_outlier_columns(), "int8:group64", "int2:group64")
    assert "none of the other schemes measured does better" in text


def test_heavy_tails_without_single_outliers():
    x = np.random.default_rng(0).laplace(size=(512, 512)).astype(np.float32)
    text = sentence(x, "int4:tensor", with_outliers=False)
    assert "tails are heavy" in text
    assert "kurtosis" in text


def test_rows_of_different_size():
    x = normal(256, 256) * np.linspace(0.5, 2.0, 256, dtype=np.float32)[:, None]
    assert "worse" in sentence(x, "int4:tensor", with_outliers=False)


def test_better_than_gaussian():
    uniform = np.random.default_rng(0).random((300, 300)).astype(np.float32) - np.float32(0.5)
    text = sentence(uniform, "int4:tensor")
    assert "better than on Gaussian" in text
    assert "almost no tails" in text


def test_broken_and_empty_tensors():
    broken = normal(10, 64)
    broken[0, 0] = np.nan
    assert sentence(broken, "nf4").startswith("1 element is NaN or infinite")
    assert "no elements" in sentence(np.empty((0, 4)), "nf4")
    assert "Every element is zero" in sentence(np.zeros((4, 4)), "nf4")
    assert "keeps every element" in sentence(np.ones((4, 4)), "bf16")
    assert "beyond the largest number of fp16" in sentence(normal(10, 10) * 1e6, "fp16")


def test_casts_are_not_told_about_groups():
    assert "group" not in sentence(normal(100, 100), "bf16")


def test_every_scheme_has_one_sentence(any_scheme, awkward):
    for x in awkward.values():
        text = sentence(x, any_scheme)
        assert text.endswith(".")
        assert "\n" not in text
        assert text[0].isupper() or text[0].isdigit() or text.startswith(any_scheme[:4])
        assert "nan dB" not in text
        assert "inf" not in text.replace("infinite", "")
