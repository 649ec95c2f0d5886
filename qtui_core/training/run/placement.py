"""The device of a run, chosen before torch is imported, because environment variables that select a
GPU or set its allocator are read once, when CUDA starts. Standard library and NVML."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, UsageError
from qtui_core.live.snapshot import RunDevice
from qtui_core.memory.plan.options import Segments
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.telemetry.machine import read_machine
from qtui_core.telemetry.readings import answer, memory_of, start_nvml

_CONFIGURES: Final = "PYTORCH_ALLOC_CONF"
#: What a driver and its services hold of a GPU on which nothing computes is less than this, bytes.
_OWN_BYTES: Final = 2 << 30


class NoGpu(QtuiError):
    """There is no usable GPU, although one was requested."""

    exit_code = 4


@dataclass(frozen=True)
class Gpu:
    """A GPU that has number `index` in NVML, or a MIG slice of it. `memory` is what processes can
    have of it, `used` what they have, in bytes."""

    index: int
    uuid: str
    name: str
    memory: int | None
    used: int
    shared: bool = False


@dataclass(frozen=True)
class Placement:
    """The device of a run.

    Attributes:
        device: the device as it is reported.
        torch_device: its name in torch once the environment is set: "cpu" or "cuda:0".
        uuid: of the GPU or MIG slice, by which NVML finds it; None on a CPU.
        environment: variables to set before torch is imported.
        used_bytes: bytes of the GPU's memory that other processes use.
        shared: whether other processes compute on the GPU.
    """

    device: RunDevice
    torch_device: str
    uuid: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    used_bytes: int = 0
    shared: bool = False


@dataclass(frozen=True)
class Order:
    """What to run, and where: nothing of the plan is left open, and this machine can run it. The
    rest is as in RunRequest."""

    plan: RunPlan
    placement: Placement
    steps: int | None = None
    data: str | None = None
    text: str | None = None
    ranges: bool = False


def place(
    wanted: str,
    environ: Mapping[str, str],
    *,
    nvml: Any = None,
    torch_has_cuda: bool | None = None,
) -> Placement:
    """The device that `wanted` means (as in RunRequest.device). "auto" is the first GPU if torch
    and the driver have one, otherwise the CPU.

    CUDA is made to see only that GPU, so that "cuda" means this one in every library.

    Raises UsageError for a name that is not a device, NoGpu if there is no such GPU.
    """
    match = re.fullmatch(r"cuda(?::(\d{1,4}))?", wanted)
    if wanted not in ("auto", "cpu") and match is None:
        raise UsageError(f"{wanted!r} is no device; use auto, cpu, cuda or cuda:0.")
    able = has_cuda() if torch_has_cuda is None else torch_has_cuda
    visible: tuple[tuple[str, Gpu | None], ...] = ()
    if wanted != "cpu" and able:
        visible = _visible(gpus(nvml), environ.get("CUDA_VISIBLE_DEVICES"))
    if match is None and not visible:
        machine = read_machine()
        name = machine.processor or machine.architecture
        return Placement(RunDevice("cpu", name, None, machine.usable_memory), "cpu")
    number = int(match[1] or 0) if match else 0
    if number >= len(visible):
        why = (
            f"the driver shows {len(visible)} that CUDA_VISIBLE_DEVICES leaves, counted from cuda:0"
            if able
            else "the installed torch is built without CUDA"
        )
        what = wanted if visible else "GPU"
        raise NoGpu(f"There is no {what} to run on: {why}. Use --device cpu, or another GPU.")
    entry, gpu = visible[number]
    chosen = {"CUDA_VISIBLE_DEVICES": entry, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if gpu is None:
        return Placement(RunDevice("cuda", "a slice of a GPU"), "cuda:0", entry, chosen)
    device = RunDevice("cuda", gpu.name, gpu.index, gpu.memory)
    return Placement(device, "cuda:0", entry, chosen, gpu.used, gpu.shared)


def gpus(nvml: Any = None) -> tuple[Gpu, ...]:
    """All GPUs of the driver, in its order; none without a driver. A GPU that is divided into MIG
    slices is replaced by its slices, under its index, because CUDA runs only on these."""
    nvml = start_nvml(nvml)
    if nvml is None:
        return ()
    entries: list[Gpu | None] = []
    try:
        for index in range(answer(nvml, "nvmlDeviceGetCount") or 0):
            handle = answer(nvml, "nvmlDeviceGetHandleByIndex", index)
            mode = None if handle is None else answer(nvml, "nvmlDeviceGetMigMode", handle)
            parts = [handle]
            if mode is not None and mode[0]:
                most = answer(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
                by_number = partial(answer, nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle)
                parts = list(map(by_number, range(most)))
            entries += [_gpu(nvml, part, index) for part in parts if part is not None]
    finally:
        answer(nvml, "nvmlShutdown")
    return tuple(gpu for gpu in entries if gpu is not None)


def _gpu(nvml: Any, handle: Any, index: int) -> Gpu | None:
    """The GPU of an NVML handle; None if it has no UUID. Its memory is what processes can have,
    which CUDA reports as the total: without what the driver reserves."""
    uuid = answer(nvml, "nvmlDeviceGetUUID", handle)
    if uuid is None:
        return None
    memory, _ = memory_of(nvml, handle)
    name = answer(nvml, "nvmlDeviceGetName", handle) or "a GPU"
    total, used = 0, 0
    if memory is not None:
        total = int(memory.total) - int(getattr(memory, "reserved", 0))
        used = int(memory.used)
    processes = answer(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
    # A container hides the processes of others, and not what they hold.
    return Gpu(index, uuid, name, total or None, used, bool(processes) or used > _OWN_BYTES)


def allocator_settings(segments: Segments, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variable that makes torch's allocator use the segments of a plan. Other
    settings of the user stay, also in the older of its two names."""
    before = environ.get(_CONFIGURES) or environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    kept = [part for part in before.split(",") if part and "expandable_segments" not in part]
    return {_CONFIGURES: ",".join([*kept, f"expandable_segments:{segments == 'expandable'}"])}


def has_cuda() -> bool:
    """Whether the installed torch is built with CUDA. This is read from torch/version.py, because
    importing torch takes a second."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return False
    said = Path(spec.submodule_search_locations[0], "version.py").read_text(encoding="utf-8")
    return re.search(r"^cuda\b[^=]*=\s*['\"]", said, re.MULTILINE) is not None


def _visible(all_: Sequence[Gpu], chosen: str | None) -> tuple[tuple[str, Gpu | None], ...]:
    """(value for CUDA_VISIBLE_DEVICES, GPU) of each GPU that CUDA may see, in CUDA's order.

    The variable is read as CUDA reads it (CUDA C++ Programming Guide, environment variables): it
    contains numbers or beginnings of UUIDs, and the first invalid entry hides itself and all after
    it. The number of a GPU that is divided into MIG slices means its first slice. A slice that NVML
    does not list keeps the name that was given.
    """
    if chosen is None:
        return tuple((gpu.uuid, gpu) for gpu in all_)
    visible: list[tuple[str, Gpu | None]] = []
    for part in (part.strip() for part in chosen.split(",")):
        if part.isdecimal():
            of_it = [gpu for gpu in all_ if gpu.index == int(part)][:1]
        else:
            of_it = [gpu for gpu in all_ if len(part) > 4 and gpu.uuid.startswith(part)]
        if len(of_it) == 1:
            visible.append((of_it[0].uuid, of_it[0]))
        elif part.startswith("MIG") and all_:
            visible.append((part, None))
        else:
            break
    return tuple(visible)
