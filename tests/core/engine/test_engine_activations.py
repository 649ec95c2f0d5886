"""Captures and operations on captured activations, in the real child process."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from lazy_imports import LazyImport

from qtui.engine.answers.tensors import TensorNumbers
from qtui.engine.client import EngineClient
from qtui_core.errors import ModelError, UsageError
from qtui_core.models.demo import DEMO_FOLDER, HELD_BACK_TEXT
from qtui_core.quant import Scheme, measure, quantize, statistics

torch = LazyImport("torch")
transformers = LazyImport("transformers")


DOWN = "model.layers.2.mlp.down_proj.weight"
UP = "model.layers.0.mlp.up_proj.weight"


# One engine and one event loop for all tests here, because starting torch takes seconds.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


def windows_of_the_halves() -> tuple[np.ndarray, np.ndarray]:
    """Eight of the windows of 256 bytes in each half of the built-in text, evenly spread."""
    raw = np.frombuffer(HELD_BACK_TEXT.read_bytes(), np.uint8).astype(np.int64)
    halves = raw[: raw.size // 2], raw[raw.size // 2 :]
    return tuple(
        np.stack(np.split(half[: half.size // 256 * 256], half.size // 256))[
            np.linspace(0, half.size // 256 - 1, 8).round().astype(int)
        ]
        for half in halves
    )


def activations(module: str) -> dict[str, np.ndarray]:
    """Inputs and outputs of a module of the demo over both halves of the text, from hooks."""
    torch.set_num_threads(1)
    model = transformers.LlamaForCausalLM.from_pretrained(DEMO_FOLDER, dtype="auto").eval()
    found: dict[str, np.ndarray] = {}
    for name, ids in zip(("calibration", "held-out"), windows_of_the_halves(), strict=True):
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        handle = model.get_submodule(module).register_forward_hook(
            lambda m, args, out, seen=seen: seen.append((args[0].float(), out.float()))
        )
        with torch.no_grad():
            for part in np.split(ids, 2):
                model(torch.from_numpy(part))
        handle.remove()
        for side, parts in zip(("input", "output"), zip(*seen, strict=True), strict=True):
            flat = [part.reshape(-1, part.shape[-1]) for part in parts]
            found[f"{name} {side}"] = torch.cat(flat).numpy()
    return found


async def test_everything_about_a_tensor_works_on_what_was_captured(engine):
    expected = activations(DOWN.removesuffix(".weight"))
    await engine.request("open_model", {"model": "demo"})
    asked = {"model": "demo", "tensor": DOWN}
    with pytest.raises(UsageError, match="let the model run on a text first"):
        await engine.request("statistics", {**asked, "source": "input"})

    stages: list[str] = []
    fractions: list[float] = []

    def heard(fraction: float, data: dict[str, Any]) -> None:
        fractions.append(fraction)
        stages.extend(data.values())

    reply = await engine.request("capture", {"model": "demo", "tensors": [DOWN]}, on_progress=heard)
    assert stages == [
        "starting torch", "loading the model", "reading the text",
        "running on the calibration text", "running on the held-out text",
    ]  # fmt: skip
    assert fractions == sorted(fractions)
    captured = reply.data["captures"][0]
    assert (captured["tokens"], captured["held_out_tokens"]) == (2048, 2048)
    assert (captured["inputs"], captured["outputs"]) == (704, 256)
    assert captured["text"] == "the built-in text, a byte a token"
    assert reply.data["held"] == [DOWN]

    for side in ("input", "output"):
        x = expected[f"calibration {side}"]
        about = {**asked, "source": side}
        found = (await engine.request("statistics", about)).read(TensorNumbers).statistics
        exact = statistics(x)
        assert (found.count, found.min, found.max) == (x.size, exact.min, exact.max)
        # For an activation, one scale for the model is that of the range over the calibration text.
        for text, same in (("int4:group64", "int4:group64"), ("int8:model", "int8:tensor")):
            data = (await engine.request("measure", {**about, "scheme": text})).data
            assert data["sqnr_db"] == pytest.approx(
                measure(x, Scheme.parse(same)).sqnr_db, abs=1e-5
            )
        element = {**about, "scheme": "int4:group64", "row": 17, "column": 65}
        data = (await engine.request("element", element)).data
        whole = quantize(x, Scheme.parse("int4:group64")).dequantize()
        assert (data["value"], data["quantized"]) == (x[17, 65], whole[17, 65])
        picture = {**about, "kind": "error", "schemes": ["int4:group64"], "rows": 8, "columns": 16}
        reply = await engine.request("map", picture)
        sent = reply.arrays["cells"]
        assert np.frombuffer(sent.data, sent.dtype).max() == np.abs(x - whole).max()

    weight = transformers.LlamaForCausalLM.from_pretrained(DEMO_FOLDER, dtype="auto")
    w = weight.get_submodule(DOWN.removesuffix(".weight")).weight.detach().float().numpy()
    await check_ranges(engine, asked, expected)
    await check_output_error(engine, asked, expected, w)
    await check_repeats_and_forgetting(engine, asked)


async def check_ranges(
    engine: EngineClient, asked: dict[str, Any], expected: dict[str, np.ndarray]
) -> None:
    x, y = expected["calibration input"], expected["held-out input"]
    reply = await engine.request(
        "activation_ranges", {**asked, "source": "input", "scheme": "int8:row"}
    )
    ways = {way["words"]: way for way in reply.data["ways"]}
    assert list(ways) == ["per token", "per tensor", "min-max", "99.99%", "99.9%"]
    absmax = float(np.abs(x).max())
    fixed = measure(y, Scheme.parse("int8:model"), model_absmax=absmax)
    assert ways["min-max"]["held_out"]["sqnr_db"] == pytest.approx(fixed.sqnr_db, abs=1e-9)
    assert ways["min-max"]["held_out"]["clipped"] == (np.abs(y) > absmax).mean()
    token = measure(y, Scheme.parse("int8:row"))
    assert ways["per token"]["held_out"]["sqnr_db"] == pytest.approx(token.sqnr_db, abs=1e-9)
    # The demo runs in bfloat16, so its percentiles are exact.
    clip = float(np.quantile(np.abs(x), 0.9999, method="inverted_cdf"))
    assert ways["99.99%"]["extent"] == [-clip, clip]
    assert not reply.data["sampled"]


async def check_output_error(
    engine: EngineClient, asked: dict[str, Any], expected: dict[str, np.ndarray], w: np.ndarray
) -> None:
    x = expected["calibration input"]
    texts = ["int4:group64", "int8:token"]
    reply = await engine.request("output_error", {**asked, "schemes": texts, "active": 1})
    w_hat = quantize(w, Scheme.parse(texts[0])).dequantize().astype(np.float64)
    x_hat = quantize(x, Scheme.parse(texts[1])).dequantize().astype(np.float64)
    y = x.astype(np.float64) @ w.T.astype(np.float64)
    exact = np.square(x_hat @ w_hat.T - y).sum() / np.square(y).sum()
    assert reply.data["relative_mse"][1][2] == pytest.approx(exact, rel=1e-5)
    assert reply.data["sqnr_db"][0][0] is None
    assert reply.data["sentence"].startswith("Output under int8:token: ")


async def check_repeats_and_forgetting(engine: EngineClient, asked: dict[str, Any]) -> None:
    capture = {"model": "demo", "tensors": [DOWN]}
    first = (await engine.request("capture", capture)).data["captures"][0]
    again = (await engine.request("capture", capture)).data["captures"][0]
    assert again == first  # not run again
    other = {**capture, "prompt": "import os\n" * 20}
    found = (await engine.request("capture", other)).data["captures"][0]
    assert found["number"] != first["number"]
    assert (found["tokens"], found["held_out_tokens"]) == (100, 100)
    reply = await engine.request("statistics", {**asked, "source": "input"})
    count = reply.read(TensorNumbers).statistics.count
    assert count == 100 * 704  # not the cached result of the earlier capture


async def test_impossible_captures_are_refused_and_nothing_is_lost(engine, tmp_path):
    capture = {"model": "demo", "tensors": [UP]}
    config = str(DEMO_FOLDER / "config.json")
    for changes, error, words in [
        ({"file": str(tmp_path / "none")}, UsageError, "is no file"),
        ({"prompt": " "}, UsageError, "prompt is empty"),
        ({"prompt": "x", "file": "y"}, UsageError, "not both"),
        ({"tensors": []}, UsageError, "needs a list of weights"),
        ({"tensors": ["nothing"]}, ModelError, "no tensor"),
        ({"model": config}, ModelError, "no weights to read"),
    ]:
        model = {"model": changes.get("model", "demo")}
        await engine.request("open_model", model)
        with pytest.raises(error, match=words):
            await engine.request("capture", {**capture, **changes})
    data = (await engine.request("measure", {"model": "demo", "tensor": UP, "scheme": "int4"})).data
    assert data["sqnr_db"] > 10


async def test_a_capture_is_cancelled_and_the_next_one_works(engine):
    await engine.request("open_model", {"model": "demo"})
    capture = {"model": "demo", "tensors": [UP]}

    def stop(fraction: float, data: dict[str, Any]) -> None:
        if data.get("stage") == "running on the calibration text":
            waiting.cancel()

    waiting = asyncio.create_task(engine.request("capture", capture, on_progress=stop))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(UsageError, match="was captured"):
        await engine.request("statistics", {"model": "demo", "tensor": UP, "source": "output"})
    assert (await engine.request("capture", capture)).data["held"] == [UP]
