"""Properties of every scheme: all functions agree, and each value is the nearest level of its
group."""

from functools import cache

import numpy as np
import pytest
from every import every, in_parts, over
from scheme_table import EVERY_PAIR, EVERY_SCHEME
from shorthands import Rows

from qtui_core.job import Job
from qtui_core.quant import Scheme, measure, quantize
from qtui_core.quant import elements as elements_module
from qtui_core.quant import layout as grouping_module
from qtui_core.quant.elements import elements_of
from qtui_core.quant.layout import scale_index
from qtui_core.quant.levels import levels_at_scale
from qtui_core.quant.plan import make_plan, prepare, round_trip

SHAPE = (31, 70)
EXTRA = [
    "mxfp4:stochastic7", "mxint8:stochastic", 
    "e3m0:tile5x9:stochastic3", "int4:tile5x9:asym:zpfloat",
    "int8:tile5x9:outliers3",
]  # fmt: skip


def tensor():
    """Rows of many sizes, with zeros, a constant row and numbers on a grid full of ties."""
    random = np.random.default_rng(21)
    x = random.standard_normal(SHAPE) * 2.0 ** random.integers(-6, 6, (SHAPE[0], 1))
    x[4], x[9] = 0.0, -0.3
    x[12:20] = np.round(x[12:20] * 4) / 4
    x[25, 31] = 300.0
    return x.astype(np.float32)


@cache
def places(granularity):
    """The index of each element's scale in the flattened scales."""
    rows, columns = SHAPE
    found = [scale_index(granularity, SHAPE, r, c) for r in range(rows) for c in range(columns)]
    return np.array([0 if at is None else at for at in found])


def values_of(plan, elements):
    """The dequantized values that `measure` uses, as one array."""
    parts = []
    with np.errstate(all="ignore"):
        for segment in elements.segments(plan.multiple):
            prepared = prepare(plan, segment)
            parts.append(round_trip(plan, prepared))
    return np.concatenate(parts).reshape(SHAPE)


def check_one_answer(text, monkeypatch):
    scheme, x = Scheme.parse(text), tensor()
    whole = quantize(x, scheme, job=Job(threads=1))
    y = whole.dequantize(threads=1)
    monkeypatch.setattr(elements_module.Elements.segments, "__defaults__", (1, 300))
    reports = []
    for source, threads in ((x, 1), (x, 2), (Rows(x), 2), (np.asfortranarray(x), 1)):
        again = quantize(source, scheme, job=Job(threads=threads))
        np.testing.assert_array_equal(again.codes, whole.codes)
        np.testing.assert_array_equal(again.scales, whole.scales)
        if whole.scale_codes is not None:
            np.testing.assert_array_equal(again.scale_codes, whole.scale_codes)
        assert again.tensor_scale == whole.tensor_scale
        np.testing.assert_array_equal(again.dequantize(threads=threads), y)
        reports.append(measure(source, scheme, job=Job(threads=threads)))
    elements = elements_of(x)
    np.testing.assert_array_equal(values_of(make_plan(elements, scheme), elements), y)
    error = np.abs(x.astype(np.float64) - y)
    for report in reports:
        assert report.max_abs_error == pytest.approx(error.max(), rel=1e-6)
        assert report.mse == pytest.approx(np.square(error).mean(), rel=1e-5)


@in_parts(10)
def test_every_way_of_asking_gives_the_same_answer(parts):
    def check(text):
        with pytest.MonkeyPatch.context() as patch:
            check_one_answer(text, patch)

    every([*EXTRA, *EVERY_PAIR[:: max(parts, 2)]], check)


@over("text", ["ternary:tensor", "ternary:column", "ternary:row"])
def test_means_do_not_depend_on_the_cut(text, monkeypatch):
    """Magnitudes over twelve decades, whose sum depends on its order."""
    monkeypatch.setattr(grouping_module, "PART", 150)
    random = np.random.default_rng(5)
    x = (random.standard_normal(SHAPE) * 10.0 ** random.uniform(-10, 2, SHAPE)).astype(np.float32)
    x[3, 3], x[17, 60] = np.nan, -np.inf
    whole = quantize(x, Scheme.parse(text)).scales
    finite = np.where(np.isfinite(x), np.abs(x).astype(np.float64), np.nan)
    mean = np.nanmean(finite, axis={"column": 0, "row": 1}.get(text[8:]))
    np.testing.assert_array_equal(whole.reshape(-1), np.float32(mean).reshape(-1))
    for length in (160, 310, 700):
        monkeypatch.setattr(elements_module.Elements.segments, "__defaults__", (1, length))
        for source in (x, Rows(x)):
            np.testing.assert_array_equal(quantize(source, Scheme.parse(text)).scales, whole)


@in_parts(2)
@over("any_scheme", EVERY_SCHEME)
def test_each_value_is_the_nearest_level_of_its_group(any_scheme, parts):
    """The default suite runs every pair of options, the slow suite every combination."""
    scheme, x = Scheme.parse(any_scheme), tensor()
    if scheme.bits > 8 or (parts > 1 and any_scheme not in EVERY_PAIR):
        return  # held against qtui_core.formats elsewhere
    q = quantize(x, scheme)
    y = q.dequantize().reshape(-1).astype(np.float64)
    x = x.reshape(-1).astype(np.float64)
    place = places(scheme.granularity)
    for at in np.unique(place):
        scale = float(q.scales.reshape(-1)[at])
        zero_point = None
        if q.zero_points is not None:
            zero_point = float(q.zero_points.reshape(-1)[at])
        grid = levels_at_scale(scheme, scale, zero_point)
        mine, wanted = y[place == at], x[place == at]
        small = 1e-6 * max(np.abs(grid).max(), 1e-30)
        assert np.abs(mine[:, None] - grid).min(axis=1).max() <= small
        if scheme.double_quantization:
            continue  # chosen by the exact absmax, read by the stored one
        nearest = np.abs(wanted[:, None] - grid).min(axis=1)
        assert (np.abs(wanted - mine) <= nearest + small).all()
