"""Whether a run on the CPU has room in this machine."""

from __future__ import annotations

from qtui_core.memory.dtypes import SIZES
from qtui_core.quantities import format_bytes
from qtui_core.telemetry.machine import Machine


def warning_on_host(peak_bytes: int, parameters: int | None, dtype: str, machine: Machine) -> str:
    """A sentence that warns of a run whose tensors the machine has no room for; empty where it
    has, or does not say how much is free.

    `peak_bytes` are those of the estimate. On a CPU all weights lie there in `dtype` before they
    are quantized, which may be more.
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
