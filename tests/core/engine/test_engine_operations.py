"""The real engine's answers about a real model, compared with the library and plain numpy."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_model import PROJ, SHAPE, values
from lazy_imports import LazyImport, lazy_names
from safetensors.numpy import save_file

from qtui.engine.answers.tensors import TensorNumbers
from qtui.engine.client import Reply
from qtui_core.answers import ColumnCount, ErrorReport
from qtui_core.errors import ModelError, UsageError
from qtui_core.quant import Scheme, measure, quantize

torch = LazyImport("torch")
LlamaConfig, LlamaForCausalLM = lazy_names("transformers", "LlamaConfig", "LlamaForCausalLM")


pytestmark = pytest.mark.asyncio(loop_scope="module")


def params(model: str, tensor: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "tensor": tensor, **more}


def array(reply: Reply, name: str) -> np.ndarray:
    sent = reply.arrays[name]
    return np.frombuffer(sent.data, sent.dtype).reshape(sent.shape)


async def test_open_lists_the_tensors(engine, model):
    data = (await engine.request("open_model", {"model": model})).data
    assert data["architecture"] == "LlamaForCausalLM"
    rows = {row[0]: row for row in data["tensors"]}
    assert set(rows) == set(values())
    assert rows[PROJ][1:] == ["F32", list(SHAPE), 15360, 61440, True, True, 96]
    assert rows["layers.0.norm.weight"][-2:] == [False, 1]  # a vector is not quantized
    assert rows["counts"][-2] is False


async def test_a_config_alone_gives_the_parameters_of_a_known_family(engine, tmp_path):
    config = LlamaConfig(
        vocab_size=1000, hidden_size=64, intermediate_size=176, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        counted = sum(each.numel() for each in LlamaForCausalLM(config).parameters())
    (tmp_path / "config.json").write_text(config.to_json_string(use_diff=False))
    data = (await engine.request("open_model", {"model": str(tmp_path)})).data
    assert (data["parameters"], data["nbytes"], data["tensors"]) == (counted, 0, [])
    assert "weights" in data["note"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "of-tomorrow"}))
    data = (await engine.request("open_model", {"model": str(tmp_path)})).data
    assert data["parameters"] is None


async def test_open_errors_are_the_sentences_of_the_library(engine, tmp_path):
    with pytest.raises(ModelError, match="no file or folder"):
        await engine.request("open_model", {"model": str(tmp_path / "nowhere")})
    with pytest.raises(UsageError, match="request for open_model is malformed: model is missing"):
        await engine.request("open_model", {})
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError):
        await engine.request("open_model", {"model": str(bad)})


async def test_measure_is_the_library_s(engine, model):
    text = "nf4:block64:dq"
    name = PROJ
    reply = await engine.request("measure", params(model, name, scheme=text))
    report = measure(values()[name], Scheme.parse(text))
    assert reply.read(ErrorReport) == report


async def test_an_error_map_has_the_largest_error_and_its_place(engine, model):
    x = values()[PROJ]
    error = np.abs(quantize(x, Scheme.parse("int4:group32")).dequantize() - x)
    reply = await engine.request(
        "map", params(model, PROJ, schemes=["int4:group32"], rows=10, columns=7)
    )
    cells, rows, columns = (array(reply, n) for n in ("cells", "peak_rows", "peak_columns"))
    assert cells.shape == (10, 7)
    assert cells.max() == error.max()
    assert (error[rows, columns] == cells).all()


async def test_histogram_is_numpy_s(engine, model):
    for name in (PROJ, "holes"):
        x = values()[name].astype(np.float64).reshape(-1)
        reply = await engine.request("histogram", params(model, name, bins=33))
        counts, edges = np.histogram(x[np.isfinite(x)], 33)
        assert array(reply, "counts").tolist() == counts.tolist()
        assert reply.data["edges"] == pytest.approx([edges[0], edges[-1]])


async def test_statistics_and_outliers(engine, model):
    name = PROJ
    data = (await engine.request("statistics", params(model, name))).read(TensorNumbers)
    x = values()[name].astype(np.float64)
    assert data.statistics.count == x.size
    assert data.statistics.std == pytest.approx(x.std(), rel=1e-5)
    assert data.statistics.absmax == np.abs(x).max()
    beyond = np.abs(x - x.mean()) > 6 * x.std()
    assert data.outliers.count == beyond.sum() > 0
    columns = (ColumnCount(column, int(beyond[:, column].sum())) for column in (17, 90))
    assert data.outliers.columns == tuple(columns)
    holes = (await engine.request("statistics", params(model, "holes"))).read(TensorNumbers)
    assert (holes.statistics.nan, holes.statistics.inf) == (1, 1)


async def test_an_element_and_the_levels_of_its_group(engine, model):
    name = PROJ
    x = values()[name]
    reply = await engine.request(
        "element", params(model, name, scheme="int4:group32", row=7, column=40)
    )
    assert reply.data["value"] == x[7, 40]
    assert reply.data["quantized"] == quantize(x, Scheme.parse("int4:group32")).dequantize()[7, 40]
    assert reply.data["error"] == reply.data["quantized"] - reply.data["value"]
    assert (reply.data["where"], len(reply.data["levels"])) == ("row 7, 32 to 63", 15)
    with pytest.raises(UsageError, match="there is no"):
        await engine.request("element", params(model, name, scheme="int4", row=96, column=0))


async def test_one_scale_for_the_model_comes_from_all_its_weights(engine, model):
    name = "layers.1.proj.weight"
    weights = [x for x in values().values() if x.ndim > 1 and x.dtype.kind == "f" and x.size]
    largest = max(np.abs(x[np.isfinite(x)]).max() for x in weights)
    reply = await engine.request(
        "element", params(model, name, scheme="int8:model", row=0, column=0)
    )
    assert reply.data["scale"] == pytest.approx(largest / 127, rel=1e-6)


async def test_rank_reports_every_weight(engine, model):
    found: dict[str, float] = {}
    reply = await engine.request(
        "rank",
        {"model": model, "scheme": "int4"},
        on_progress=lambda fraction, data: found.__setitem__(data["name"], data["sqnr_db"]),
    )
    assert reply.data == {"sampled": False}
    left_out = {"layers.0.norm.weight", "vector", "empty", "scalar", "counts"}
    assert set(found) == set(values()) - left_out
    expected = measure(values()[PROJ], Scheme.parse("int4")).sqnr_db
    assert found[PROJ] == expected
    assert found["zeros"] is None


async def test_vectors_scalars_and_empty_tensors(engine, model):
    vector = await engine.request(
        "map", params(model, "layers.0.norm.weight", schemes=["int4"], rows=8, columns=16)
    )
    assert (vector.data["rows"], vector.data["columns"]) == (1, 64)
    assert array(vector, "cells").shape == (1, 16)
    stacked = await engine.request(
        "map", params(model, "experts", schemes=["int4"], rows=99, columns=99)
    )
    assert array(stacked, "cells").shape == (24, 64)
    row = await engine.request("element", params(model, "experts", scheme="int4", row=9, column=3))
    assert row.data["value"] == values()["experts"][1, 1, 3]
    scalar = await engine.request(
        "map", params(model, "scalar", schemes=["int4"], rows=8, columns=8)
    )
    assert array(scalar, "cells").tolist() == [[0.0]]
    empty = await engine.request("measure", params(model, "empty", scheme="int4"))
    assert empty.data["count"] == 0
    none = await engine.request("histogram", params(model, "empty", bins=8))
    assert none.data["edges"] == []


async def test_a_large_tensor_is_cancelled_between_chunks(engine, tmp_path):
    path = tmp_path / "large.safetensors"
    x = np.zeros((4096, 8192), np.float16)
    x[::7] = 1
    save_file({"large": x}, path)
    seen: list[float] = []

    def stop(fraction: float, _: object) -> None:
        seen.append(fraction)
        asked.cancel()

    await engine.request("open_model", {"model": str(path)})
    request = params(str(path), "large", scheme="int4")
    asked = asyncio.create_task(engine.request("measure", request, on_progress=stop))
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert max(seen) < 1


async def test_the_engine_does_not_load_torch_for_this(engine, model):
    await engine.request("measure", params(model, PROJ, scheme="nf4"))
    maps = Path(f"/proc/{engine.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "numpy" in maps
