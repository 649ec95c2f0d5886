"""One element under a scheme, compared with quantizing the whole tensor; only its group is read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from every import in_parts, left_out, over

from qtui.engine.element import element_under_scheme
from qtui_core.quant import Scheme, quantize
from qtui_core.quant.elements import elements_of
from qtui_core.quant.layout import matrix_shape
from qtui_core.quant.plan import make_plan

SCHEMES = [
    "int4:group64", "int4:group48", "int4:group64:asym", "int3:group32:full",
    "int4:block64:signed", "int8:row", "int8:column", "int8:column:asym", "int8:tensor",
    "int2:tensor:asym", "int4:model", "e4m3", "e5m2:row", "e2m1:group64", "bf16", "fp16", "tf32",
    "nf4", "nf4:block128:dq", "fp4:block64:dq", "nf4:block4096", "nf4:block64:dq100",
    "mxfp4", "mxfp6-e2m3:rceil", "mxfp8-e5m2:even", "mxint8:ceil", "nvfp4", "e3m0:row",
    "ternary", "ternary:row", "ternary:column", "ternary:group64", "ternary:tile7x9",
    "int4:token", "int4:tile5x7", "int4:tile128x128:asym", "e4m3:tile3x1000", "int3:tile4x6:signed",
    "bf16:stochastic4", "int4:group64:stochastic", "int4:group7:asym:stochastic",
    "int8:row:asym:zpfloat", "int4:block33:asym:zpfloat:stochastic", "int8:row:outliers3",
    "int4:group7:outliers3:stochastic", "int8:tensor:outliers3", "e4m3:column:stochastic",
    "mxfp4:stochastic", "nvfp4:stochastic",
]  # fmt: skip
SHAPES = [(96, 200), (1, 1), (3, 1), (1, 130), (257,), (4, 3, 50), (300, 128), ()]


class Reader:
    """Rows on request, as a stored tensor gives them."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape = array.shape

    def rows(self, start: int, stop: int) -> np.ndarray:
        if not self.shape:
            return self.array.reshape(1)[start:stop]
        if len(self.shape) == 1:
            return self.array[start:stop]
        return self.array.reshape(matrix_shape(self.shape))[start:stop]


def tensor(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    if x.size > 50:
        x.reshape(-1)[7] = 40
        x.reshape(-1)[11:14] = 0
    return x


def found_at(x: np.ndarray, text: str, row: int, column: int) -> Any:
    reader = Reader(x)
    plan = make_plan(elements_of(reader), Scheme.parse(text))
    return element_under_scheme(reader, plan, row, column)


@in_parts(3)
@over("text", SCHEMES)
@over("shape", SHAPES, ids=str)
def test_an_element_is_what_quantizing_everything_makes_of_it(text, shape, parts):
    if left_out(parts, (text, SCHEMES), (shape, SHAPES)):
        return
    x, scheme = tensor(shape), Scheme.parse(text)
    whole = quantize(x, scheme)
    matrix, back = (a.reshape(matrix_shape(x.shape)) for a in (x, whole.dequantize()))
    reader = Reader(x)
    plan = make_plan(elements_of(reader), scheme)
    rng = np.random.default_rng(1)
    rows = [0, matrix.shape[0] - 1, *rng.integers(0, matrix.shape[0], 12)]
    columns = [0, matrix.shape[1] - 1, *rng.integers(0, matrix.shape[1], 12)]
    columns[2:4] = [min(place, matrix.shape[1] - 1) for place in (5, 7)]  # among them an outlier
    for row, column in zip(map(int, rows), map(int, columns), strict=True):
        found = element_under_scheme(reader, plan, row, column)
        assert found.value == matrix[row, column]
        assert np.float32(found.quantized) == back[row, column]
        if whole.outlier_columns is not None and column in whole.outlier_columns:
            assert (found.scale, found.levels) == (None, ())
            assert found.where == f"column {column:,}, kept in fp16"
            continue
        expected = whole.scale_at(row, column)
        assert found.scale == (None if expected is None else expected[0])
        if expected is not None:
            assert found.zero_point == (None if scheme.symmetric else expected[1])
        if scheme.bits > 8:
            assert not found.levels
            continue
        gap = np.abs(np.array(found.levels) - found.quantized).min()
        assert gap <= 1e-6 * abs(found.scale or 0) * 2**scheme.bits + 1e-5 * abs(found.quantized)
        assert len(found.levels) <= 2**scheme.bits


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("int4:group64", "row 5, 128 to 191"),
        ("int4:group128", "row 5, 128 to 199"),
        ("int4:block64", "elements 1,152 to 1,215"),
        ("int8:row", "row 5"),
        ("int8:column", "column 190"),
        ("int8:tensor", "the whole tensor"),
        ("int8:model", "the whole model"),
        ("bf16", ""),
    ],
)
def test_the_elements_that_share_a_scale_are_named(text, where):
    assert found_at(tensor((96, 200)), text, 5, 190).where == where


def test_an_element_that_is_not_finite_keeps_its_value():
    x = tensor((8, 64))
    x[2, 3], x[2, 4] = np.nan, -np.inf
    assert np.isnan(found_at(x, "int4:group64", 2, 3).quantized)
    infinite = found_at(x, "int4:group64", 2, 4)
    assert infinite.value == infinite.quantized == -np.inf
    assert infinite.scale < 10


def test_only_the_rows_of_the_group_are_read():
    class Counting(Reader):
        read = 0

        def rows(self, start: int, stop: int) -> np.ndarray:
            Counting.read += stop - start
            return super().rows(start, stop)

    reader = Counting(tensor((1000, 256)))
    plan = make_plan(elements_of(reader), Scheme.parse("int4:group64"))
    assert Counting.read == 0
    element_under_scheme(reader, plan, 500, 100)
    assert Counting.read == 1


def test_an_integer_has_no_minus_zero_and_a_float_has():
    x = np.array([[-0.01, 0.01, -7.0, 3.0]], np.float32)
    for text in ("int4:row", "int4:row:asym", "int4:block64:signed", "int8"):
        for column in range(2):
            found = found_at(x, text, 0, column).quantized
            assert math.copysign(1.0, found) == 1.0 or found != 0
    assert (
        str(found_at(np.array([[-0.001, 6.0]], np.float32), "e2m1:row", 0, 0).quantized) == "-0.0"
    )
