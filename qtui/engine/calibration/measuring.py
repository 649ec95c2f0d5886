"""Rates of this machine, in a process of its own:
`python -m qtui.engine.calibration.measuring [DEVICE]`.

DEVICE is the number of a GPU as NVML counts, "cpu", or "auto": the first GPU, else the CPU.
Writes a line of JSON for the device and one for each rate as it is measured (RateTold) to what was
stdout when it started; what libraries print goes to stderr. The memory it takes on a GPU goes with
it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from qtui.engine.estimator.answers import RateTold
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
            print(to_line(RateTold(error=str(error), code=error.exit_code)), file=answer)


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
    print(to_line(RateTold(device=facts_of(device))), file=answer)
    for rate in measure_rates(device):
        print(to_line(RateTold(rate=rate)), file=answer)


if __name__ == "__main__":
    main()
