"""An estimator that answers at once with a hand-made step, for tests of the Memory panel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qtui.engine.client import EngineLost, EngineState, Reply
from qtui.engine.estimator.answers import (
    Answer,
    Assessment,
    CaseFigures,
    MapCell,
    ModelFacts,
    Stage,
    Traced,
)
from qtui_core.codec import from_plain, to_line
from qtui_core.errors import QtuiError, UsageError
from qtui_core.memory.advice.cases import Figure
from qtui_core.memory.advice.fit import Advice, Cure, Fit, Verdict
from qtui_core.memory.estimate import PhaseBytes
from qtui_core.memory.formulas.terms import Term
from qtui_core.memory.plan.run_plan import RunPlan, Stored, resolve
from qtui_core.memory.replay.timeline import Span, stacked

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
        self.traceable = True
        self.origin = "tape"
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
        params = json.loads(to_line(params or {}))  # as it travels
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

        def tell(fraction: float, data: Any) -> None:
            on_progress(fraction, json.loads(to_line(data)))

        answer = getattr(self, f"_{method}")(params, tell)
        return Reply(json.loads(to_line(answer)), {})

    def _open(self, params: Any, _: Any) -> ModelFacts:
        return ModelFacts(
            id=params["case"] or "seven-b", location="here", architecture="LlamaForCausalLM",
            parameters=7_000_000_000, layers=32, stored=Stored("bf16"), quantized=False,
            learned_positions=None, notes=(), traceable=self.traceable,
        )  # fmt: skip

    def _devices(self, params: Any, _: Any) -> dict[str, Any]:
        return {"devices": self.devices}

    def _first(self, params: Any, _: Any) -> Answer:
        return self._answer(params, "first")

    def _full(self, params: Any, _: Any) -> Answer:
        return self._answer(params, "full")

    def _trace(self, params: Any, _: Any) -> Traced:
        answer = replace(self._answer(params, "full"), origin="trace")
        return Traced(answer, self._around(params, None))

    def _answer(self, params: Any, stage: Stage) -> Answer:
        plan = resolve(from_plain(RunPlan, params["plan"]), "bf16")
        if plan.batch == REFUSED_BATCH:
            raise UsageError("A batch of 24 is impossible here; use 16.")
        rows = curve_rows(plan.batch)
        totals = [sum(column) for column in zip(*rows, strict=True)]
        peak, capacity = max(totals), 24 * GIB
        at = totals.index(peak)
        process = peak + (2 * GIB if stage == "full" else GIB // 2)
        device = params["device"]
        fit = None
        if device is not None and stage == "full":
            spare = capacity - process
            name = device.get("label") or device.get("name") or "GPU"
            verdict: Verdict = "fits" if spare > GIB else "tight" if spare > -GIB else "no"
            fit = Fit(name, capacity, verdict, spare)
        phase = next(name for name, start, stop in PHASES if start <= at < stop)
        return Answer(
            stage=stage, origin=self.origin, plan=plan, resident_bytes=totals[-1],
            peak_live_bytes=peak, peak_allocated_bytes=peak,
            peak_reserved_bytes=peak + GIB if stage == "full" else None,
            process_bytes=process, uncertainty_bytes=GIB // 4, peak_phase=phase,
            peak_operation="_log_softmax_backward" if stage == "full" else "",
            components=tuple(
                Term(name, row[at], "N h", "exact", "")
                for name, row in zip(COMPONENTS, rows, strict=True)
                if stage == "full" and row[at]
            ),
            beyond=(
                Term("kept by the allocator", GIB, "reserved - allocated", "derived", ""),
                Term("context and modules of CUDA", GIB, "measured", "calibrated", ""),
            ),
            phases=tuple(
                PhaseBytes(name, max(totals[start:stop]), max(totals[start:stop]),
                           "mul in layer 31")
                for name, start, stop in PHASES
            ),
            fit=fit,
            curve=stacked(range(100), COMPONENTS, rows, (Span(*phase) for phase in PHASES)),
        )  # fmt: skip

    def _around(self, params: Any, _: Any) -> Assessment:
        plan = resolve(from_plain(RunPlan, params["plan"]), "bf16")
        cheaper = replace(plan, loss="tiled")
        rank = replace(plan, lora_rank=8)
        names = ["RTX 4090", "A100 SXM4 80GB"]
        names = [live["label"] for live in params["live"]] + names
        chosen = (params["device"] or {}).get("name")
        names.sort(key=lambda name: name != chosen)
        verdicts: tuple[Verdict, ...] = ("tight", "fits", "no")
        advice = (
            Advice("--loss tiled", cheaper, 3 * GIB, "a little time", "backward", {}),
            Advice("--lora-rank 8", rank, GIB // 8, "adapters of a lower rank", "loss", {}),
        )
        return Assessment(
            sentence=self.sentence,
            advice=advice[: self.advised],
            fits=tuple(
                Fit(name, (24 + 56 * at) * GIB, verdicts[at], (56 * at - 1) * GIB)
                for at, name in enumerate(names)
            ),
            cures=(
                Cure("backward", "torch.OutOfMemoryError in backward()", 12 * GIB,
                     "--loss tiled", 3 * GIB),
            ),
            notes=("The sequence is longer than the 4,096 positions the model was made for.",),
            weighed=self.weighed,
            report={"model": "seven-b", "peak_phase": "backward"},
        )  # fmt: skip

    def _map(self, params: Any, on_progress: Any) -> dict[str, Any]:
        for batch in params["batches"]:
            for length in params["sequences"]:
                peak = None if length > 16384 else 6 * GIB + batch * length * (GIB >> 12)
                on_progress(0.0, MapCell(batch, length, peak))
                if params["device"] is not None and peak is not None:
                    verdict: Verdict = "tight" if peak < 24 * GIB else "no"
                    if peak < 20 * GIB:
                        verdict = "fits"
                    on_progress(0.0, MapCell(batch, length, peak, verdict))
        return {}

    def _cases(self, params: Any, on_progress: Any) -> dict[str, Any]:
        figures = (
            Figure("FP32 Adam", 64 * 10**9, 64_242_000_000,
                   "The same: 8.03B parameters, 2 x 4 bytes."),
            Figure("8-bit Adam", 16 * 10**9, 19_450_000_000,
                   "The embedding keeps states of 32 bits."),
        )  # fmt: skip
        on_progress(0.0, CaseFigures("adam-8b", figures))
        return {}


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
