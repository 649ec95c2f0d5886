"""The GPUs that a plan can be estimated for, to pick from."""

from __future__ import annotations

from collections.abc import Callable

from qtui.screen.picker.devices import DeviceLine, device_picking
from qtui.screen.picker.picking import Picking
from qtui.screen.plan.shown import GpuChoice, Shown
from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import find_device


def gpu_picking(shown: Shown, read: Callable[[str], GpuChoice | None]) -> Picking:
    """Any GPU, those of this machine, then the catalogue; `read` makes one of a typed memory, or
    raises UsageError."""
    known = shown.around.fits if shown.around is not None and shown.current else ()
    verdicts = {fit.gpu: fit.verdict for fit in known}

    def line(gpu: GpuChoice) -> DeviceLine:
        return DeviceLine(gpu.label, capacity_of(gpu), verdicts.get(gpu.label, ""), gpu.note)

    def typed(text: str) -> DeviceLine:
        found = read(text)
        if found is None:
            raise UsageError(f"{text!r} names no GPU; a name or a memory as 24GiB does.")
        return line(found)

    any_gpu = DeviceLine("any", None, note="The plan is estimated for none in particular.")
    choices = (None, *shown.gpus)
    at = choices.index(shown.gpu) if shown.gpu in choices else 0
    return device_picking([any_gpu, *map(line, shown.gpus)], at, typed)


def capacity_of(gpu: GpuChoice) -> int | None:
    """The bytes that processes can have."""
    if "capacity" in gpu.params:
        return int(gpu.params["capacity"])
    return find_device(str(gpu.params["name"])).capacity_bytes
