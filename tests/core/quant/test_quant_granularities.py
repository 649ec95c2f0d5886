"""The comparison of granularities equals measure() under each of them."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from qtui_core.quant import (
    PerBlock,
    PerColumn,
    PerGroup,
    PerRow,
    PerTensor,
    Scheme,
    measure,
    quantize,
)
from qtui_core.quant.elements import Replaced
from qtui_core.quant.granularities import schemes_by_granularity
from qtui_core.quant.layout import scale_shape


def error_by_granularity(x, scheme, granularities=None, **how):
    schemes, left_out = schemes_by_granularity(scheme, np.shape(x), granularities)
    rows = [
        SimpleNamespace(
            granularity=str(candidate.granularity or ""),
            report=measure(x, candidate, **how),
            scales=math.prod(scale_shape(candidate.granularity, np.shape(x))),
        )
        for candidate in schemes
    ]
    return SimpleNamespace(rows=rows, left_out=left_out)


def normal(shape=(96, 300)):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("text", ["int4", "int8:row:asym", "e4m3", "nf4", "nf4:block64:dq"])
def test_each_row_is_measured_and_counted(text):
    x, scheme = normal(), Scheme.parse(text)
    found = error_by_granularity(x, scheme)
    assert len(found.rows) >= 6
    for row in found.rows:
        q = quantize(x, row.report.scheme)
        assert row.report == measure(x, row.report.scheme)
        assert row.granularity == str(row.report.scheme.granularity)
        assert row.scales == q.scales.size
    assert str(scheme) in [str(row.report.scheme) for row in found.rows]


def test_the_usual_granularities_from_few_scales_to_many():
    for text in ("int4", "int4:group48", "nf4:block512", "e4m3:row"):
        rows = error_by_granularity(normal(), Scheme.parse(text)).rows
        scales = [row.scales for row in rows]
        assert scales == sorted(scales)
        assert Scheme.parse(text) in [row.report.scheme for row in rows]
    blocks = error_by_granularity(normal(), Scheme.parse("nf4:block512"))
    names = [row.granularity for row in blocks.rows]
    assert names == [f"block{n}" for n in (4096, 1024, 512, 256, 128, 64, 32)]


def test_requested_granularities_come_in_the_requested_order():
    wanted = [PerGroup(30), PerTensor(), PerColumn()]
    found = error_by_granularity(normal(), Scheme.parse("int4"), wanted)
    assert [row.granularity for row in found.rows] == ["group30", "tensor", "column"]


def test_impossible_granularities_are_left_out_with_the_reason():
    found = error_by_granularity(normal(), Scheme.parse("nf4"), [PerRow(), PerBlock(64)])
    assert [row.granularity for row in found.rows] == ["block64"]
    (left,) = found.left_out
    assert left.granularity == "row"
    assert "nf4 cannot be scaled per row" in left.reason


def test_equal_granularities_are_left_out_with_the_reason():
    x = normal((10, 64))
    wanted = [PerRow(), PerGroup(128), PerGroup(64), PerBlock(64), PerGroup(32)]
    found = error_by_granularity(x, Scheme.parse("int4:row"), wanted)
    assert [row.granularity for row in found.rows] == ["row", "group32"]
    assert {left.granularity for left in found.left_out} == {"group128", "group64", "block64"}
    assert "are those of row" in found.left_out[0].reason
    own = error_by_granularity(x, Scheme.parse("int4:group64"), wanted)
    assert [row.granularity for row in own.rows] == ["group64", "group32"]
    assert "row" in {left.granularity for left in own.left_out}


def test_tokens_are_rows_of_a_matrix_but_not_of_a_convolution():
    x = normal((6, 4, 8, 8))
    flat = error_by_granularity(x.reshape(6, 256), Scheme.parse("int8:row"))
    assert "token" in {left.granularity for left in flat.left_out}
    found = error_by_granularity(x, Scheme.parse("int8:row"))
    scales = {row.granularity: row.scales for row in found.rows}
    assert (scales["row"], scales["token"]) == (6, 192)


def test_a_cast_is_compared_alone():
    found = error_by_granularity(normal(), Scheme.parse("bf16"))
    assert [(r.granularity, r.scales) for r in found.rows] == [("", 0)]


def test_a_scale_of_the_model_is_no_scale_of_the_tensor():
    found = error_by_granularity(normal(), Scheme.parse("int8:model"), model_absmax=80.0)
    first, second = found.rows[:2]
    assert (first.granularity, second.granularity) == ("model", "tensor")
    assert first.report.sqnr_db < second.report.sqnr_db


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (), (1,), (200,), (3, 5, 64)])
def test_every_shape(shape):
    x = normal((1000,))[: int(np.prod(shape))].reshape(shape)
    found = error_by_granularity(x, Scheme.parse("int4"))
    assert found.rows
    assert all(row.report.shape == shape for row in found.rows)


def test_finer_granularity_confines_an_injected_outlier():
    x = normal((256, 512))
    before = error_by_granularity(x, Scheme.parse("int8:row"))
    after = error_by_granularity(Replaced(x, 9, [40], 500.0), Scheme.parse("int8:row"))
    mse = {
        row.granularity: (row.report.mse, now.report.mse)
        for row, now in zip(before.rows, after.rows, strict=True)
    }
    factor = {name: now / was for name, (was, now) in mse.items()}
    assert factor["tensor"] > factor["tile128x128"] > factor["row"]
    assert factor["row"] > factor["group128"] > factor["group32"]
    assert factor["tensor"] > 1000
    assert factor["group32"] < factor["row"] / 5
