"""Whether a run on the CPU fits into the memory of this machine."""

from __future__ import annotations

from qtui_core.memory.dtypes import SIZES
from qtui_core.quantities import format_bytes
from qtui_core.telemetry.machine import Machine


def warning_on_host(peak_bytes: int, parameters: int | None, dtype: str, machine: Machine) -> str:
    """A sentence that warns if the tensors of a run need more memory than the machine has free;
    empty if they fit, or if the free memory is not known.

    `peak_bytes` is the estimated peak. On a CPU, all `parameters` are in memory in `dtype` before
    they are quantized, which may need more.
    """
    known = [each for each in (machine.memory_available, machine.memory_limit) if each is not None]
    needed = max(peak_bytes, (parameters or 0) * SIZES[dtype])
    if not known or needed <= min(known):
        return ""
    return (
        f"This run may not fit: its tensors take {format_bytes(needed)}, and this machine has "
        f"{format_bytes(min(known))} free; the system may end it, or something else. Take a "
        f"smaller model, --batch or --seq."
    )
