"""The events of made-up runs, with numbers that are easy to follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

from qtui_core.live.snapshot import (
    End,
    LogMessage,
    PhaseBegun,
    PhaseEnded,
    Predicted,
    PredictedCurve,
    PredictedPhase,
    RecordingHeader,
    RunDevice,
    Sample,
    State,
    StepTaken,
)
from qtui_core.live.state import RunEvent
from qtui_core.memory.plan.run_plan import RunPlan, resolve

MIB = 1 << 20
STEP = ("forward", "loss", "backward", "optimizer", "between steps")
BEFORE = ("import", "load", "prepare")

#: A curve with six events per phase.
CURVE = PredictedCurve(
    positions=tuple(range(100, 130, 2)),
    components=("weights", "activations"),
    bytes=((40 * MIB,) * 15, tuple(range(15))),
    spans=tuple((name, 100 + 6 * i, 106 + 6 * i) for i, name in enumerate(STEP)),
)

WEIGHTS = {"weights": 40 * MIB, "adapters": 2 * MIB, "buffers": 4096}
STATES = {"optimizer states": 4 * MIB}
PEAKS = {"import": 0, "load": 42, "prepare": 43, "forward": 70, "loss": 90, "backward": 80,
         "optimizer": 60, "between steps": 47}  # fmt: skip


def predicted_phase(name: str) -> PredictedPhase:
    standing = WEIGHTS | (STATES if name in STEP else {}) | {"workspaces": MIB}
    peak = PEAKS[name] * MIB
    rest = max(0, peak - 4096 - sum(standing.values()))
    held = standing | ({"gradients": 2 * MIB} if name == "backward" else {})
    return PredictedPhase(name, peak, held, standing | {"activations": rest})


PREDICTED = Predicted(
    resident_bytes=47 * MIB + 4096,
    peak_allocated_bytes=90 * MIB,
    peak_phase="loss",
    peak_reserved_bytes=110 * MIB,
    process_bytes=510 * MIB,
    context_bytes=400 * MIB,
    workspace_bytes=MIB,
    phases=tuple(predicted_phase(name) for name in PEAKS if name != "import"),
    curve=CURVE,
    advice=(("--batch 1", 10 * MIB),),
)
ON_GPU = RecordingHeader(
    made="2026-01-02T03:04:05+00:00",
    model="demo",
    architecture="LlamaForCausalLM",
    parameters=4_558_080,
    device=RunDevice("cuda", "a GPU", 0, 1 << 34),
    versions={"qtui": "0"},
    plan=asdict(resolve(RunPlan(method="lora", batch=2, sequence=64), "bf16"))
    | {"lora_targets": ["all-linear"]},
    steps=3,
    data="built-in text",
    predicted=PREDICTED,
)
ON_CPU = replace(
    ON_GPU,
    device=RunDevice("cpu", "a processor"),
    predicted=replace(
        PREDICTED,
        peak_reserved_bytes=None,
        process_bytes=90 * MIB,
        context_bytes=0,
        workspace_bytes=0,
        counted="tensors",
    ),
)


def phase(name: str, step: int, begun: float, *, gpu: bool = True) -> Iterator[RunEvent]:
    """The events of a phase of 0.4 s with two samples."""
    yield PhaseBegun(begun, step, name)
    peak = (PEAKS[name] + 1) * MIB
    levels = (
        {
            "reserved_bytes": peak + 20 * MIB,
            "process_bytes": peak + 430 * MIB,
            "device_used_bytes": peak + 930 * MIB,
        }
        if gpu
        else {}
    )
    for share in (0.25, 0.75):
        yield Sample(begun + 0.4 * share, step, name, peak - MIB, **levels)
    standing = dict(WEIGHTS) if name in STEP or name == "prepare" else {}
    if step > 1 or (step == 1 and name in ("optimizer", "between steps")):
        standing |= STATES
    if name in ("backward", "optimizer"):
        standing["gradients"] = 2 * MIB
    left = sum(standing.values()) + MIB
    reserved = {"peak_reserved_bytes": peak + 20 * MIB} if gpu else {}
    peak_held = {} if gpu else standing | {"activations": peak - sum(standing.values())}
    yield PhaseEnded(
        begun + 0.4,
        step,
        name,
        peak,
        left,
        held=standing | {"activations": MIB},
        peak_held=peak_held,
        counted="allocator" if gpu else "tensors",
        **reserved,
        **levels,
    )


def run(steps: int = 3, *, gpu: bool = True) -> Iterator[RunEvent]:
    """The events of a whole run whose loss falls from 5."""
    yield ON_GPU if gpu else ON_CPU
    seconds = 0.0
    for name in BEFORE:
        yield from phase(name, 0, seconds, gpu=gpu)
        seconds += 0.4
    yield State(seconds, "running")
    for step in range(1, steps + 1):
        for name in STEP:
            yield from phase(name, step, seconds, gpu=gpu)
            seconds += 0.4
        yield StepTaken(seconds, step, 5.0 - 0.1 * step, 2.0, 128)
        yield LogMessage(seconds, f"step {step}")
    yield End(seconds, "done")
