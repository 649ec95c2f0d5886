"""An estimator that answers the Hardware panel at once, with GPUs that are not there and the
operations of a small model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from qtui.engine.client import EngineLost, EngineState, Reply
from qtui.engine.estimator.answers import Operations, Readings
from qtui_core.codec import from_plain, to_line
from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.roofline.step import operations_of
from qtui_core.telemetry.readings import DeviceReading, ProcessReading

GIB = 1 << 30

SMALL = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
    "vocab_size": 32000, "head_dim": 128, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip

L40S = DeviceReading(
    label="0", name="NVIDIA L40S", memory_used=3 * GIB, memory_free=41 * GIB,
    memory_total=44 * GIB, memory_reserved=GIB // 2, gpu_percent=87,
    power_watts=211.4, power_limit_watts=350.0, temperature_celsius=61, clock_mhz=2490,
    processes=(ProcessReading(4711, "compute", "python train.py", 2 * GIB),
               ProcessReading(4712, "compute", None, None)),
    mig=False, unified=False,
)  # fmt: skip
#: A slice of MIG: no share, no power, hidden processes.
SLICE = DeviceReading(
    label="1", name="NVIDIA A100-SXM4-80GB", memory_used=GIB, memory_free=9 * GIB,
    memory_total=10 * GIB,
)  # fmt: skip
FACTS = {
    "kind": "cuda", "name": "NVIDIA L40S", "capability": [8, 9], "multiprocessors": 142,
    "total_memory": 47_676_000_000, "l2": 100_663_296, "shared": 102_400, "registers": 262_144,
    "clock_mhz": 2520, "bandwidth": 864_096_000_000, "threads": None,
}  # fmt: skip
RATES = [
    {"what": "product", "dtype": "fp32", "size": 8192, "per_second": 60e12, "seconds": 0.018,
     "repeats": 20, "why_not": ""},
    {"what": "product", "dtype": "bf16", "size": 8192, "per_second": 271.5e12, "seconds": 0.004,
     "repeats": 20, "why_not": ""},
    {"what": "product", "dtype": "fp8", "size": 8192, "per_second": None, "seconds": None,
     "repeats": 0, "why_not": "not compiled for this device"},
    {"what": "copy", "dtype": "bytes", "size": GIB, "per_second": 700e9, "seconds": 0.003,
     "repeats": 20, "why_not": ""},
]  # fmt: skip


class HardwareHere:
    """`gpus` are what the driver says; `asked` what was asked for."""

    def __init__(self) -> None:
        self.state = EngineState.RUNNING
        self.asked: list[tuple[str, Any]] = []
        self.gpus: list[DeviceReading] = [L40S, SLICE]
        self.facts: dict[str, Any] = FACTS
        self.rates = RATES
        self.holding: set[str] = set()
        self.lost = ""
        self.refusal = ""
        self.busy = False

    def subscribe(self, listener: Any) -> Callable[[], None]:
        return lambda: None

    async def restart(self) -> None:
        self.state, self.lost = EngineState.RUNNING, ""

    async def close(self) -> None:
        pass

    def kill(self) -> None:
        self.state = EngineState.LOST

    def count(self, method: str) -> int:
        return sum(asked == method for asked, _ in self.asked)

    async def request(
        self, method: str, params: Any = None, *, kind: Any = None, on_progress: Any = None
    ) -> Reply:
        params = json.loads(to_line(params or {}))  # as it travels
        self.asked.append((method, params))
        while method in self.holding:
            await asyncio.sleep(0.005)
        if self.lost:
            self.state = EngineState.LOST
            raise EngineLost(self.lost)
        answer = getattr(self, f"_{method}")(params, on_progress)
        return Reply(json.loads(to_line(answer)), {})

    def _gpus(self, params: Any, _: Any) -> Readings:
        return Readings(tuple(self.gpus))

    def _operations(self, params: Any, _: Any) -> Operations:
        if self.refusal:
            raise UsageError(self.refusal)
        shape = shape_from_config(SMALL)
        plan = resolve(from_plain(RunPlan, params["plan"]), shape.dtype)
        return Operations(plan, operations_of(shape, plan), assumed=False)

    def _measure(self, params: Any, on_progress: Any) -> dict[str, Any]:
        on_progress(0.0, {"device": self.facts})
        for rate in self.rates:
            on_progress(0.0, {"rate": rate})
        return {}
