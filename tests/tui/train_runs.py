"""Hand-made runs for tests of the Train panel: what a child would report, at known times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from memory_estimator import COMPONENTS, GIB, PHASES, curve_rows

from qtui_core.files import target_of
from qtui_core.live.snapshot import (
    AdaptersCompared,
    End,
    Fault,
    LogMessage,
    PhaseBegun,
    PhaseEnded,
    Predicted,
    PredictedCurve,
    PredictedPhase,
    RecordingHeader,
    RunDevice,
    Sample,
    Snapshot,
    State,
    StepTaken,
)
from qtui_core.live.state import RunEvent, to_line
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.recorded_lines import Recorder

MIB = 1 << 20
#: The share of the prediction that is measured.
SHARE = 1.03
STEP_SECONDS = 1.0
LOAD_SECONDS = 2.0


def header(steps: int | None = 20, *, cpu: bool = False, batch: int = 1) -> RecordingHeader:
    """The estimate of the hand-made step; on a CPU a thousandth of it."""
    unit = 1024 if cpu else 1
    rows = [[value // unit for value in row] for row in curve_rows(batch)]
    totals = [sum(column) for column in zip(*rows, strict=True)]
    held = {
        name: [
            {c: row[at] for c, row in zip(COMPONENTS, rows, strict=True) if row[at]}
            for at in (stop - 1, start + totals[start:stop].index(max(totals[start:stop])))
        ]
        for name, start, stop in PHASES
    }
    peak = max(totals)
    predicted = Predicted(
        resident_bytes=totals[-1],
        peak_allocated_bytes=peak,
        peak_phase=next(n for n, a, b in PHASES if a <= totals.index(peak) < b),
        peak_reserved_bytes=None if cpu else peak + GIB // 2,
        process_bytes=peak if cpu else peak + GIB,
        context_bytes=0 if cpu else GIB // 2,
        workspace_bytes=0,
        phases=tuple(
            PredictedPhase(name, max(totals[start:stop]), *held[name])
            for name, start, stop in PHASES
        ),
        curve=PredictedCurve(tuple(range(100)), COMPONENTS, tuple(map(tuple, rows)), tuple(PHASES)),
        counted="tensors" if cpu else "allocator",
        memory={"model": "seven-b"},
    )
    device = (
        RunDevice("cpu", "a CPU")
        if cpu
        else RunDevice("cuda", "NVIDIA L40S", 0, 44 * GIB + GIB // 2)
    )
    return RecordingHeader(
        made="2026-01-02T03:04:05+00:00", model="seven-b", architecture="LlamaForCausalLM",
        parameters=7_000_000_000, device=device, versions={"qtui": "0", "torch": "2"},
        plan=asdict(resolve(RunPlan(batch=batch), "bf16")), steps=steps, data="built-in text",
        predicted=predicted,
    )  # fmt: skip


def told(head: RecordingHeader, steps: int, *, upto: float = math.inf) -> list[Snapshot]:
    """A load and so many steps, whose samples are SHARE of the prediction; reports after `upto`
    seconds are left out."""
    assert head.predicted is not None
    curve = head.predicted.curve
    totals = [sum(column) for column in zip(*curve.bytes, strict=True)]
    cpu = head.device.kind == "cpu"
    found: list[Snapshot] = [
        LogMessage(0.1, "torch 2 imported"), PhaseBegun(0.2, 0, "load"),
        _ended(LOAD_SECONDS, 0, "load", totals[-1], totals[-1], cpu),
    ]  # fmt: skip
    for step in range(1, steps + 1):
        at = LOAD_SECONDS + (step - 1) * STEP_SECONDS
        for name, start, stop in curve.spans:
            begun = at + start / 100 * STEP_SECONDS
            found.append(PhaseBegun(begun, step, name))
            for event in range(start, stop, 5):
                seconds = at + (event + 0.5) / 100 * STEP_SECONDS
                found.append(_sample(seconds, step, name, round(SHARE * totals[event]), cpu))
            most = round(SHARE * max(totals[start:stop]))
            left = round(SHARE * totals[stop - 1])
            held = {c: r[stop - 1] for c, r in zip(COMPONENTS, curve.bytes, strict=True)}
            ended = _ended(at + stop / 100 * STEP_SECONDS - 1e-3, step, name, most, left, cpu)
            found.append(replace(ended, held={c: n for c, n in held.items() if n}))
        loss = 2.0 + math.exp(-step / 6)
        found.append(StepTaken(at + STEP_SECONDS - 1e-4, step, loss, STEP_SECONDS, 2048))
    return [each for each in found if each.seconds <= upto]


def whole(steps: int = 6, *, cpu: bool = False) -> list[RunEvent]:
    """A run from its header to its end."""
    head = header(steps, cpu=cpu)
    seconds = LOAD_SECONDS + steps * STEP_SECONDS
    compared = AdaptersCompared(
        seconds, steps, 1.25, 0.0, (("a", 0.5), (" the", 0.25)), (("the", 0.4), ("a", 0.1))
    )
    return [head, *told(head, steps), compared, End(seconds + 0.1, "done")]


def out_of_memory() -> list[RunEvent]:
    """A run that ends in the backward pass of its second step."""
    head = header()
    at = LOAD_SECONDS + 1.6
    fault = Fault(
        at, 2, "backward", "out of memory",
        "The GPU ran out of memory in backward of step 2, asking for 512 MiB.",
        asked_bytes=512 * MIB,
        largest=(("weights", 6 * GIB), ("activations", GIB // 2)),
        advice=(("--loss tiled", 3 * GIB), ("--lora-rank 8", GIB // 8)),
    )  # fmt: skip
    return [head, *told(head, 2, upto=at), fault, End(at + 0.1, "failed")]


def not_a_number() -> list[RunEvent]:
    """A loss that is no number in the third step of four."""
    head = header(4)
    found: list[Snapshot] = []
    for each in told(head, 4):
        if isinstance(each, StepTaken) and each.step >= 3:
            each = replace(each, loss=math.nan)
        found.append(each)
        if isinstance(each, StepTaken) and each.step == 3:
            text = "The loss of step 3 is not a number; a smaller learning rate may help."
            found.append(Fault(each.seconds, 3, "loss", "not a number", text, fatal=False))
    return [head, *found, End(found[-1].seconds + 0.1, "done")]


def held() -> list[Snapshot]:
    """The reports of a run that is paused after its second step."""
    return [*told(header(), 2), State(LOAD_SECONDS + 2 * STEP_SECONDS, "paused")]


def write(path: Path, lines: Sequence[RunEvent]) -> Path:
    """A recording of a run."""
    with Recorder(target_of(str(path), force=True), to_line) as recorder:
        for each in lines:
            recorder.write(each)
    return path


def _sample(seconds: float, step: int, phase: str, nbytes: int, cpu: bool) -> Sample:
    if cpu:
        return Sample(seconds, step, phase, allocated_bytes=nbytes, rss_bytes=500 * MIB)
    return Sample(
        seconds, step, phase, allocated_bytes=nbytes, reserved_bytes=9 * GIB,
        process_bytes=9 * GIB + GIB // 2, device_used_bytes=12 * GIB, utilisation_percent=87,
        power_watts=240.0, temperature_celsius=61, clock_mhz=1980,
    )  # fmt: skip


def _ended(seconds: float, step: int, phase: str, most: int, left: int, cpu: bool) -> PhaseEnded:
    if cpu:
        return PhaseEnded(
            seconds, step, phase, most, left, process_bytes=500 * MIB, counted="tensors"
        )
    return PhaseEnded(
        seconds, step, phase, most, left, peak_reserved_bytes=9 * GIB, reserved_bytes=9 * GIB,
        process_bytes=9 * GIB + GIB // 2, device_used_bytes=12 * GIB,
    )  # fmt: skip
