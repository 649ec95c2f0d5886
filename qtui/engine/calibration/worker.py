"""A calibration in a process of its own: `python -m qtui.engine.calibration.worker [DEVICE]`.

Writes one line of JSON (GpuMeasurement) to the stdout with which it started; what libraries print
goes to stderr. The process must not have used the GPU before: its context would exist already.
"""

from __future__ import annotations

import os
import sys

from qtui_core.codec import to_line
from qtui_core.errors import QtuiError
from qtui_core.telemetry.readings import DeviceReader
from qtui_core.training.measuring.calibration import GpuMeasurement
from qtui_core.training.run.placement import place


def main() -> None:
    """Measures once."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answer:
        try:
            found = _measure(sys.argv[1] if len(sys.argv) > 1 else "cuda")
        except QtuiError as error:
            found = GpuMeasurement(error=str(error), code=error.exit_code)
        answer.write(to_line(found))


def _measure(wanted: str) -> GpuMeasurement:
    placement = place(wanted, os.environ)
    os.environ.update(placement.environment)
    with DeviceReader(uuid=placement.uuid) as reader:
        import torch

        from qtui_core.training.measuring.rates import CudaMachine, calibrate, facts_of

        return GpuMeasurement(calibrate(CudaMachine(reader)), facts_of(torch.device("cuda")))


if __name__ == "__main__":
    main()
