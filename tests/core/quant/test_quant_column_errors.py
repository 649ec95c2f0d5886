"""Errors by column, compared with numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from every import over

from qtui_core.quant import Scheme, quantize
from qtui_core.quant.attribution import column_errors


class Streamed:
    """Rows of an array on request."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape = values, values.shape

    def rows(self, start: int, stop: int) -> np.ndarray:
        return self.values.reshape(len(self.values), -1)[start:stop]


@over("text", ["nf4", "nf4:dq", "int4:group48", "int8:row", "e4m3", "bf16"])
@over("shape", [(37, 129), (700, 1001), (5, 8, 30)])
def test_columns_sum_to_what_numpy_sums(text, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    scheme = Scheme.parse(text)
    y = quantize(x, scheme).dequantize()
    width = shape[-1]
    wide, rounded = (a.reshape(-1, width).astype(np.float64) for a in (x, y))
    found = column_errors(x, scheme)
    assert found.squared_error == pytest.approx(((wide - rounded) ** 2).sum(axis=0), rel=1e-6)
    assert found.squared == pytest.approx((wide**2).sum(axis=0), rel=1e-6)
    if len(shape) == 2:
        streamed = column_errors(Streamed(x), scheme, threads=1)
        assert streamed.squared_error == pytest.approx(found.squared_error, rel=1e-12)


def test_what_is_not_finite_counts_as_nothing():
    x = np.ones((4, 6), np.float32)
    x[1, 2], x[3, 4] = np.nan, np.inf
    found = column_errors(x, Scheme.parse("int8:row"))
    assert found.squared.tolist() == [4, 4, 3, 4, 3, 4]
    assert np.isfinite(found.squared_error).all()


def test_an_empty_tensor_has_columns_without_error():
    assert (
        column_errors(np.empty((0, 3), np.float32), Scheme.parse("nf4")).squared.tolist() == [0] * 3
    )


def test_rows_sum_too():
    x = np.random.default_rng(4).standard_normal((300, 70)).astype(np.float32)
    scheme = Scheme.parse("int4:group32")
    wide = x.astype(np.float64)
    found = column_errors(x, scheme)
    wrong = wide - quantize(x, scheme).dequantize()
    assert found.row_squared_error == pytest.approx((wrong**2).sum(axis=1), rel=1e-6)
