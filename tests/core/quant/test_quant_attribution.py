"""Shares of the error by column, compared with quantizing again without the columns, in numpy."""

import numpy as np
import pytest
from every import over
from shorthands import column_statistics

from qtui_core.errors import UsageError
from qtui_core.quant import Scheme, find_outliers, measure, quantize
from qtui_core.quant.attribution import (
    attribute_error,
    keep_columns,
    largest,
    outlier_columns,
    suspects,
)
from qtui_core.quant.elements import ArrayRows
from qtui_core.quant.layout import matrix_shape

SCHEMES = [
    "int4:tensor", "int4:row", "int8:row:asym", "int4:group32", "int4:group48:full", "int4:column",
    "nf4:block64:dq", "e4m3:row", "bf16",
]  # fmt: skip


def planted(shape=(120, 130)):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[..., 17] *= 30
    x[..., 50] *= 8
    return x


def squared_errors(x: np.ndarray, scheme: Scheme) -> np.ndarray:
    matrix = matrix_shape(x.shape)
    y = quantize(x, scheme).dequantize().reshape(matrix).astype(np.float64)
    error = np.square(x.reshape(matrix).astype(np.float64) - y)
    return np.where(np.isfinite(x.reshape(matrix)), error, 0)


@over("text", SCHEMES)
@over("shape", [(120, 130), (4, 30, 64), (1, 700), (700,)])
def test_shares_against_plain_numpy(text, shape):
    x, scheme = planted(shape), Scheme.parse(text)
    found = attribute_error(x, scheme)
    expected = squared_errors(x, scheme)
    total = expected.sum()
    if total == 0:  # a column of one element is exact
        assert found.own_shares.sum() == found.row_shares.sum() == 0
        return
    assert found.own_shares == pytest.approx(expected.sum(axis=0) / total, rel=1e-5, abs=1e-12)
    assert found.row_shares == pytest.approx(expected.sum(axis=1) / total, rel=1e-5, abs=1e-12)
    assert found.own_shares.sum() == pytest.approx(1)
    assert found.row_shares.sum() == pytest.approx(1)
    assert found.own_share([17, 50, 17]) == pytest.approx(found.own_shares[[17, 50]].sum())
    assert found.sqnr_db == pytest.approx(measure(x, scheme).sqnr_db, rel=1e-5)
    assert largest(found.by_column, 3) == tuple(np.argsort(-found.by_column, kind="stable")[:3])
    assert largest(found.by_row, 1) == (np.argmax(found.by_row),)


@over("text", SCHEMES)
@over("columns", [[17], [50], [3], [17, 50], [129, 17, 0, 17]])
def test_caused_shares_equal_the_error_that_is_gone_without_the_columns(text, columns):
    x, scheme = planted(), Scheme.parse(text)
    attribution = attribute_error(x, scheme)
    rest = x.copy()
    rest[:, columns] = 0
    others = np.setdiff1d(np.arange(130), columns)
    left = squared_errors(rest, scheme)[:, others].sum()
    before = squared_errors(x, scheme).sum()
    for source in (x, ArrayRows(x)):
        kept = keep_columns(source, attribution, columns)
        assert kept.columns == tuple(sorted(set(columns)))
        assert kept.squared_error == pytest.approx(left, rel=1e-5)
        assert kept.caused_share == pytest.approx(1 - left / before, abs=1e-5)
        assert kept.own_share == pytest.approx(
            squared_errors(x, scheme)[:, sorted(set(columns))].sum() / before, rel=1e-4
        )
        power = np.square(x.astype(np.float64)).sum()
        assert kept.sqnr_db == pytest.approx(-10 * np.log10(left / power), rel=1e-5)


@over(("text", "extent"), [("int4:column", None), ("int8:model", 500.0)])
def test_a_column_in_no_other_scale_causes_its_own_error_only(text, extent):
    x = planted()
    attribution = attribute_error(x, Scheme.parse(text), model_absmax=extent)
    for column in (17, 50, 3):
        kept = keep_columns(x, attribution, [column], model_absmax=extent)
        assert kept.caused_share == pytest.approx(kept.own_share, rel=1e-9)


def test_suspects_are_large_or_full_of_error():
    x = planted()
    attribution = attribute_error(x, Scheme.parse("int4:row"))
    columns = column_statistics(x)
    found = suspects(attribution, columns, 6)
    assert len(found) == len(set(found)) == 6
    assert found[0] == 17
    assert 50 in found
    assert largest(attribution.by_column, 1)[0] in found
    assert suspects(attribution, columns, 0) == ()
    with pytest.raises(UsageError, match="At most 8"):
        suspects(attribution, columns, 9)


def test_columns_to_blame():
    def blamed(x):
        return outlier_columns(column_statistics(x), find_outliers(x))

    assert blamed(planted()) == (17, 50)
    x = np.random.default_rng(0).standard_normal((4000, 130)).astype(np.float32)
    assert blamed(x) == ()
    many = x[:400].copy()
    many[:, ::4] *= 30
    assert blamed(many) == ()
    # Not larger than others by far, but with many large elements of a sparse tensor.
    x[np.abs(x) > 0.5] = 0
    x[::100] *= 10
    x[:, 33] = np.where(np.arange(4000) % 20, 0, 4.5)
    assert blamed(x) == (33,)


@over("name", ["no elements", "no columns", "zeros", "only nan", "constant"])
def test_tensors_without_error(awkward, name):
    x = awkward[name]
    attribution = attribute_error(x, Scheme.parse("int8:column"))
    columns = column_statistics(x)
    if attribution.squared_error:  # a constant is not always a level to the last bit
        assert attribution.own_shares.sum() == pytest.approx(1)
        return
    assert attribution.own_shares.sum() == 0
    assert largest(attribution.by_column, 3) == ()
    assert attribution.sqnr_db is None
    if x.shape[1]:
        kept = keep_columns(x, attribution, [0])
        assert (kept.own_share, kept.caused_share, kept.sqnr_db) == (0, 0, None)
    assert all(column < 70 for column in suspects(attribution, columns, 4))


def test_what_is_not_finite_has_no_error():
    x = planted()
    x[3, 4], x[5, 6], x[:, 7] = np.inf, np.nan, -np.inf
    attribution = attribute_error(x, Scheme.parse("int4:row"))
    assert attribution.own_shares[7] == 0
    assert attribution.own_shares.sum() == pytest.approx(1)
    kept = keep_columns(x, attribution, [17])
    assert 0 < kept.caused_share < 1
    with pytest.raises(UsageError, match="no column 130"):
        keep_columns(x, attribution, [130])


@over(
    "text",
    ["ternary:tensor", "ternary:row", "int4:row:asym:zpfloat", "int4:tensor:asym", "int4:row"],
)
def test_kept_columns_are_in_no_scale(text):
    """The remaining error is that of the same tensor without these columns."""
    random = np.random.default_rng(8)
    x = (random.standard_normal((30, 50)) + 6).astype(np.float32)
    x[:, [3, 17]] *= 20
    scheme = Scheme.parse(text)
    kept = keep_columns(x, attribute_error(x, scheme), [3, 17])
    others = measure(np.delete(x, [3, 17], axis=1), scheme)
    assert kept.squared_error == pytest.approx(others.mse * others.count, rel=1e-5)
