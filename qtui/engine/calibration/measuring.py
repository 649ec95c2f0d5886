"""Rates of this machine, in a process of its own:
`python -m qtui.engine.calibration.measuring [DEVICE]`.

DEVICE is the number of a GPU as NVML counts, "cpu", or "auto": the first GPU, else the CPU.
Writes a line of JSON for the device, {"device": {...}}, and one for each rate, {"rate": {...}}, as
they are measured, or {"error", "code"}, to what was stdout when it started; what libraries print
goes to stderr. The memory it takes on a GPU goes with it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from qtui_core.errors import QtuiError
from qtui_core.extras import require
from qtui_core.training.run.placement import gpus


def main() -> None:
    """Measures once."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    with answer:
        try:
            _measure(sys.argv[1] if len(sys.argv) > 1 else "auto", answer)
        except QtuiError as error:
            print(json.dumps({"error": str(error), "code": error.exit_code}), file=answer)


def _measure(wanted: str, answer: Any) -> None:
    if wanted.isdecimal():
        # CUDA counts in another order, and only what is visible; by its UUID it is the one meant.
        for gpu in gpus():
            if gpu.index == int(wanted):
                os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid
    require("Measuring rates", "torch")
    import torch

    from qtui_core.training.measuring.rates import facts_of, measure_rates

    if wanted != "cpu":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    print(json.dumps({"device": asdict(facts_of(device))}), file=answer)
    for rate in measure_rates(device):
        print(json.dumps({"rate": asdict(rate)}), file=answer)


if __name__ == "__main__":
    main()
