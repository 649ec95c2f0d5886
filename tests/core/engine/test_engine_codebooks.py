"""The engine's answers about codes, compared with the library."""

from __future__ import annotations

import numpy as np
import pytest
from engine_model import PROJ, values
from shorthands import code_occupancy

from qtui.engine.answers.codes import AtEqualBits, Budgets, CodesSideBySide
from qtui_core.errors import UsageError
from qtui_core.quant import Scheme, gaussian_relative_mse, measure
from qtui_core.quant.storage import bit_budget

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMES = ["nf4:block64", "int4:group64:asym", "nvfp4"]


async def test_codes_and_errors_are_those_of_the_library(engine, model):
    params = {"model": model, "tensor": PROJ, "schemes": SCHEMES}
    heard: list[float] = []
    reply = await engine.request(
        "codebooks", params, on_progress=lambda fraction, _: heard.append(fraction)
    )
    assert heard == sorted(heard)
    found = reply.read(CodesSideBySide)
    for text, column in zip(SCHEMES, found.columns, strict=True):
        scheme = Scheme.parse(text)
        expected, report = code_occupancy(values()[PROJ], scheme), measure(values()[PROJ], scheme)
        assert column.name == text
        assert column.entropy_bits == expected.entropy_bits
        assert column.expected_entropy_bits == expected.expected_entropy_bits
        assert column.unused == tuple(expected.unused.tolist())
        assert column.error == report
        for name in ("codes", "levels", "counts", "expected", "density", "expected_density"):
            np.testing.assert_array_equal(getattr(column, name), getattr(expected, name))
    assert "At equal bits" in found.sentence


async def test_unknown_values_are_not_sent(engine, model):
    params = {"model": model, "tensor": "holes", "schemes": ["int8:row:outliers0.5"]}
    reply = await engine.request("codebooks", params)
    (column,) = reply.read(CodesSideBySide).columns
    assert (column.expected, column.nonfinite, column.expected_entropy_bits) == ((), 2, None)
    assert "NaN or infinite" in reply.data["sentence"]
    reply = await engine.request("codebooks", {**params, "tensor": "empty", "schemes": ["nf4"]})
    assert "no elements" in reply.data["sentence"]


@pytest.mark.parametrize(
    ("schemes", "words"),
    [("nf4", "schemes: 'nf4' is no list"), (["bf16"], "too many to show one by one"),
     ([f"int4:group{n}" for n in range(8, 17)], "9 schemes are too many"), (["nf5"], "Unknown")],
)  # fmt: skip
async def test_impossible_requests_are_refused(engine, model, schemes, words):
    with pytest.raises(UsageError, match=words):
        await engine.request("codebooks", {"model": model, "tensor": PROJ, "schemes": schemes})


async def test_bits(engine):
    params = {"schemes": ["nf4:block64:dq", "int4", "int8:row"], "shape": [4096, 4096]}
    found = (await engine.request("equal_bits", params)).read(AtEqualBits).schemes
    assert [str(each.scheme) for each in found[:2]] == ["nf4:block64:dq", "int4:group256"]
    assert (found[2].equal, found[2].note) == (False, "its codes alone take 8 bits")
    with pytest.raises(UsageError, match="shape: '4096' is no list"):
        await engine.request("equal_bits", {**params, "shape": "4096"})
    params = {"schemes": ["nf4"], "shape": [96, 128]}
    (plain,) = (await engine.request("bit_budget", params)).read(Budgets).budgets
    assert plain.parts == {"codes": 4, "scales": 0.5}
    assert plain.budget == bit_budget(Scheme.parse("nf4"), (96, 128))
    relative = gaussian_relative_mse(Scheme.parse("nf4"), (96, 128))
    assert plain.gaussian_sqnr_db == pytest.approx(-10 * np.log10(relative))


async def test_the_making_of_nf4(engine):
    data = (await engine.request("nf4_construction")).data
    assert len(data["levels"]) == 16
    assert sum(level["ulps"] == 0 for level in data["levels"]) == 6
    assert data["steps"][0]["column"] == "probability"


async def test_the_index_of_an_open_model_forgets_nothing(engine, model):
    opened = (await engine.request("open_model", {"model": model})).data
    assert (await engine.request("model_index", {"model": model})).data == opened
