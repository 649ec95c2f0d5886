"""An injected tensor is read everywhere as the array with that element replaced."""

import numpy as np
import pytest
from every import over
from lazy_imports import LazyImport
from shorthands import error_map

from qtui_core.errors import UsageError
from qtui_core.quant import Scheme, find_outliers, histogram, measure, quantize, statistics
from qtui_core.quant.elements import Replaced, elements_of
from qtui_core.quant.layout import matrix_shape

torch = LazyImport("torch")

SHAPES = [(), (7,), (1,), (40, 33), (3, 8, 20), (4, 3, 5, 5), (1, 50), (50, 1)]


class Streamed:
    """Rows on request, as a file gives them: read only."""

    key = "layer.weight"

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape = values, values.shape

    def rows(self, start: int, stop: int) -> np.ndarray:
        if len(self.shape) < 2:
            part = self.values.reshape(-1)[start:stop].copy()
        else:
            part = self.values.reshape(matrix_shape(self.shape))[start:stop].copy()
        part.flags.writeable = False
        return part


def array_of(shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(3).standard_normal(shape)
    return np.asarray(values, np.float32).reshape(shape)


def replaced(x: np.ndarray, row: int | None, columns: list[int], value: float) -> np.ndarray:
    matrix = x.copy().reshape(matrix_shape(x.shape))
    matrix[slice(None) if row is None else row, columns] = value
    return matrix.reshape(x.shape)


def whole(x) -> np.ndarray:
    parts = [segment.values for segment in elements_of(x).segments(target=64)]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


@over("shape", SHAPES)
@over("make", [np.asarray, Streamed, lambda x: torch.from_numpy(x), np.asfortranarray])
@over("value", [-123.5, np.nan])
def test_elements_are_those_of_the_changed_array(shape, make, value):
    x = array_of(shape)
    rows, last = np.subtract(matrix_shape(shape), (0, 1))
    for row in {0, rows // 2, rows - 1, None}:
        for columns in ([], [0], [last // 2], sorted({0, last})):
            source = x.copy()
            found = Replaced(make(source), row, columns, value)
            assert found.shape == (shape or np.shape(make(x)))  # Fortran's have a dimension
            expected = replaced(x, row, columns, value).reshape(-1)
            np.testing.assert_array_equal(whole(found), expected)
            assert (source == x).all()


@over("text", ["int8:tensor", "int4:group16:asym", "nf4", "e4m3:row", "bf16"])
@over("place", [(5, 9), (None, 30)])
def test_every_operation_sees_the_changed_array(text, place):
    x = array_of((64, 96))
    row, column = place
    lazy, eager = Replaced(Streamed(x), row, [column], 40.0), replaced(x, row, [column], 40.0)
    scheme = Scheme.parse(text)
    assert statistics(lazy) == statistics(eager)
    assert measure(lazy, scheme) == measure(eager, scheme)
    assert find_outliers(lazy) == find_outliers(eager)
    assert (quantize(lazy, scheme).codes == quantize(eager, scheme).codes).all()
    for name, values in vars(error_map(lazy, scheme, 8, 12)).items():
        assert np.all(values == getattr(error_map(eager, scheme, 8, 12), name))
    assert (histogram(lazy, 30)[0] == histogram(eager, 30)[0]).all()
    assert measure(lazy, scheme) != measure(x, scheme)


def test_injections_stack_and_the_key_tells_them_apart():
    x = Streamed(array_of((5, 6)))
    once = Replaced(x, 1, [2], 3.0)
    twice = Replaced(once, None, [4], 5.0)
    expected = replaced(replaced(x.values, 1, [2], 3.0), None, [4], 5.0)
    assert whole(twice).tolist() == expected.reshape(-1).tolist()
    others = [Replaced(x, *how) for how in ((None, [2], 3.0), (1, [2], 3.5), (2, [2], 3.0))]
    keys = {each.key for each in (x, once, twice, *others)}
    assert len(keys) == 6
    assert all(key.startswith("layer.weight") for key in keys)


@pytest.mark.parametrize(
    ("shape", "row", "column"),
    [((4, 5), 4, 0), ((4, 5), 0, 5), ((4, 5), -1, 0), ((4, 5), None, -1), ((7,), 1, 0), ((), 0, 1)],
)
def test_places_outside_the_tensor_are_refused(shape, row, column):
    with pytest.raises(UsageError, match=r"no (element|column)"):
        Replaced(array_of(shape), row, [column], 1.0)


def test_values_beyond_float32_are_refused():
    with pytest.raises(UsageError, match="1e\\+39 does not fit"):
        Replaced(array_of((2, 2)), 0, [0], 1e39)
