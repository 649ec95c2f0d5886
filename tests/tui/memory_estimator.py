"""An estimator that answers at once with a hand-made step, for tests of the Memory panel."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable
from typing import Any

from qtui.engine.client import EngineLost, EngineState, Reply
from qtui.engine.protocol import Array
from qtui.screen.plan.data import plan_of
from qtui_core.errors import QtuiError, UsageError
from qtui_core.memory.plan.run_plan import resolve

GIB = 1 << 30
COMPONENTS = ("weights", "adapters", "optimizer states", "gradients", "activations", "loss",
              "temporaries")  # fmt: skip
PHASES = (("forward", 0, 40), ("loss", 40, 44), ("backward", 44, 90), ("optimizer", 90, 98),
          ("between steps", 98, 100))  # fmt: skip
REFUSED_BATCH = 24
"""A batch that this estimator says is impossible."""


class HandMade:
    """Six GiB of weights, and activations of half a GiB a sequence; answers are counted."""

    def __init__(self) -> None:
        self.state = EngineState.RUNNING
        self.asked: list[tuple[str, Any]] = []
        self.devices: list[dict[str, Any]] = []
        self.unknown = ""
        self.traceable = True
        self.holding: set[str] = set()
        self.lost = ""
        self.busy = False
        self.given_up: list[str] = []
        self.failing: tuple[str, Exception] = ("", QtuiError())
        self.sentence = "The run needs 9 GiB; chunk the loss."
        self.advised = 2
        """How many changes are advised."""
        self.weighed = True

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
        params = json.loads(json.dumps(params or {}))  # as it travels
        self.asked.append((method, params))
        try:
            while method in self.holding:
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.given_up.append(method)
            raise
        if method == self.failing[0]:
            raise self.failing[1]
        if self.lost:
            self.state = EngineState.LOST
            raise EngineLost(self.lost)
        answer = getattr(self, f"_{method}")(params, on_progress)
        return answer if isinstance(answer, Reply) else Reply(answer, {})

    def _open(self, params: Any, _: Any) -> dict[str, Any]:
        return {
            "id": params["case"] or "seven-b", "location": "here",
            "architecture": "LlamaForCausalLM", "parameters": 7_000_000_000, "layers": 32,
            "dtype": "bf16", "packed_as": None, "max_positions": 4096, "quantized": False,
            "notes": [], "unknown": self.unknown, "traceable": self.traceable,
        }  # fmt: skip

    def _devices(self, params: Any, _: Any) -> dict[str, Any]:
        return {"devices": self.devices}

    def _first(self, params: Any, _: Any) -> Reply:
        return self._answer(params, "first")

    def _full(self, params: Any, _: Any) -> Reply:
        return self._answer(params, "full")

    def _trace(self, params: Any, _: Any) -> Reply:
        reply = self._answer(params, "full")
        around = self._around(params, None)
        return Reply({**reply.data, "origin": "trace", "around": around}, reply.arrays)

    def _answer(self, params: Any, stage: str) -> Reply:
        plan = resolve(plan_of(params["plan"]), "bf16")
        if plan.batch == REFUSED_BATCH:
            raise UsageError("A batch of 24 is impossible here; use 16.")
        rows = curve_rows(plan.batch)
        flat = array("q", (value for row in rows for value in row))
        totals = [sum(column) for column in zip(*rows, strict=True)]
        peak, capacity = max(totals), 24 * GIB
        at = totals.index(peak)
        process = peak + (2 * GIB if stage == "full" else GIB // 2)
        device = params["device"]
        fit = None
        if device is not None and stage == "full":
            spare = capacity - process
            fit = {
                "gpu": device.get("label") or device.get("name") or "GPU",
                "capacity_bytes": capacity,
                "verdict": "fits" if spare > GIB else "tight" if spare > -GIB else "no",
                "headroom_bytes": spare,
            }
        phase = next(name for name, start, stop in PHASES if start <= at < stop)
        data = {
            "stage": stage, "origin": "tape", "plan": params["plan"] | _plain(plan),
            "resident_bytes": totals[-1], "peak_live_bytes": peak,
            "peak_allocated_bytes": peak,
            "peak_reserved_bytes": peak + GIB if stage == "full" else None,
            "process_bytes": process, "uncertainty_bytes": GIB // 4, "peak_phase": phase,
            "peak_operation": "_log_softmax_backward" if stage == "full" else "",
            "components": [
                {"name": name, "bytes": row[at], "formula": "N h", "basis": "exact"}
                for name, row in zip(COMPONENTS, rows, strict=True)
                if stage == "full" and row[at]
            ],
            "beyond": [
                {"name": "kept by the allocator", "bytes": GIB, "formula": "reserved - allocated",
                 "basis": "derived"},
                {"name": "context and modules of CUDA", "bytes": GIB, "formula": "measured",
                 "basis": "calibrated"},
            ],
            "phases": [
                {"name": name, "live_bytes": max(totals[start:stop]),
                 "allocated_bytes": max(totals[start:stop]), "operation": "mul in layer 31"}
                for name, start, stop in PHASES
            ],
            "fit": fit,
            "curve": {"positions": list(range(100)), "components": list(COMPONENTS),
                      "bands": [list(band) for band in PHASES]},
        }  # fmt: skip
        return Reply(data, {"curve": Array("<i8", (len(flat),), flat.tobytes())})

    def _around(self, params: Any, _: Any) -> dict[str, Any]:
        plan = params["plan"] | _plain(resolve(plan_of(params["plan"]), "bf16"))
        cheaper = {**plan, "loss": "chunked:256"}
        rank = {**plan, "lora_rank": 8}
        names = ["RTX 4090", "A100 SXM4 80GB"]
        names = [live["label"] for live in params["live"]] + names
        chosen = (params["device"] or {}).get("name")
        names.sort(key=lambda name: name != chosen)
        return {
            "sentence": self.sentence,
            "advice": [
                {"change": "--loss chunked:256", "plan": cheaper, "saves_bytes": 3 * GIB,
                 "cost": "a little time", "peak_phase": "backward"},
                {"change": "--lora-rank 8", "plan": rank, "saves_bytes": GIB // 8,
                 "cost": "adapters of a lower rank", "peak_phase": "loss"},
            ][: 0 if self.unknown else self.advised],
            "fits": [
                {"gpu": name, "capacity_bytes": (24 + 56 * at) * GIB,
                 "verdict": ("tight", "fits", "no")[at], "headroom_bytes": (56 * at - 1) * GIB}
                for at, name in enumerate(names)
            ],
            "cures": [
                {"kind": "backward", "symptom": "torch.OutOfMemoryError in backward()",
                 "needs_bytes": 12 * GIB, "change": "--loss chunked:256", "saves_bytes": 3 * GIB},
            ],
            "notes": ["The sequence is longer than the 4,096 positions the model was made for."],
            "weighed": self.weighed and not self.unknown,
            "report": {"model": "seven-b", "peak_phase": "backward"},
        }  # fmt: skip

    def _map(self, params: Any, on_progress: Any) -> dict[str, Any]:
        for batch in params["batches"]:
            for length in params["sequences"]:
                peak = None if length > 16384 else 6 * GIB + batch * length * (GIB >> 12)
                cell = {"batch": batch, "sequence": length, "peak_live_bytes": peak}
                on_progress(0.0, cell)
                if params["device"] is not None and peak is not None:
                    verdict = "fits" if peak < 20 * GIB else "tight" if peak < 24 * GIB else "no"
                    on_progress(0.0, {"batch": batch, "sequence": length, "verdict": verdict})
        return {}

    def _cases(self, params: Any, on_progress: Any) -> dict[str, Any]:
        figure = {"what": "FP32 Adam", "stated_bytes": 64 * 10**9, "bytes": 64_242_000_000,
                  "why": "The same: 8.03B parameters, 2 x 4 bytes."}  # fmt: skip
        other = {"what": "8-bit Adam", "stated_bytes": 16 * 10**9, "bytes": 19_450_000_000,
                 "why": "The embedding keeps states of 32 bits."}  # fmt: skip
        on_progress(0.0, {"case": "adam-8b", "figures": [figure, other]})
        return {}


def _plain(plan: Any) -> dict[str, Any]:
    return dict(json.loads(json.dumps(plan.__dict__)))


def curve_rows(batch: int) -> list[list[int]]:
    """Bytes of each component at a hundred events."""
    ramp = [min(at, 40, max(0, 90 - at)) for at in range(100)]
    tenth = GIB // 10
    return [
        [6 * GIB] * 100,
        [tenth] * 100,
        [2 * tenth] * 100,
        [tenth * max(0, min(at, 97) - 44) // 53 if at < 98 else 0 for at in range(100)],
        [batch * GIB * each // 80 for each in ramp],
        [3 * batch * tenth * 5 if at in (43, 44) else 0 for at in range(100)],
        [3 * tenth if at % 4 == 0 and at < 90 else 0 for at in range(100)],
    ]
