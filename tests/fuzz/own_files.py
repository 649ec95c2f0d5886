"""What is fuzzed of the files that qtui writes and reads again: recordings, profiles, reports."""

from __future__ import annotations

import io
import json
import os
from base64 import b64encode
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lab_findings
import numpy as np
from mutations import Target, as_json, file_of

from qtui.report.document import Document
from qtui.report.evaluation.document import evaluation_replay
from qtui.report.faces.render import FORMATS, write_report
from qtui.report.lab.document import lab_replay
from qtui.report.train.document import train_document
from qtui_core.errors import UsageError
from qtui_core.evaluation.changes import read_assignment
from qtui_core.evaluation.results import (
    EVALUATION_LINES,
    Candidate,
    EvaluatedText,
    EvaluationBegun,
    PartScored,
    read_evaluation_recording,
)
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.gates import read_gates
from qtui_core.lab.recording import LAB_LINES, parse_lab_recording
from qtui_core.lab.results import JobDone, LabBegun, LabFault, StepProgress
from qtui_core.live.state import RunState, after, parse_recording
from qtui_core.memory.devices.device import find_device
from qtui_core.memory.devices.profile import MeasuredStep, Profile, profile_of
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.shape.from_config import shape_from_config

TESTS = Path(__file__).parent.parent
PLAN = RunPlan(batch=1, sequence=16)


def small_config() -> dict[str, Any]:
    config = json.loads((TESTS / "memory" / "configs" / "llama-3.2-1b.json").read_bytes())
    return {**config, "num_hidden_layers": 2, "hidden_size": 64}


@cache
def small_shape() -> Any:
    return shape_from_config(small_config())


def write(document: Document) -> None:
    """Writes a report in each format, and for a terminal."""
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
        for form in FORMATS:
            write_report(document, form)
        with patch.dict(os.environ, {"COLUMNS": "80"}):
            write_report(document, "text", color="always")


def _recording_seeds() -> Sequence[bytes]:
    (path,) = (TESTS / "live" / "recordings").glob("*.jsonl")
    first, *rest = path.read_bytes().splitlines()
    kinds = {json.loads(line)["told"]: line for line in rest}
    others = as_json(
        {"told": "fault", "seconds": 2.5, "step": 1, "phase": "backward", "kind": "driver",
         "text": "It is gone.", "asked_bytes": 9, "largest": [["weights", 7]],
         "advice": [["zero", 3]]},
        {"told": "state", "seconds": 2, "state": "paused"},
        {"told": "ranges", "seconds": 2, "step": 1, "scale": 8.0, "ranges": [
            {"kind": "weights", "name": "q", "found": {"counts": [3] * 256, "zeros": 2,
                                                       "largest": 2.5}}]},
    )  # fmt: skip
    return [
        b"\n".join([first, *rest[:12]]),
        b"\n".join([first, *kinds.values(), *others]),
        b"\n".join([first, *others, *reversed(rest[:30])]),
    ]


def take_recording(raw: bytes) -> None:
    recording = parse_recording(raw.splitlines())
    state = reduce(after, recording, RunState())
    write(train_document(state, "replay", recording.complaint))


def _experiment_seeds() -> Sequence[bytes]:
    begun = LabBegun("underflow", "Why?", "demo", {"lr": 1e-5}, ("a", "b"), 2.5, {"torch": "2"})
    events = (StepProgress("a", 1, 2, 0.5), JobDone("a", {"loss": [1.5]}, 2.0))
    whole = [begun, *events, lab_findings.result(), LabFault("It was stopped.")]
    lines = [LAB_LINES.to_line(event).encode() for event in whole]
    return [b"\n".join(lines[:-1]), b"\n".join(lines)]


def _evaluation_seeds() -> Sequence[bytes]:
    text = EvaluatedText("a text", "a byte a token", 4096, "", 8, 3, 4)
    names = ("original", "int4", "nf4", "int8")
    begun = EvaluationBegun(
        "m", "LlamaForCausalLM", 1000, 2000, EvaluationSettings(), text,
        tuple(map(Candidate, names)), (2, 2), "CPU",
    )  # fmt: skip

    def coded(values: Any, dtype: str = "<f4") -> str:
        return b64encode(np.array(values, dtype).tobytes()).decode()

    parts = [
        PartScored(
            batch, candidate, 500 + candidate, coded(np.arange(6) / 5),
            coded(np.arange(6) * candidate / 50) if candidate else "", coded([1] * 6, "|u1"), 1.0,
        )
        for batch in range(2) for candidate in range(len(names))
    ]  # fmt: skip
    return [b"\n".join(map(str.encode, map(EVALUATION_LINES.to_line, [begun, *parts])))]


def take_evaluation(raw: bytes) -> None:
    write(evaluation_replay(read_evaluation_recording(file_of(raw)), "replay"))


PROFILE = Profile(
    "RTX 4090", "2026-11-21T10:00:00+00:00", "580.1", {"qtui": "0", "torch": "2.13.0"}, 24 << 30,
    (8, 9), 280 << 20, 410 << 20, "this process", 32 << 20, 64 << 20, {"1024": 2 << 20}, {"a": "b"},
    tuple(MeasuredStep("lora", 1, 2, 3, 4, 5, 6, context, 1.5) for context in (1 << 28, 1 << 29)),
)  # fmt: skip


def take_profile(raw: bytes) -> None:
    calibration = profile_of(raw.decode("utf-8", "replace")).calibration
    device = replace(find_device("RTX 4090"), calibration=calibration)
    estimate(small_shape(), PLAN, device, allocator=False)


#: Of each command with gates, a report.
REPORTS: dict[str, dict[str, Any]] = {
    "inspect": {
        "schema_version": 1, "model": {"id": "m"}, "sample": {"rows": 2},
        "schemes": [{"scheme": "int4", "sqnr_db": 20.5, "relative_mse": 0.01, "bytes": 500,
                     "bits_per_parameter": 4.5, "saturated": 0}],
        "tensors": [{"name": "a", "errors": [{"scheme": "int4", "sqnr_db": 19.5}]}],
        "memory": {"peak_allocated_bytes": 1000, "process_bytes": 2000},
    },
    "memory": {
        "schema_version": 1, "model": "m", "plan": {"batch": 2}, "gpu": None,
        "peak_allocated_bytes": 900, "resident_bytes": 800,
        "fits": [{"gpu": "T4", "headroom_bytes": 7}], "phases": [{"name": "load"}],
    },
    "eval": {
        "schema_version": 1, "model": {"id": "m"}, "text": {"origin": "a", "windows": 2},
        "rows": [{"scheme": "nf4", "kl_mean": 0.5, "top1_agreement": 0.9, "loss": 2.5}],
    },
}  # fmt: skip


def take_baseline(raw: bytes) -> None:
    """As the baseline of each report, and as a report that is compared with it."""
    path = str(file_of(raw))
    for command, report in REPORTS.items():
        try:
            gates = read_gates(command, ["bytes>1B"] * (command == "inspect"), path,
                               schema_version=1)  # fmt: skip
            verdict = gates.judge(report)
        except UsageError:
            continue
        assert verdict.sentence


OWN_FILES: dict[str, Target] = {
    "recording": Target(_recording_seeds, take_recording),
    "experiment": Target(
        _experiment_seeds,
        lambda raw: write(lab_replay(parse_lab_recording(raw.splitlines()), "replay")),
    ),
    "evaluation": Target(_evaluation_seeds, take_evaluation),
    "profile": Target(lambda: [PROFILE.to_json().encode()], take_profile),
    "baseline": Target(lambda: as_json(*REPORTS.values()), take_baseline),
    "assignment": Target(
        lambda: as_json(
            {"a.weight": "int4:group64", "b.weight": None},
            {"sensitivity": {"assignment": [{"tensor": "a.weight", "scheme": "nf4:dq"}]}},
        ),
        lambda raw: read_assignment(str(file_of(raw))),
    ),
}
