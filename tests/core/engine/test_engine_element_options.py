"""One element with options for rounding, saturation, zero points and kept columns, compared with
quantizing the whole tensor. Only the element's group is read."""

from __future__ import annotations

import numpy as np
from every import in_parts, over

from qtui.engine.element import element_under_scheme
from qtui_core.quant import Scheme, quantize
from qtui_core.quant.elements import elements_of
from qtui_core.quant.layout import matrix_shape
from qtui_core.quant.plan import make_plan

SCHEMES = [
    "bf16:stochastic4",
    "int4:group64:stochastic",
    "int4:group7:asym:stochastic",
    "int8:row:asym:zpfloat",
    "int4:block33:asym:zpfloat:stochastic",
    "int8:row:outliers3",
    "int4:group7:outliers3:stochastic",
    "int8:tensor:outliers3",
    "e4m3:column:stochastic",
    "mxfp4:stochastic",
    "nvfp4:stochastic",
]


class Reader:
    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape

    def rows(self, start: int, stop: int) -> np.ndarray:
        rows = self.array
        return (
            rows[start:stop]
            if rows.ndim == 1
            else rows.reshape(matrix_shape(self.shape))[start:stop]
        )


@in_parts(4)
@over("text", SCHEMES)
@over("shape", [(9, 130), (3, 4, 70), (200,)], ids=str)
def test_an_element_is_what_quantizing_everything_makes_of_it(
    text: str, shape: tuple[int, ...], parts: int
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x.reshape(-1)[[5, 77]] = 40, 1e5
    scheme, reader = Scheme.parse(text), Reader(x)
    whole = quantize(x, scheme)
    matrix, back = (a.reshape(matrix_shape(shape)) for a in (x, whole.dequantize()))
    plan = make_plan(elements_of(reader), scheme)
    columns = matrix.shape[1]
    for index in range(0, x.size, 3 if parts == 1 else 17):  # divides no row
        row, column = divmod(index, columns)
        found = element_under_scheme(reader, plan, row, column)
        assert found.value == matrix[row, column]
        np.testing.assert_array_equal(np.float32(found.quantized), back[row, column])
        kept = whole.outlier_columns is not None and column in whole.outlier_columns
        expected = None if kept else whole.scale_at(row, column)
        assert found.scale == (None if expected is None else expected[0])
        if kept:
            assert found.where == f"column {column:,}, kept in fp16"
            assert found.levels == ()
        elif scheme.float_zero_point:
            assert expected is not None
            assert found.zero_point == expected[1]
            gap = np.abs(np.array(found.levels) - found.quantized).min()
            assert gap <= 1e-6 * abs(found.scale or 0) * 2**scheme.bits + 1e-5 * abs(
                found.quantized
            )
