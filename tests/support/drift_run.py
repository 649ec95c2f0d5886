"""A process that records steps of the installed classes, case after case, and holds the tape
against each.

Reads lines of JSON, each the fields of a `drift.Case`, and answers with those of its
`drift.Agreement`. A trace changes torch for good, so it has a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from typing import Any

from cpu_kernels import on_cpu

from qtui_core.errors import QtuiError
from qtui_core.memory.plan import RunPlan, resolve
from qtui_core.memory.shape import ModelShape
from qtui_core.memory.step import record_step
from qtui_core.training import fake_kernels
from qtui_core.training.compare import first_difference, peaks, standing_bytes
from qtui_core.training.trace import record
from qtui_core.training.tracker import Tracker

_SUMMED_IN_PLACE = ("aten.index_put.default", "aten.scatter_add.default", "aten.scatter.src")


def answer(case: dict[str, Any]) -> dict[str, Any]:
    chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in case["plan"].items()}
    plan = RunPlan(**chosen)
    device = case["device"]
    start = time.perf_counter()
    try:
        real = record(case["config"], plan, device, case["steps"], whole=True)
        shape = ModelShape.from_config(case["config"])
        with on_cpu() if device == "cpu" else nullcontext():
            taped = record_step(shape, resolve(plan, shape.dtype), case["steps"])
    except QtuiError as error:
        return {"failed": str(error)}
    difference = first_difference(taped, real)
    return {
        "seconds": time.perf_counter() - start,
        "difference": str(difference) if difference else None,
        "standing": [standing_bytes(taped), standing_bytes(real)],
        "peaks": {"tape": peaks(taped), "real": peaks(real)},
    }


def see_through() -> None:
    """Lets the tracker see inside the 4-bit product of bitsandbytes, which on a CPU is composed
    (backends/default/ops.py) but one operation to a dispatch mode; and undoes what dispatch modes
    change themselves, gradients of lookups that are then not summed in place."""
    import peft  # which makes a few tensors when it is imported
    import torch
    from bitsandbytes.backends.default.ops import _gemm_4bit_default_impl as composed

    product = torch.ops.bitsandbytes.gemm_4bit.default
    kernels = {name: fake_kernels._KERNELS[name] for name in _SUMMED_IN_PLACE}
    closed = Tracker.__torch_dispatch__

    def opened(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is product:
            with self:
                return composed(*args, **(kwargs or {}))
        if (kernel := kernels.get(str(func))) is not None:
            return kernel(func, *args, **(kwargs or {}))
        return closed(self, func, types, args, kwargs)

    assert peft
    Tracker.__torch_dispatch__ = opened  # type: ignore[method-assign]


if __name__ == "__main__":
    for number, line in enumerate(sys.stdin):
        case = json.loads(line)
        if number == 0 and case["device"] == "cpu":
            see_through()
        print(json.dumps(answer(case)), flush=True)
