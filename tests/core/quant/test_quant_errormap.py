import warnings

import numpy as np
import pytest

from qtui_core.quant import Scheme, error_map, histogram, measure, quantize
from qtui_core.quant import elements as elements_module

SHAPES = [(60, 100), (100, 60), (7, 5), (1, 400), (400, 1), (13, 997), (50, 3, 4), (33,), ()]


def brute_force(x, scheme, found):
    error = np.abs(x.astype(np.float64) - quantize(x, scheme).dequantize())
    error = error.reshape((-1, x.shape[-1] if x.ndim else 1)).astype(np.float32)
    for i in range(found.cells.shape[0]):
        for j in range(found.cells.shape[1]):
            rows = slice(found.row_edges[i], found.row_edges[i + 1])
            columns = slice(found.column_edges[j], found.column_edges[j + 1])
            cell = error[rows, columns]
            assert cell.size
            row, column = divmod(int(cell.argmax()), cell.shape[1])
            yield i, j, cell.max(), rows.start + row, columns.start + column


@pytest.mark.parametrize("segment", [100, 1 << 17])
@pytest.mark.parametrize("text", ["int4:group7", "nf4:block33", "int8:column", "bf16", "nf4:dq"])
@pytest.mark.parametrize("shape", SHAPES)
def test_cells_are_the_largest_error_and_where_it_is(shape, text, segment, monkeypatch):
    monkeypatch.setattr(elements_module.Elements.segments, "__defaults__", (1, segment))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    scheme = Scheme.parse(text)
    for size in ((4, 6), (1, 1), (25, 80)):
        found = error_map(x, scheme, *size)
        for i, j, largest, row, column in brute_force(x, scheme, found):
            assert found.cells[i, j] == pytest.approx(largest, rel=1e-6)
            assert (found.rows[i, j], found.columns[i, j]) == (row, column)


def test_grid_never_has_more_cells_than_the_tensor():
    found = error_map(np.ones((3, 500)), Scheme.parse("int4"), 40, 100)
    assert found.cells.shape == (3, 100)
    assert found.row_edges.tolist() == [0, 1, 2, 3]
    assert found.column_edges.tolist() == list(range(0, 501, 5))
    widths = np.diff(error_map(np.ones((3, 503)), Scheme.parse("int4"), 3, 100).column_edges)
    assert set(widths) == {5, 6}


def test_largest_cell_is_the_measured_maximum():
    x = np.random.default_rng(1).standard_t(4, (300, 700)).astype(np.float32)
    for text in ("int4:row", "nf4"):
        found, report = error_map(x, Scheme.parse(text), 20, 50), measure(x, Scheme.parse(text))
        at = np.unravel_index(found.cells.argmax(), found.cells.shape)
        assert found.cells[at] == report.max_abs_error
        assert (found.rows[at], found.columns[at]) == report.max_abs_error_index


def test_first_element_wins_a_tie():
    found = error_map(np.zeros((10, 10)), Scheme.parse("int4"), 2, 2)
    assert found.cells.tolist() == [[0, 0], [0, 0]]
    assert found.rows.tolist() == [[0, 0], [5, 5]]
    assert found.columns.tolist() == [[0, 5], [0, 5]]


def test_nonfinite_elements_have_no_error():
    x = np.ones((4, 64), np.float32)
    x[2, 3], x[3, 3] = np.nan, np.inf
    assert error_map(x, Scheme.parse("int4"), 4, 4).cells.max() < 1e-6


def test_empty_tensors_have_empty_maps():
    assert error_map(np.empty((0, 5)), Scheme.parse("nf4"), 3, 3).cells.shape == (0, 3)
    assert error_map(np.empty((5, 0)), Scheme.parse("nf4"), 3, 3).cells.shape == (3, 0)


def test_map_of_a_given_model_scale():
    x = np.array([[5.0, 1.0]])
    found = error_map(x, Scheme.parse("int8:model"), 1, 2, model_absmax=1.0)
    np.testing.assert_allclose(found.cells, [[4.0, 0.0]], atol=1e-6)


@pytest.mark.parametrize("bins", [1, 7, 64, 1000])
def test_histogram_is_that_of_numpy(bins):
    random = np.random.default_rng(0)
    coarse = np.rint(random.standard_normal((300, 1000)) * 8) / 8
    for x in (random.standard_normal((300, 1000)), coarse, random.random(1000) * 1e-30):
        x = x.astype(np.float32)
        found = histogram(x, bins)
        counts, edges = np.histogram(x.astype(np.float64), bins)
        np.testing.assert_array_equal(found.counts, counts)
        np.testing.assert_allclose(found.edges, edges, rtol=1e-12, atol=1e-300)


def test_histogram_of_a_range():
    x = np.array([-2.0, -1, 0, 0.5, 1, 3, np.nan, np.inf], np.float32)
    found = histogram(x, 4, low=-1.0, high=1.0)
    assert found.counts.tolist() == [1, 0, 1, 2]
    assert found.edges.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("low", "high"), [(0.7, 1.0), (0.1, 0.8), (-1e300, 1e300), (0.75, 1e300), (1e300, 2e300)]
)
def test_histogram_of_a_range_that_float32_does_not_hold(low, high):
    x = np.array([0.1, 0.7, 0.75, 0.8, 0.9, 1.0, -3e38, np.inf, -np.inf, np.nan], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = histogram(x, 10, low=low, high=high)
    finite = x[np.isfinite(x)].astype(np.float64)
    np.testing.assert_array_equal(found.counts, np.histogram(finite, 10, (low, high))[0])


@pytest.mark.parametrize("value", [1e20, -1e20, 3.4e38, 1e8, 16777216.0, -0.0, 1e-40])
def test_histogram_of_one_value_of_any_size(value):
    found = histogram(np.full(5, value, np.float32), 4)
    assert found.counts.tolist() == [0, 0, 5, 0]
    assert (np.diff(found.edges) > 0).all()
    assert found.edges[0] <= np.float32(value) <= found.edges[-1]


def test_histogram_of_one_value_and_of_none():
    found = histogram(np.full(9, 2.0), 4)
    assert found.counts.tolist() == [0, 0, 9, 0]
    assert found.edges.tolist() == [1.5, 1.75, 2.0, 2.25, 2.5]
    empty = histogram(np.array([np.nan]), 4)
    assert (empty.counts.size, empty.edges.size) == (0, 0)


def test_progress_of_the_pictures():
    x = np.ones((4000, 200), np.float32)
    for run in (
        lambda hear: histogram(x, 8, progress=hear),
        lambda hear: histogram(x, 8, low=0, high=2, progress=hear),
        lambda hear: error_map(x, Scheme.parse("int8:tensor"), 8, 8, progress=hear),
    ):
        heard = []
        run(heard.append)
        assert heard == sorted(heard)
        assert heard[-1] == 1.0


def test_progress_of_an_empty_tensor_is_no_division_by_zero():
    seen: list[float] = []
    found = histogram(np.empty((0, 8), np.float32), 4, low=0.0, high=1.0, progress=seen.append)
    assert found.counts.sum() == 0
    assert all(share == 1.0 for share in seen)
