"""A script in place of the processes that `qtui calibrate` starts on a GPU. `measure` writes the
measurements of a GPU, `run` the events of a run with an estimate. The second argument chooses a
failure."""

from __future__ import annotations

import json
import sys
import time

from qtui_core.live.snapshot import (
    End,
    Fault,
    PhaseEnded,
    Predicted,
    PredictedCurve,
    RecordingHeader,
    RunDevice,
    StepTaken,
)
from qtui_core.live.state import to_line

MIB = 1 << 20
FOUND = {
    "context_first": 280 * MIB, "context_products": 410 * MIB, "context_basis": "this process",
    "workspace_forward": 32 * MIB, "workspace_training": 64 * MIB,
    "segments": {"1024": 2 * MIB, "2097152": 20 * MIB, "11534336": 12 * MIB},
    "allocator": {"expandable_segments": False},
}  # fmt: skip
FACTS = {
    "kind": "cuda",
    "name": "NVIDIA H100 80GB HBM3",
    "capability": [9, 0],
    "total_memory": 85_029_158_912,
}
#: Bytes of a run of each method besides the segments of its allocator.
CONTEXTS = {"qlora": 520 * MIB, "full": 460 * MIB, "lora": 480 * MIB}


def measure(wrong: str) -> None:
    if wrong == "slow":
        time.sleep(30)
    if wrong == "dies":
        print("CUDA error: no kernel image", file=sys.stderr)
        sys.exit(1)
    if wrong == "no gpu":
        print(json.dumps({"error": "There is no GPU.", "code": 4}))
        return
    found = dict(FOUND)
    if wrong == "hidden":
        found |= {"context_first": None, "context_products": None, "context_basis": ""}
    print(json.dumps({"found": found, "facts": FACTS}))


def run(wrong: str) -> None:
    request = json.loads(sys.stdin.readline())
    method = request["plan"]["method"]
    if wrong == "slow":
        time.sleep(30)
    reserved = 900 * MIB
    predicted = Predicted(
        500 * MIB, 800 * MIB, "backward", 880 * MIB, 1330 * MIB, 450 * MIB, 64 * MIB, (),
        PredictedCurve((), (), (), ()),
    )  # fmt: skip
    header = RecordingHeader(
        "2026-11-21T10:00:00+00:00", request["model"], "LlamaForCausalLM", 10,
        RunDevice("cuda", FACTS["name"], 0, 80 << 30), {}, request["plan"], request["steps"],
        "built-in text", predicted,
    )  # fmt: skip
    process = None if wrong == "hidden" else reserved + CONTEXTS[method]
    print(to_line(header))
    print(to_line(PhaseEnded(1.0, 1, "backward", 810 * MIB, 600 * MIB, reserved, reserved,
                             process_bytes=process)))  # fmt: skip
    print(to_line(StepTaken(1.5, 1, 2.0, 0.25, 1024)))
    if wrong == "oom" and method == "full":
        print(to_line(Fault(2.0, 1, "backward", "out of memory", "It did not fit.")))
        print(to_line(End(2.0, "failed")))
        sys.exit(1)
    print(to_line(End(2.0, "done")))


if __name__ == "__main__":
    {"measure": measure, "run": run}[sys.argv[1]](sys.argv[2])
