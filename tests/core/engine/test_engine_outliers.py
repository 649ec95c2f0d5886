"""The real engine's answers about outliers, compared with the library and plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_model import PROJ, values
from shorthands import column_statistics

from qtui.engine.client import EngineClient
from qtui_core.errors import UsageError
from qtui_core.quant import Scheme, find_outliers, measure, quantize, statistics
from qtui_core.quant.attribution import attribute_error, keep_columns

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def ask(engine: EngineClient, what: str, model: str, tensor: str, **more: Any) -> Any:
    return (await engine.request(what, {"model": model, "tensor": tensor, **more})).data


def injected(x: np.ndarray, row: int | None, column: int, value: float) -> np.ndarray:
    changed = x.copy()
    changed[slice(None) if row is None else row, column] = value
    return changed


async def test_by_sigma(engine, model):
    data = await ask(engine, "outliers", model, PROJ)
    x = values()[PROJ]
    found, columns, stats = find_outliers(x, top=40), column_statistics(x), statistics(x)
    assert (data["detection"], data["limit"]) == ("sigma", 6.0)
    assert data["count"] == found.count
    assert data["top"] == [
        {**vars(outlier), "outlier": outlier.column in (17, 90)} for outlier in found.top
    ]
    assert data["columns"] == {str(c.column): c.count for c in found.columns}
    assert data["outlier_columns"] == [17, 90]
    assert data["outlier_column_count"] == 2
    assert data["largest"][0]["column"] == 17
    assert data["largest"][0]["absmax"] == float(np.abs(x[:, 17]).max())
    largest = data["largest"][0]
    assert largest["absmax_ratio"] == largest["absmax"] / columns.median_absmax
    assert data["std"] == stats.std
    exact = x.astype(np.float64)
    far = np.abs(exact - exact.mean()) / exact.std()
    assert data["furthest_sigmas"] == pytest.approx(far.max())
    assert data["absmax"] == np.abs(x).max()
    for sigma in (3.0, 12.0, 60.0):
        data = await ask(engine, "outliers", model, PROJ, detection="sigma", limit=sigma)
        assert data["limit"] == sigma
        assert data["count"] == (far > sigma).sum()
        assert data["columns_hit"] == (far > sigma).any(axis=0).sum()
        hit = (far > sigma).any(axis=0)
        assert all(hit[column] for column in data["outlier_columns"])


async def test_by_threshold(engine, model):
    x = np.abs(values()[PROJ])
    for threshold in (0.5, 0.05, 1e9):
        data = await ask(engine, "outliers", model, PROJ, detection="threshold", limit=threshold)
        beyond = x >= np.float32(threshold)
        assert (data["detection"], data["limit"]) == ("threshold", threshold)
        assert data["count"] == beyond.sum()
        assert data["share"] == beyond.mean()
        assert data["columns_hit"] == data["outlier_column_count"] == beyond.any(axis=0).sum()
        assert set(data["outlier_columns"]) <= set(np.flatnonzero(beyond.any(axis=0)))
        energy = np.square(x[beyond], dtype=np.float64).sum()
        energy /= np.square(x, dtype=np.float64).sum()
        assert data["energy_share"] == pytest.approx(energy)


async def test_by_column(engine, model):
    x = np.abs(values()[PROJ].astype(np.float64))
    absmax, rms = x.max(axis=0), np.sqrt(np.square(x).mean(axis=0))
    for ratio in (1.2, 4.0, 1000.0):
        data = await ask(engine, "outliers", model, PROJ, detection="column", limit=ratio)
        beyond = (absmax > ratio * np.median(absmax)) | (rms > ratio * np.median(rms))
        assert data["outlier_column_count"] == data["columns_hit"] == beyond.sum()
        assert data["count"] == beyond.sum() * x.shape[0]
        assert data["share"] == beyond.mean()
        assert set(data["outlier_columns"]) <= set(np.flatnonzero(beyond))
        found, rest = np.flatnonzero(beyond), np.flatnonzero(~beyond)
        ranked = [*found[np.argsort(-absmax[found])], *rest[np.argsort(-absmax[rest])]]
        assert [row["column"] for row in data["largest"]] == ranked[:64]
        largest = max(absmax.max() / np.median(absmax), rms.max() / np.median(rms))
        assert data["largest_ratio"] == pytest.approx(largest)
        assert all(row["outlier"] == beyond[row["column"]] for row in data["largest"])


async def test_the_default_threshold_is_that_of_the_slider(engine, model):
    data = await ask(engine, "outliers", model, PROJ, detection="threshold")
    sweep = await ask(engine, "decomposition", model, PROJ, scheme="int8:row")
    assert data["limit"] == sweep["threshold"]
    assert data["outlier_columns"] == [17, 90]  # those that stand out, and no others
    point = next(p for p in sweep["points"] if p["threshold"] == data["limit"])
    assert point["columns"] == 2
    sweep = await ask(engine, "decomposition", model, PROJ, scheme="int8:row", threshold=0.0333)
    assert sweep["threshold"] == 0.0333
    point = next(p for p in sweep["points"] if p["threshold"] == 0.0333)
    x = values()[PROJ]
    assert point["columns"] == (np.abs(x) >= np.float32(0.0333)).any(axis=0).sum()
    assert point["sqnr_db"] == measure(x, Scheme.parse("int8:row:outliers0.0333")).sqnr_db


async def test_the_error_is_that_of_the_columns_detected(engine, model):
    x = values()[PROJ]
    attributed = attribute_error(x, Scheme.parse("int4:row"))
    sizes = np.abs(x.astype(np.float64))
    absmax, rms = sizes.max(axis=0), np.sqrt(np.square(sizes).mean(axis=0))
    by_size = (absmax > 1.15 * np.median(absmax)) | (rms > 1.15 * np.median(rms))
    for how, limit, chosen in (
        ("threshold", 0.06, np.flatnonzero(absmax >= np.float32(0.06))),
        ("column", 1.15, np.flatnonzero(by_size)),
        ("sigma", 6.0, np.array([17, 90])),
        ("column", 1e6, np.array([])),
    ):
        params = {"detection": how, "limit": limit, "tries": 4}
        data = await ask(engine, "attribution", model, PROJ, scheme="int4:row", **params)
        assert (data["detection"], data["limit"]) == (how, limit)
        assert data["sqnr_db"] == attributed.sqnr_db
        assert data["together_count"] == len(chosen)
        assert len(data["tried"]) == 4  # the columns detected, and other causes of the error
        assert all(k["outlier"] == (k["columns"][0] in chosen) for k in data["tried"])
        caused = [kept["caused_share"] for kept in data["tried"]]
        assert caused == sorted(caused, reverse=True)
        together = data["together"]
        assert (together is None) == (len(chosen) == 0)
        if together is not None:
            expected = keep_columns(x, attributed, chosen.tolist())
            assert together["caused_share"] == expected.caused_share
            assert together["sqnr_db"] == expected.sqnr_db


async def test_what_cannot_be_asked_is_refused(engine, model):
    outside = {"row": 0, "column": 160, "value": 1.0}
    for what, params, why in (
        ("outliers", {"detection": "magic"}, "detection: 'magic' is none of sigma, threshold, col"),
        ("outliers", {"detection": "sigma", "limit": 0}, "above 0"),
        ("outliers", {"detection": "sigma", "limit": "six"}, "limit: 'six' is no number"),
        ("outliers", {"detection": "threshold", "limit": -1.0}, "above 0"),
        ("outliers", {"detection": "column", "limit": -1.0}, "above 0"),
        ("attribution", {"scheme": "int4:row", "tries": 9}, "At most 8"),
        ("granularities", {"scheme": "int4", "inject": outside}, "no element"),
    ):
        with pytest.raises(UsageError, match=why):
            await ask(engine, what, model, PROJ, **params)


async def test_sigmas_of_an_injected_outlier_are_those_of_the_tensor_without_it(engine, model):
    """With the standard deviation of the injected tensor itself, no element of n could be more than
    sqrt(n) sigmas away."""
    x = values()[PROJ]
    stats = statistics(x)
    value = stats.mean - 1536 * stats.std
    inject = {"row": 7, "column": 30, "value": value}
    changed = injected(x, 7, 30, value)
    beyond = int((np.abs(changed - stats.mean) > 6 * stats.std).sum())
    for detection in ("sigma", "threshold"):
        data = await ask(engine, "outliers", model, PROJ, inject=inject, detection=detection)
        assert (data["top"][0]["row"], data["top"][0]["column"]) == (7, 30)
        assert data["top"][0]["sigmas"] == pytest.approx(1536, rel=1e-6)
        assert data["furthest_sigmas"] == pytest.approx(1536, rel=1e-6)
        assert (data["mean"], data["std"]) == (stats.mean, stats.std)
        assert detection != "sigma" or data["count"] == beyond
    assert (await ask(engine, "statistics", model, PROJ, inject=inject))["outliers"][
        "count"
    ] == beyond
    schemes = {"schemes": ["int4", "nf4"]}
    said = (await ask(engine, "explain", model, PROJ, inject=inject, **schemes))["sentence"]
    assert said.startswith("With the outlier that was put in: int4")
    own = (await ask(engine, "explain", model, PROJ, **schemes))["sentence"]
    assert "put in" not in own


async def test_an_injected_outlier_counts_in_the_extent_of_the_model(engine, model):
    """With one scale for the model it costs at least what it costs with one for the tensor. No
    tensor of the model has an element as large."""
    scheme = Scheme.parse("int8:model")
    inject = {"row": 5, "column": 30, "value": -500.0}
    params = {"model": model, "tensor": PROJ, "scheme": str(scheme), "inject": inject}
    data = (await engine.request("granularities", params)).data
    one, before = (
        {row["scheme"]: row["mse"] for row in data[part]}[str(scheme)]
        for part in ("rows", "before")
    )
    wide = measure(injected(values()[PROJ], 5, 30, -500.0), scheme, model_absmax=500.0)
    assert one == pytest.approx(wide.mse, rel=1e-6)
    assert before < one / 4


async def test_granularities_before_and_after(engine, model):
    heard: list[dict[str, Any]] = []
    inject = {"row": None, "column": 30, "value": 2.0}
    params = {"model": model, "tensor": PROJ, "scheme": "int8:row", "inject": inject}
    reply = await engine.request(
        "granularities", params, on_progress=lambda _, data: heard.append(data)
    )
    before, after = values()[PROJ], injected(values()[PROJ], None, 30, 2.0)
    data = reply.data
    for name, x in (("before", before), ("rows", after)):
        for row in data[name]:
            report = measure(x, Scheme.parse(row["scheme"]))
            for figure in ("sqnr_db", "gaussian_sqnr_db", "bits_per_parameter"):
                assert row[figure] == getattr(report, figure)
    scales = {row["granularity"]: row["scales"] for row in data["rows"]}
    assert (scales["tensor"], scales["row"], scales["group128"]) == (1, 96, 96 * 2)
    assert {name for name, _ in data["left_out"]} >= {"token"}
    assert len([step for step in heard if step]) == 2 * len(data["rows"])
    plain = await ask(engine, "granularities", model, PROJ, scheme="int8:row")
    assert (plain["before"], plain["rows"]) == ([], data["before"])


async def test_decomposition(engine, model):
    scheme = "int4:group32"
    data = await ask(engine, "decomposition", model, "tokens", scheme=scheme)
    assert (data["scheme"], data["why"], data["column_total"]) == (scheme, "", 64)
    x = values()["tokens"]
    thresholds = [point["threshold"] for point in data["points"]]
    assert thresholds == sorted(thresholds, reverse=True)
    usual = data["points"][thresholds.index(6.0)]
    report = measure(x, Scheme.parse(f"{scheme}:outliers6.0"))
    assert (usual["columns"], usual["sqnr_db"], usual["bytes"]) == (1, report.sqnr_db, report.bytes)
    none = data["points"][0]
    assert (none["columns"], none["sqnr_db"]) == (0, measure(x, Scheme.parse(scheme)).sqnr_db)
    # A scheme without outlier columns is shown INT8.
    data = await ask(engine, "decomposition", model, "tokens", scheme="nf4")
    assert (data["scheme"], "nf4" in data["why"]) == ("int8:row", True)


@pytest.mark.parametrize("scheme", ["int4", "bf16"])
async def test_every_tensor_has_an_answer(engine, model, scheme):
    for tensor in ("holes", "vector", "experts", "empty", "zeros", "constant"):
        for how in ("threshold", "column"):
            found = await ask(engine, "outliers", model, tensor, detection=how)
            assert found["count"] <= values()[tensor].size
            shares = await ask(
                engine, "attribution", model, tensor, scheme=scheme, tries=2, detection=how
            )
            assert shares["together_count"] == found["outlier_column_count"]
        columns = (await ask(engine, "outliers", model, tensor))["column_total"]
        shares = await ask(engine, "attribution", model, tensor, scheme=scheme, tries=3)
        assert shares["column_total"] == columns
        assert sum(share for _, share in shares["columns"]) <= 1 + 1e-9
        assert (await ask(engine, "granularities", model, tensor, scheme=scheme))["rows"]
        sweep = await ask(engine, "decomposition", model, tensor, scheme=scheme)
        assert (sweep["points"] == []) == (tensor in ("empty", "zeros"))


@pytest.mark.slow
async def test_outliers_of_a_captured_activation(engine):
    """The threshold starts at that of LLM.int8(), with or without an injected outlier."""
    large, small = (f"model.layers.0.{name}.weight" for name in ("mlp.down_proj", "mlp.up_proj"))
    await engine.request("open_model", {"model": "demo"})
    await engine.request("capture", {"model": "demo", "tensors": [large, small]})
    about: dict[str, Any] = {"source": "input", "detection": "threshold"}
    data = await ask(engine, "outliers", "demo", large, **about)
    assert data["limit"] == 6.0
    assert len(data["top"]) == 40
    assert all(abs(each["value"]) >= 6 for each in data["top"])
    data = await ask(engine, "outliers", "demo", small, **about)
    assert (data["limit"], data["count"], data["outlier_column_count"]) == (6.0, 0, 0)
    inject = {"row": 3, "column": 9, "value": -7.5}
    data = await ask(engine, "outliers", "demo", small, **about, inject=inject)
    assert list(data["top"][0].values())[:3] == [3, 9, -7.5]
    assert (data["count"], data["outlier_columns"]) == (1, [9])


async def test_thresholds_of_an_injected_tensor_are_over_the_original(engine, model):
    """Errors are relative to the energy of the tensor without the outlier, as for granularities."""
    inject = {"row": None, "column": 5, "value": 3.0}
    data = await ask(engine, "decomposition", model, PROJ, scheme="int4:group32", inject=inject)
    x = values()[PROJ].astype(np.float64)
    injected = x.copy()
    injected[:, 5] = 3.0
    points = [p for p in data["points"] if p["threshold"] <= 3.0 or p["columns"] == 0]
    assert points
    for point in points:
        scheme = Scheme.parse(point["scheme"])
        y = quantize(injected.astype(np.float32), scheme).dequantize()
        relative = np.square(injected - y).sum() / np.square(x).sum()
        assert point["relative_mse"] == pytest.approx(relative, rel=1e-4)
        assert point["sqnr_db"] == pytest.approx(-10 * np.log10(relative), abs=1e-3)
