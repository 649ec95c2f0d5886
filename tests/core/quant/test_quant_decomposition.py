"""LLM.int8() decomposition, against bitsandbytes and plain numpy."""

from dataclasses import replace

import numpy as np
import pytest
from every import over
from lazy_imports import LazyImport
from shorthands import Rows, heard_by

from qtui_core.errors import UsageError
from qtui_core.job import Job
from qtui_core.quant import (
    Cancelled,
    Scheme,
    bits_per_parameter,
    explain,
    gaussian_relative_mse,
    measure,
    quantize,
    quantized_bytes,
)
from qtui_core.quant.attribution import decomposition_sweep
from qtui_core.quant.outliers import find_beyond

torch = LazyImport("torch")


def with_outliers(rows=40, columns=130, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    x[:, 7] *= 15
    x[3, 50], x[4, 129] = 6.0, -90.0
    return x


@over("seed", range(6))
@over("threshold", [2.5, 6.0, 1000.0])
def test_codes_scales_and_columns_are_those_of_bitsandbytes(seed, threshold):
    functional = pytest.importorskip("bitsandbytes.functional")
    x = torch.from_numpy(with_outliers(seed=seed)).half()
    if seed % 2:
        x = x.bfloat16().half()  # values with ties
    codes, absmax, columns = functional.int8_vectorwise_quant(x.clone(), threshold=threshold)
    found = quantize(x.numpy(), Scheme.parse(f"int8:row:outliers{threshold}"))
    kept = columns.numpy() if columns is not None else np.empty(0)
    np.testing.assert_array_equal(found.outlier_columns, kept)
    np.testing.assert_array_equal(found.codes, codes.numpy())
    np.testing.assert_array_equal(found.scales[:, 0], (absmax / 127).numpy())
    np.testing.assert_array_equal(found.outlier_values, x.numpy()[:, kept.astype(int)])


@over("options", ["tensor", "group16", "group50", "block33:full", "tile8x32", "group16:asym"])
def test_the_rest_is_quantized_as_if_kept_columns_were_zero(options):
    x = with_outliers()
    found = quantize(x, Scheme.parse(f"int4:{options}:outliers6"))
    without = x.copy()
    without[:, found.outlier_columns] = 0
    expected = quantize(without, Scheme.parse(f"int4:{options}"))
    np.testing.assert_array_equal(found.scales, expected.scales)
    values = expected.dequantize()
    values[:, found.outlier_columns] = x[:, found.outlier_columns].astype(np.float16)
    if "asym" not in options and "full" not in options:
        # One multiplies by 7 / absmax, the other by 1 / (absmax / 7).
        assert (found.dequantize() != values).sum() < 5
    else:
        np.testing.assert_array_equal(found.dequantize(), values)


def test_kept_elements_are_fp16_and_finite_and_saturate():
    x = np.zeros((4, 3), np.float32)
    x[:, 1] = [1e6, -7e4, 0.1, 65519]
    report = measure(x, Scheme.parse("int8:tensor:outliers6"))
    found = quantize(x, Scheme.parse("int8:tensor:outliers6")).dequantize()
    np.testing.assert_array_equal(found[:, 1], [65504, -65504, np.float16(0.1), 65504])
    assert (report.saturated, report.outlier_columns) == (3, 1)
    assert "fp16, in which outlier columns are kept" in explain(report)
    x = np.ones((4, 5), np.float32)
    x[0, 1], x[1, 2], x[2, 3], x[3, 3] = np.inf, np.nan, 6.0, np.nan
    found = quantize(x, Scheme.parse("int8:row:outliers6"))
    np.testing.assert_array_equal(found.outlier_columns, [3])
    assert found.nonfinite == 3
    np.testing.assert_array_equal(found.outlier_values[:, 0], [1, 1, 6, np.nan])


def test_storage_counts_what_is_kept():
    scheme = Scheme.parse("int8:row:outliers6")
    rows, columns = 64, 100
    expected = rows * 97 + 4 * rows + 3 * (2 * rows + 4)
    assert quantized_bytes(scheme, (rows, columns), 3) == expected
    assert bits_per_parameter(scheme, (rows, columns), 3) == 8 * expected / 6400
    x = with_outliers(rows, 150)
    report, q = measure(x, scheme), quantize(x, scheme)
    assert report.outlier_columns == q.outlier_columns.size == 3
    stored = q.outlier_values.nbytes + 4 * 3 + q.scales.nbytes + rows * 147
    assert report.bytes == q.nbytes == stored


@over("shape", [(300,), (4, 30, 70), (6, 5, 4, 3), (1, 90), (90, 1), (0, 7)])
@over("options", ["row", "tensor", "group16:asym", "group16:asym:zpfloat"])
def test_shapes(shape, options):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    scheme = Scheme.parse(f"int4:{options}:outliers2")
    q, report = quantize(x, scheme), measure(x, scheme)
    columns = shape[0] if len(shape) == 1 else np.prod(shape[1:]) if len(shape) > 3 else shape[-1]
    matrix = x.reshape(-1, int(columns))
    kept = np.flatnonzero((np.abs(matrix) >= 2).any(axis=0)) if x.size else np.empty(0)
    np.testing.assert_array_equal(q.outlier_columns, kept)
    assert report.outlier_columns == kept.size
    back = q.dequantize().reshape(matrix.shape)
    if kept.size:
        np.testing.assert_array_equal(back[:, kept], matrix[:, kept].astype(np.float16))


def test_outliers_of_a_report_are_the_elements_that_the_scheme_keeps_apart():
    x = with_outliers()
    x[0, 3], x[1, 7] = np.nan, np.inf
    for text, threshold in (("int8:row:outliers6.0", 6.0), ("int8:row:outliers1000", 1000.0)):
        assert measure(x, Scheme.parse(text)).outliers == find_beyond(x, threshold)
    assert measure(x, Scheme.parse("int8:row")).outliers is None


def test_expected_error_where_the_threshold_is_out_of_reach_and_none_where_it_is_not():
    plain = gaussian_relative_mse(Scheme.parse("int8:row"), (100, 100))
    assert gaussian_relative_mse(Scheme.parse("int8:row:outliers9"), (100, 100)) == plain
    assert gaussian_relative_mse(Scheme.parse("int8:row:outliers3"), (100, 100)) is None
    scaled = gaussian_relative_mse(Scheme.parse("int8:row:outliers9"), (100, 100), sigma=3.0)
    assert scaled is None


@over("options", ["int8:row", "int8:tensor", "int4:group16:asym", "int4:tensor:asym:zpfloat"])
def test_a_sweep_is_one_measurement_after_another(options):
    x, scheme = with_outliers(300, 200), Scheme.parse(options)
    x[5, 5] = np.nan
    thresholds = (2.0, 6.0, 4.0, 6.5, 50.0, 1e3, 1e4)
    seen = []
    reader = Rows(x)
    points = decomposition_sweep(reader, scheme, thresholds, job=heard_by(seen))
    for threshold, point in zip(thresholds, points, strict=True):
        report = measure(x, replace(scheme, outlier_threshold=threshold))
        assert (point.outlier_columns, point.bytes) == (report.outlier_columns, report.bytes)
        assert point.bits_per_parameter == report.bits_per_parameter
        assert point.relative_mse == pytest.approx(report.relative_mse, rel=1e-6)
        assert point.sqnr_db == pytest.approx(report.sqnr_db, rel=1e-6)
    read = sum(stop - start for start, stop in reader.asked)
    assert read == x.shape[0] * (3 if "tensor" in options else 2)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_sweep_of_nothing_and_of_what_cannot_be():
    x = with_outliers()
    assert decomposition_sweep(x, Scheme.parse("int8:row"), ()) == ()
    empty = decomposition_sweep(np.empty((0, 4)), Scheme.parse("int8:row"), (6.0,))
    assert (empty[0].outlier_columns, empty[0].bytes, empty[0].sqnr_db) == (0, 0, None)
    with pytest.raises(UsageError, match="outliers is for"):
        decomposition_sweep(x, Scheme.parse("nf4"), (6.0,))
    with pytest.raises(UsageError, match="above 0"):
        decomposition_sweep(x, Scheme.parse("int8:row"), (0.0,))
    with pytest.raises(Cancelled):
        decomposition_sweep(x, Scheme.parse("int8:row"), (6.0,), job=Job(cancelled=lambda: True))
