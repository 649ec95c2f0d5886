"""The operations for the Hardware panel, called directly and in the real estimator's process."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from qtui.engine.estimator import hardware
from qtui.engine.estimator.answers import MeasurementLine, Operations, RatesMeasured
from qtui.engine.estimator.child import build_operations
from qtui.engine.estimator.hardware import gpus, measure, operations
from qtui.engine.estimator.subjects import Estimates
from qtui.engine.task import Cancelled, Task
from qtui_core.codec import to_line
from qtui_core.errors import QtuiError, UsageError
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.roofline.rates import DeviceFacts, MeasuredRate
from qtui_core.telemetry.readings import DeviceReading

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2,
    "num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 256,
    "torch_dtype": "bfloat16", "architectures": ["LlamaForCausalLM"],
}  # fmt: skip


def task(method: str, params: dict[str, Any], told: list[Any] | None = None) -> Task[Any]:
    def send(fraction: float, data: Any) -> None:
        if told is not None:
            told.append(data)

    asked = build_operations()[method].read(method, json.loads(json.dumps(params)))
    return Task(1, method, asked, send)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_gpus_travel_as_json(monkeypatch):
    reading = DeviceReading("0", "NVIDIA L4", 1, 2, 3, processes=())
    monkeypatch.setattr(hardware, "read_all", lambda: (reading,))
    found = gpus(Estimates(), task("gpus", {}))
    assert json.loads(to_line(found))["gpus"][0]["name"] == "NVIDIA L4"


def ask(model: str, plan: RunPlan, **params: Any) -> Operations:
    asked = {"model": model, "plan": asdict(plan), "device": None, **params}
    return operations(Estimates(), task("operations", asked))


def test_a_sequence_that_nobody_chose_ends_at_the_learned_positions(model):
    gpt2 = str(Path(__file__).parents[2] / "memory" / "configs" / "gpt2-medium.json")
    assert ask(gpt2, RunPlan()).plan.sequence == 1024
    assert ask(model, RunPlan()).plan.sequence == 2048  # rotary positions have no end


def test_operations_are_of_the_plan_and_its_device(model):
    found = ask(model, RunPlan(method="full", batch=3, sequence=100), device={"name": "T4"})
    assert "RMSNorm" in [each.name for each in found.operations]
    assert (found.plan.dtype, found.plan.attention) == ("bf16", "efficient")
    with pytest.raises(UsageError):
        ask(model, RunPlan(batch=0))


class Script:
    """Replaces the measuring process by a script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
        import subprocess
        import sys

        real = subprocess.Popen

        def start(command: list[str], **options: Any) -> Any:
            self.command = command
            self.process = real([sys.executable, "-c", code], **options)
            return self.process

        monkeypatch.setattr(subprocess, "Popen", start)


def test_rates_are_reported_one_by_one(monkeypatch):
    device, rate = DeviceFacts("cpu", "a processor"), MeasuredRate("copy", "bytes", 1, 2.0)
    lines = [json.dumps({"device": asdict(device)}), json.dumps({"rate": asdict(rate)})]
    Script(monkeypatch, f"print({lines[0]!r}); print({lines[1]!r})")
    told: list[Any] = []
    found = measure(Estimates(), task("measure", {}, told))
    assert told == [MeasurementLine(device=device), MeasurementLine(rate=rate)]
    assert found == RatesMeasured(device, (rate,))


def test_a_measurement_that_dies_or_is_refused_says_why(monkeypatch):
    dies = "import sys; print('no CUDA runtime', file=sys.stderr); sys.exit(7)"
    refuses = f"print({json.dumps({'error': 'There is no device tpu.', 'code': 2})!r})"
    for code, error, says in (
        (dies, QtuiError, "ended with code 7: no CUDA runtime"),
        (refuses, UsageError, "no device tpu"),
    ):
        with monkeypatch.context() as patch:
            Script(patch, code)
            with pytest.raises(error, match=says):
                measure(Estimates(), task("measure", {"on": "tpu"}))


def test_a_cancelled_measurement_ends_soon(monkeypatch):
    script = Script(monkeypatch, "import time; time.sleep(600)")
    asked = task("measure", {})
    threading.Timer(0.3, asked.cancel).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        measure(Estimates(), asked)
    assert time.monotonic() - began < 120
    assert script.process.poll() is not None


def test_live_values_wait_for_nothing_else():
    lanes = {name: operation.lane for name, operation in build_operations().items()}
    assert [name for name, lane in lanes.items() if lane == lanes["gpus"]] == ["gpus"]
    assert [name for name, lane in lanes.items() if lane == lanes["measure"]] == ["measure"]


@pytest.mark.slow
async def test_the_real_process_answers(model):
    import sys

    from qtui.engine.client import EngineClient

    client = EngineClient((sys.executable, "-P", "-m", "qtui.engine.estimator.child"))
    try:
        found = await client.request("gpus")
        assert isinstance(found.data["gpus"], list)
        params = {"model": model, "plan": asdict(RunPlan()), "device": None}
        reply = await client.request("operations", params)
        assert reply.data["operations"]
        rates: list[Any] = []
        await client.request(
            "measure", {"on": "cpu"}, on_progress=lambda _, data: rates.append(data)
        )
        assert [line["rate"]["dtype"] for line in rates if line["rate"]] == [
            "fp32", "bf16", "fp16", "int8", "bytes",
        ]  # fmt: skip
    finally:
        await client.close()


def test_the_gpu_that_is_measured_is_the_one_that_nvml_counts(monkeypatch):
    import io
    import os

    from qtui.engine.calibration import rates_worker
    from qtui_core.training.measuring import rates
    from qtui_core.training.run.placement import Gpu

    found = (
        Gpu(0, "GPU-aaaa", "NVIDIA L4", None, None),
        Gpu(1, "GPU-bbbb", "NVIDIA L4", None, None),
    )
    monkeypatch.setattr(rates_worker, "gpus", lambda: found)
    monkeypatch.setattr(rates, "measure_rates", lambda device: iter(()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    answer = io.StringIO()
    rates_worker._measure("1", answer)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-bbbb"
    assert json.loads(answer.getvalue())["device"]["kind"] in ("cpu", "cuda")
