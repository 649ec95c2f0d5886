"""Maps of a tensor, compared with brute force: numpy computes and pools every element."""

import math

import numpy as np
import pytest
from every import in_parts, left_out, over
from shorthands import Rows, error_map

import qtui_core.quant.maps as maps
from qtui_core.errors import UsageError
from qtui_core.job import Cancelled, Job
from qtui_core.quant import MapKind, Pooling, Scheme, Window, quantize, tensor_map
from qtui_core.quant.elements import elements_of
from qtui_core.quant.layout import matrix_shape, scale_index
from qtui_core.quant.plan import make_plan

SHAPES = [(60, 100), (100, 60), (7, 5), (1, 400), (400, 1), (13, 997), (50, 3, 4), (33,), ()]
FIVE = ["int4:group7", "nf4:block33", "int8:column", "bf16", "nf4:dq"]
SCHEMES = [
    "int4:group7", "int8:row", "int3:column:asym", "int4:block33:signed", "int8:tensor:full",
    "int4:group16:asym:zpfloat", "int8:tile3x5", "int8:token:stochastic7", "int8:row:outliers3.0",
    "e4m3", "e5m2:row", "e3m2:group9:stochastic", "bf16", "fp16:stochastic", "tf32",
    "nf4:block34", "fp4:block33", "nf4:block32:dq", "nf4:block8:dq4", "mxfp4", "mxfp6-e3m2:ceil",
    "mxfp8-e4m3:rceil", "mxint8:even", "nvfp4", "ternary", "ternary:group9",
]  # fmt: skip


def tensor(shape, seed=0):
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    if x.size > 40:
        x.reshape(-1)[::37] *= 6
    return x


def of_elements(kind, x, schemes):
    """The mapped quantity of every element, from a quantized tensor: a float32 matrix."""
    matrix = matrix_shape(x.shape)
    stored = [quantize(x, scheme) for scheme in schemes]
    errors = [(q.dequantize() - x).reshape(matrix) for q in stored]
    match kind:
        case MapKind.ERROR:
            return np.abs(errors[0])
        case MapKind.SIGNED:
            return errors[0]
        case MapKind.DIFFERENCE:
            return np.abs(errors[0]) - np.abs(errors[1])
        case MapKind.SCALE:
            flat = stored[0].scales.reshape(-1)
            where = [
                scale_index(schemes[0].granularity, x.shape, row, column)
                for row in range(matrix[0])
                for column in range(matrix[1])
            ]
            return flat[where].reshape(matrix)
        case MapKind.CODE:
            return stored[0].unpacked_codes.reshape(matrix).astype(np.float32)
    return x.reshape(matrix)


def pooled(values, found, pooling):
    """The cells and their peak elements, computed cell by cell."""
    for i in range(found.cells.shape[0]):
        for j in range(found.cells.shape[1]):
            top, bottom = found.row_edges[i : i + 2]
            left, right = found.column_edges[j : j + 2]
            cell = values[top:bottom, left:right]
            assert cell.size
            if pooling is Pooling.NEAREST:
                row, column = (top + bottom) // 2 - top, (left + right) // 2 - left
            else:
                row, column = divmod(int(np.abs(cell).argmax()), cell.shape[1])
            expected = cell[row, column]
            if pooling is Pooling.MEAN:
                expected = cell.mean(dtype=np.float64)
            elif pooling is Pooling.RMS:
                expected = np.sqrt(np.square(cell, dtype=np.float64).mean())
            yield (i, j), expected, top + row, left + column


def check(x, kind, schemes, size, pooling, window=None, source=None):
    found = tensor_map(
        x if source is None else source, kind, schemes, *size, pooling=pooling, window=window
    )
    values = of_elements(kind, x, schemes)
    for at, expected, row, column in pooled(values, found, pooling):
        assert math.isclose(found.cells[at], expected, rel_tol=1e-6, abs_tol=1e-12), at
        assert (found.rows[at], found.columns[at]) == (row, column)
    return found


@over("segment", [100, 1 << 17])
@over("shape", SHAPES)
def test_cells_are_the_largest_error_and_where_it_is(shape, segment, monkeypatch):
    monkeypatch.setattr(maps, "SEGMENT", segment)
    x = tensor(shape)
    for at, size in enumerate(((4, 6), (1, 1), (25, 30))):
        for text in FIVE[at + (segment == 100) :: 2]:
            check(x, MapKind.ERROR, [Scheme.parse(text)], size, Pooling.MAX)


@in_parts(2)
@over("pooling", list(Pooling))
@over("text", SCHEMES)
def test_every_scheme_pooling_and_window(text, pooling, monkeypatch, parts):
    monkeypatch.setattr(maps, "SEGMENT", 150)
    x, scheme = tensor((29, 43)), Scheme.parse(text)
    windows = (None, Window(0, 29, 5, 20), Window(11, 12, 42, 43), Window(7, 23, 1, 43))
    for window in windows:
        if left_out(parts, (text, SCHEMES), (pooling, Pooling), (window, windows)):
            continue
        check(x, MapKind.SIGNED, [scheme], (5, 6), pooling, window)
        check(x, MapKind.ERROR, [scheme], (17, 13), pooling, window)


@over("text", SCHEMES)
def test_scales_and_codes_are_those_that_are_stored(text, monkeypatch):
    monkeypatch.setattr(maps, "SEGMENT", 150)
    x, scheme = tensor((29, 43)), Scheme.parse(text)
    window = Window(3, 28, 2, 40)
    found = tensor_map(x, MapKind.CODE, [scheme], 99, 99, window=window)
    codes = of_elements(MapKind.CODE, x, [scheme])[3:28, 2:40]
    kept = np.abs(x).max(axis=0) >= (scheme.outlier_threshold or np.inf)
    kept = np.broadcast_to(kept[2:40], codes.shape)
    signs = {"e4m3": 128, "e5m2": 128, "e3m2": 32, "bf16": 1 << 15, "fp16": 1 << 15,
             "tf32": 1 << 18, "mxfp4": 8, "mxfp6-e3m2": 32, "mxfp8-e4m3": 128,
             "nvfp4": 8}.get(scheme.format)  # fmt: skip
    if signs:
        codes = np.where(codes >= signs, signs - codes, codes)
    assert (found.cells[~kept] == codes[~kept]).all()
    assert np.isnan(found.cells[kept]).all()
    if scheme.granularity is None:
        with pytest.raises(UsageError, match="cast without a scale"):
            tensor_map(x, MapKind.SCALE, [scheme], 9, 9)
        return
    found = tensor_map(x, MapKind.SCALE, [scheme], 99, 99, window=window)
    scales = of_elements(MapKind.SCALE, x, [scheme])[3:28, 2:40]
    assert (found.cells[~kept] == scales[~kept]).all()
    assert np.isnan(found.cells[kept]).all()


@over(
    ("a", "b"),
    [("int4:group7", "nf4:block64"), ("int8:tensor", "nf4:block32:dq"), ("bf16", "e4m3:column"),
     ("mxfp4", "nvfp4"), ("int8:row:stochastic3", "int8:row")],
)  # fmt: skip
@over("common", [1, 1 << 20])
def test_difference_of_two_schemes(a, b, common, monkeypatch):
    monkeypatch.setattr(maps, "SEGMENT", 150)
    monkeypatch.setattr(maps, "LARGEST_COMMON_MULTIPLE", common)
    x, schemes = tensor((31, 37)), [Scheme.parse(a), Scheme.parse(b)]
    for pooling in Pooling:
        check(x, MapKind.DIFFERENCE, schemes, (6, 7), pooling)
        check(x, MapKind.DIFFERENCE, schemes, (9, 9), pooling, Window(5, 30, 3, 20))


def test_values_need_no_scheme_keep_their_sign_and_what_is_not_finite():
    x = tensor((20, 30))
    for pooling in Pooling:
        check(x, MapKind.VALUE, [], (4, 7), pooling, Window(2, 19, 3, 30))
    spike = np.zeros((9, 9), np.float32)
    spike[4, 5], spike[0, 0] = -3.0, 2.0
    assert tensor_map(spike, MapKind.VALUE, [], 1, 1).cells.tolist() == [[-3.0]]
    x = np.ones((8, 64), np.float32)
    x[2, 3], x[5, 40] = np.nan, -np.inf
    found = tensor_map(x, MapKind.VALUE, [], 2, 2)
    assert np.isnan(found.cells[0, 0])
    assert (found.rows[0, 0], found.columns[0, 0]) == (2, 3)
    assert found.cells[1, 1] == -np.inf
    assert np.isnan(tensor_map(x, MapKind.VALUE, [], 2, 2, pooling=Pooling.MEAN).cells[0, 0])
    assert error_map(x, Scheme.parse("int4"), 4, 4).cells.max() < 1e-6


@over("text", ["int8:tensor", "int4", "nf4:block64:dq", "int8:tile4x4"])
@over("shape", [(200, 30), (30, 4, 50), (600,), (1, 900)])
def test_a_reader_is_asked_for_the_rows_of_the_window_only(text, shape, monkeypatch):
    monkeypatch.setattr(maps, "SEGMENT", 300)
    x, scheme = tensor(shape), Scheme.parse(text)
    rows, columns = matrix_shape(shape)
    window = Window(rows // 3, rows // 3 + 1, columns // 4, columns // 2)
    for kind in (MapKind.ERROR, MapKind.VALUE):
        schemes = [scheme][: kind.schemes]
        check(x, kind, schemes, (3, 40), Pooling.MAX, window, source=Rows(x))
    reader = Rows(x)
    tensor_map(reader, MapKind.VALUE, [], 3, 40, window=window)
    unit = 1 if len(shape) == 1 else columns
    assert sum(stop - start for start, stop in reader.asked) <= columns // unit


def test_plans_spare_the_first_pass():
    x, scheme = tensor((64, 50)), Scheme.parse("int8:tensor")
    plan = make_plan(elements_of(x), scheme)
    reader, window = Rows(x), Window(10, 12, 0, 50)
    found = tensor_map(reader, MapKind.ERROR, [scheme], 9, 9, window=window, plans=[plan])
    assert reader.asked == [(10, 12)]
    whole = tensor_map(x, MapKind.ERROR, [scheme], 64, 50)
    at_once = tensor_map(x, MapKind.ERROR, [scheme], 2, 50, window=window)
    assert (at_once.cells == whole.cells[10:12]).all()
    assert found.cells.max() == at_once.cells.max()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_a_map_and_it_can_be_cancelled(threads, monkeypatch):
    monkeypatch.setattr(maps, "SEGMENT", 512)
    x, scheme = tensor((90, 77)), Scheme.parse("nf4")
    for pooling in Pooling:
        options = {"pooling": pooling, "window": Window(3, 88, 5, 70)}
        a, b = (
            tensor_map(x, MapKind.SIGNED, [scheme], 7, 9, job=job, **options)
            for job in (Job(threads=threads), Job())
        )
        assert ((a.cells == b.cells) & (a.rows == b.rows)).all()
    with pytest.raises(Cancelled):
        tensor_map(x, MapKind.VALUE, [], 7, 9, job=Job(cancelled=lambda: True, threads=threads))


def test_impossible_maps_are_refused_with_the_reason():
    x = tensor((4, 5))
    for window in (Window(0, 5, 0, 5), Window(2, 2, 0, 5), Window(-1, 3, 0, 5)):
        with pytest.raises(UsageError, match="no part of a tensor of 4 x 5"):
            tensor_map(x, MapKind.VALUE, [], 2, 2, window=window)
    with pytest.raises(UsageError, match="takes 2 schemes; got 1"):
        tensor_map(x, MapKind.DIFFERENCE, [Scheme("int4")], 2, 2)
    with pytest.raises(UsageError, match="nearest"):
        tensor_map(x, MapKind.CODE, [Scheme("int4")], 2, 2, pooling=Pooling.MEAN)


def test_grids_ties_and_empty_tensors():
    found = error_map(np.ones((3, 500)), Scheme.parse("int4"), 40, 100)
    assert found.cells.shape == (3, 100)
    assert found.row_edges.tolist() == [0, 1, 2, 3]
    assert found.column_edges.tolist() == list(range(0, 501, 5))
    widths = np.diff(error_map(np.ones((3, 503)), Scheme.parse("int4"), 3, 100).column_edges)
    assert set(widths) == {5, 6}
    found = error_map(np.zeros((10, 10)), Scheme.parse("int4"), 2, 2)
    assert found.cells.tolist() == [[0, 0], [0, 0]]
    assert found.rows.tolist() == [[0, 0], [5, 5]]
    assert found.columns.tolist() == [[0, 5], [0, 5]]
    assert error_map(np.empty((0, 5)), Scheme.parse("nf4"), 3, 3).cells.shape == (0, 3)
    assert error_map(np.empty((5, 0)), Scheme.parse("nf4"), 3, 3).cells.shape == (3, 0)
    found = error_map(np.array([[5.0, 1.0]]), Scheme.parse("int8:model"), 1, 2, model_absmax=1.0)
    np.testing.assert_allclose(found.cells, [[4.0, 0.0]], atol=1e-6)
