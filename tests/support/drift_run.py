"""A process that records steps of the installed classes, case after case, and compares the tape
with each.

Reads lines of JSON with the fields of a `drift.Case`, and answers with those of its
`drift.Agreement`. A trace changes torch permanently, so it has a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from typing import Any

import peft  # its import creates a few tensors, which must not be in a trace
from cpu_kernels import on_cpu
from recording_difference import first_difference, peaks, standing_bytes

from qtui_core.errors import QtuiError
from qtui_core.memory.plan.run_plan import RunPlan, resolve_for
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.step.run import record_step
from qtui_core.training.tracing.trace import record

assert peft


def answer(case: dict[str, Any]) -> dict[str, Any]:
    chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in case["plan"].items()}
    plan = RunPlan(**chosen)
    device = case["device"]
    start = time.perf_counter()
    try:
        shape = shape_from_config(case["config"])
        plan = resolve_for(shape, plan)
        real = record(case["config"], plan, device, case["steps"], whole=True)
        with on_cpu() if device == "cpu" else nullcontext():
            taped = record_step(shape, plan, case["steps"])
    except QtuiError as error:
        return {"failed": str(error)}
    difference = first_difference(taped, real)
    return {
        "seconds": time.perf_counter() - start,
        "difference": str(difference) if difference else None,
        "standing": [standing_bytes(taped), standing_bytes(real)],
        "peaks": {"tape": peaks(taped), "real": peaks(real)},
    }


if __name__ == "__main__":
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(answer(case)), flush=True)
