"""Rates of this machine, in a process of its own:
`python -m qtui.engine.calibration.rates_worker [DEVICE]`.

DEVICE is the number of a GPU in NVML's order, "cpu", or "auto": the first GPU, else the CPU. Writes
lines of JSON (MeasurementLine), one for the device and one for each rate as soon as it is measured,
to the stdout with which it started; what libraries print goes to stderr. The GPU memory that it
uses is freed when it ends.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from qtui.engine.estimator.answers import MeasurementLine
from qtui_core.codec import to_line
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
            print(to_line(MeasurementLine(error=str(error), code=error.exit_code)), file=answer)


def _measure(wanted: str, answer: Any) -> None:
    if wanted.isdecimal():
        # CUDA numbers GPUs in another order, and only the visible ones; a UUID names one for both.
        for gpu in gpus():
            if gpu.index == int(wanted):
                os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid
    require("Measuring rates", "torch")
    import torch

    from qtui_core.training.measuring.rates import facts_of, measure_rates

    if wanted != "cpu":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    print(to_line(MeasurementLine(device=facts_of(device))), file=answer)
    for rate in measure_rates(device):
        print(to_line(MeasurementLine(rate=rate)), file=answer)


if __name__ == "__main__":
    main()
