"""What the real engine answers about outliers, against the library and plain numpy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from qtui.engine.client import EngineClient
from qtui_core.errors import UsageError
from qtui_core.quant import Scheme, find_outliers, measure, statistics
from qtui_core.quant.attribution import attribute_error, keep_columns
from qtui_core.quant.columns import column_statistics

PROJ = "layers.0.proj.weight"


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((96, 160)).astype(np.float32) * np.float32(0.02)
    weight[:, 17] *= 30
    weight[5, 90] = 1.5
    holes = weight.copy()
    holes[3, 4], holes[5, 6] = np.nan, np.inf
    return {
        PROJ: weight,
        "holes": holes,
        "vector": rng.standard_normal(640).astype(np.float32),
        "experts": rng.standard_normal((3, 8, 64)).astype(np.float32),
        "empty": np.empty((0, 8), np.float32),
        "zeros": np.zeros((8, 8), np.float32),
        "constant": np.full((8, 8), 0.3, np.float32),
        "tokens": (rng.standard_normal((32, 64)) * np.where(np.arange(64) == 9, 20, 1)).astype(
            np.float32
        ),
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("model")
    save_file(values(), folder / "model.safetensors")
    return str(folder / "model.safetensors")


@pytest.fixture
async def engine() -> AsyncIterator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


async def ask(engine: EngineClient, what: str, model: str, tensor: str, **more: Any) -> Any:
    return (await engine.request(what, {"model": model, "tensor": tensor, **more})).data


def injected(x: np.ndarray, row: int | None, column: int, value: float) -> np.ndarray:
    changed = x.copy()
    changed[slice(None) if row is None else row, column] = value
    return changed


async def test_the_list_and_the_columns(engine: EngineClient, model: str) -> None:
    data = await ask(engine, "outliers", model, PROJ, threshold=0.5)
    x = values()[PROJ]
    found, columns = find_outliers(x), column_statistics(x)
    assert data["count"] == found.count
    assert data["top"] == [[o.row, o.column, o.value, o.sigmas] for o in found.top]
    assert data["columns"] == [[c.column, c.count] for c in found.columns]
    assert data["outlier_columns"] == [17, 90]
    assert data["largest"][0][0] == 17
    assert data["largest"][0][1] == float(np.abs(x[:, 17]).max())
    assert data["median_absmax"] == columns.median_absmax
    assert data["std"] == statistics(x).std
    beyond = np.abs(x) >= 0.5
    assert data["beyond"] == {
        "threshold": 0.5,
        "count": beyond.sum(),
        "columns": beyond.any(axis=0).sum(),
    }


async def test_an_injected_outlier_is_in_the_list(engine: EngineClient, model: str) -> None:
    inject = {"row": 7, "column": 30, "value": -44.0}
    data = await ask(engine, "outliers", model, PROJ, inject=inject)
    assert data["top"][0][:3] == [7, 30, -44.0]
    assert data["std"] == statistics(injected(values()[PROJ], 7, 30, -44.0)).std
    assert "beyond" not in data


async def test_attribution(engine: EngineClient, model: str) -> None:
    data = await ask(engine, "attribution", model, PROJ, scheme="int4:row", tries=4)
    x, scheme = values()[PROJ], Scheme.parse("int4:row")
    found = attribute_error(x, scheme)
    assert data["sqnr_db"] == found.sqnr_db
    assert sum(share for _, share in data["columns"]) <= 1
    for column, share in data["columns"]:
        assert share == found.own_shares[column]
    for row, share in data["rows"]:
        assert share == found.row_shares[row]
    assert len(data["tried"]) == 4
    for kept in (*data["tried"], data["together"]):
        expected = keep_columns(x, found, kept["columns"])
        assert kept["own_share"] == expected.own_share
        assert kept["caused_share"] == expected.caused_share
        assert kept["sqnr_db"] == expected.sqnr_db
    assert data["together"]["columns"] == [17, 90]
    assert data["tried"][0]["columns"] == [17]
    caused = [kept["caused_share"] for kept in data["tried"]]
    assert caused == sorted(caused, reverse=True)


async def test_too_many_tries_are_refused(engine: EngineClient, model: str) -> None:
    with pytest.raises(UsageError, match="At most 8"):
        await ask(engine, "attribution", model, PROJ, scheme="int4:row", tries=9)


async def test_granularities_before_and_after(engine: EngineClient, model: str) -> None:
    heard: list[dict[str, Any]] = []
    inject = {"row": None, "column": 30, "value": 2.0}
    params = {"model": model, "tensor": PROJ, "scheme": "int8:row", "inject": inject}
    reply = await engine.request(
        "granularities", params, on_progress=lambda _, data: heard.append(data)
    )
    before, after = values()[PROJ], injected(values()[PROJ], None, 30, 2.0)
    data = reply.data
    assert [row["scheme"] for row in data["rows"]] == [row["scheme"] for row in data["before"]]
    for name, x in (("before", before), ("rows", after)):
        for row in data[name]:
            report = measure(x, Scheme.parse(row["scheme"]))
            assert row["sqnr_db"] == report.sqnr_db
            assert row["gaussian_sqnr_db"] == report.gaussian_sqnr_db
            assert row["bits_per_parameter"] == report.bits_per_parameter
    scales = {row["granularity"]: row["scales"] for row in data["rows"]}
    assert scales["tensor"] == 1
    assert scales["row"] == 96
    assert scales["group128"] == 96 * 2
    assert {name for name, _ in data["left_out"]} >= {"token"}
    told = [(step["name"], step["row"]["granularity"]) for step in heard if step]
    assert len(told) == 2 * len(data["rows"])
    plain = await ask(engine, "granularities", model, PROJ, scheme="int8:row")
    assert plain["before"] == []
    assert plain["rows"] == data["before"]


@pytest.mark.parametrize("scheme", ["int8:row", "int4:group32"])
async def test_decomposition(engine: EngineClient, model: str, scheme: str) -> None:
    data = await ask(engine, "decomposition", model, "tokens", scheme=scheme)
    assert (data["scheme"], data["why"], data["column_total"]) == (scheme, "", 64)
    x = values()["tokens"]
    thresholds = [point["threshold"] for point in data["points"]]
    assert thresholds == sorted(thresholds, reverse=True)
    assert 6.0 in thresholds
    for point in data["points"]:
        assert point["columns"] == (np.abs(x) >= np.float32(point["threshold"])).any(axis=0).sum()
        report = measure(x, Scheme.parse(f"{scheme}:outliers{point['threshold']!r}"))
        assert point["sqnr_db"] == report.sqnr_db
        assert point["bytes"] == report.bytes
        assert point["bits_per_parameter"] == report.bits_per_parameter
    none, usual = data["points"][0], data["points"][thresholds.index(6.0)]
    assert (none["columns"], usual["columns"]) == (0, 1)
    assert none["sqnr_db"] == measure(x, Scheme.parse(scheme)).sqnr_db
    assert usual["sqnr_db"] > none["sqnr_db"] + 3
    assert usual["bytes"] > none["bytes"]


async def test_schemes_without_outlier_columns_are_shown_int8(
    engine: EngineClient, model: str
) -> None:
    data = await ask(engine, "decomposition", model, "tokens", scheme="nf4")
    assert data["scheme"] == "int8:row"
    assert "nf4" in data["why"]


@pytest.mark.parametrize("scheme", ["int4", "nf4", "bf16", "int8:tensor"])
async def test_every_tensor_has_an_answer(engine: EngineClient, model: str, scheme: str) -> None:
    for tensor in ("holes", "vector", "experts", "empty", "zeros", "constant"):
        columns = (await ask(engine, "outliers", model, tensor))["column_total"]
        shares = await ask(engine, "attribution", model, tensor, scheme=scheme, tries=3)
        assert shares["column_total"] == columns
        assert sum(share for _, share in shares["columns"]) <= 1 + 1e-9
        assert (await ask(engine, "granularities", model, tensor, scheme=scheme))["rows"]
        sweep = await ask(engine, "decomposition", model, tensor, scheme=scheme)
        assert (sweep["points"] == []) == (tensor in ("empty", "zeros"))


async def test_places_that_are_not_there(engine: EngineClient, model: str) -> None:
    inject = {"row": 0, "column": 160, "value": 1.0}
    with pytest.raises(UsageError, match="no element"):
        await ask(engine, "granularities", model, PROJ, scheme="int4", inject=inject)
