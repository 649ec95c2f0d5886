"""What NVML, the driver's own library, reports of the GPUs of this machine and of their driver at a
moment, the resident memory of a process, and sampling. A machine without a driver has no GPUs.

Each value may be None by itself: a MIG slice has no utilisation, a chip with unified memory has no
memory of its own, a container hides processes, and WSL and WDDM do not report the memory of a
process. Units are in the names; numbers without one are bytes. `nvml` is always the Python module
(nvidia-ml-py, imported as `pynvml`) or, in tests, an object with the same functions.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, Self, TypeVar

from qtui_core.dataclass import dataclass

#: NVML_ERROR_NOT_SUPPORTED and NVML_ERROR_GPU_IS_LOST of nvml.h.
NOT_SUPPORTED: Final = 3
GPU_IS_LOST: Final = 15
#: Constants of nvml.h: nvmlClockType_t and nvmlTemperatureSensors_t.
_CLOCK_SM, _SENSOR_GPU = 1, 0
#: Seconds between two samples of a step: twenty a second.
INTERVAL: Final = 0.05
#: Seconds that the end of a block waits for a reading that hangs, as with a driver that was lost.
_PATIENCE: Final = 2.0

Reading = TypeVar("Reading")
#: How the memory of the process was distinguished from that of others.
BY_PID: Final = "this process"
BY_BEING_ALONE: Final = "the only process"


@dataclass(frozen=True)
class ProcessReading:
    """A process on a GPU. `pid` is its number on the host, also in a container; `kind` is "compute"
    or "graphics"; most containers hide `name`."""

    pid: int
    kind: str
    name: str | None
    memory: int | None


@dataclass(frozen=True)
class DeviceReading:
    """One GPU, or a MIG slice of one, at a moment.

    Attributes:
        label: its number in NVML, "0", or "0:1" for a MIG slice.
        memory_used, memory_free, memory_total: of all processes together.
        memory_reserved: what the driver and the firmware keep, which belongs to no process. It is
            not part of `memory_used`.
        process_memory: of the process that the reader was given; `process_basis` says how it is
            known.
        gpu_percent: share of the last sampling period in which a kernel ran.
        clock_mhz: of the multiprocessors.
        processes: None if the driver does not list them.
        mig: whether it is divided into MIG slices.
        unified: whether it shares the memory of the machine and has none of its own.
        lost: whether the driver no longer reaches it.
    """

    label: str
    name: str | None = None
    memory_used: int | None = None
    memory_free: int | None = None
    memory_total: int | None = None
    memory_reserved: int | None = None
    process_memory: int | None = None
    process_basis: str = ""
    gpu_percent: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    clock_mhz: int | None = None
    processes: tuple[ProcessReading, ...] | None = None
    mig: bool | None = None
    unified: bool | None = None
    lost: bool = False

    PRINTED = (("index", lambda reading: int(reading.label)), "name",
               ("memory_used_bytes", "memory_used"),
               ("memory_total_bytes", "memory_total"))  # fmt: skip


def start_nvml(nvml: Any = None) -> Any:
    """The module, initialised; None without a driver. The caller must call `nvmlShutdown`.

    NVML counts initialisations: each needs a shutdown of its own.
    """
    nvml = nvml or importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def answer(nvml: Any, question: str, *arguments: Any) -> Any:
    """NVML's answer; None if this driver or device does not know the question or does not answer it
    for this user."""
    return answer_or_error(nvml, question, *arguments)[0]


def answer_or_error(nvml: Any, question: str, *arguments: Any) -> tuple[Any, int | None]:
    """NVML's answer and None; or None and the number of NVML's error (0 if it gave no number). A
    function that is missing from this version of the module or driver counts as NOT_SUPPORTED, as
    does a name that is not UTF-8."""
    mismatch = getattr(nvml, "NVMLLibraryMismatchError", AttributeError)
    try:
        return getattr(nvml, question)(*arguments), None
    except nvml.NVMLError as error:
        return None, int(getattr(error, "value", 0) or 0)
    except (AttributeError, UnicodeDecodeError, mismatch):
        return None, NOT_SUPPORTED


def memory_of(nvml: Any, handle: Any) -> tuple[Any, int | None]:
    """NVML's answer about memory, or its error. Version 2 of the question separates what the driver
    and the firmware reserve from used memory, as nvidia-smi does; on an H200 that is 615 MiB in
    which no process can be."""
    return answer_or_error(nvml, "nvmlDeviceGetMemoryInfo", handle, nvml.nvmlMemory_v2)


class DeviceReader:
    """Reads one GPU repeatedly and keeps NVML open between the readings. Use it as a context
    manager, or `close` it. On a machine without a driver every value of a reading is None.

    Args:
        index: the number of the GPU in NVML, which ignores CUDA_VISIBLE_DEVICES.
        uuid: of the GPU or MIG slice, instead of the index:
            torch.cuda.get_device_properties(i).uuid, with or without "GPU-" or "MIG-".
        pid: the process on the device whose memory is read separately; by default this one.
    """

    def __init__(
        self, index: int = 0, *, uuid: str | None = None, pid: int | None = None, nvml: Any = None
    ) -> None:
        self._nvml = start_nvml(nvml)
        self._pid = os.getpid() if pid is None else pid
        self.label = str(index)
        self._handle: Any = None
        if self._nvml is None:
            return
        if uuid is None:
            self._handle = answer(self._nvml, "nvmlDeviceGetHandleByIndex", index)
            return
        for name in (uuid, f"GPU-{uuid}", f"MIG-{uuid}"):
            if self._handle is None:
                self._handle = answer(self._nvml, "nvmlDeviceGetHandleByUUID", name)
        number = answer(self._nvml, "nvmlDeviceGetIndex", self._handle)
        self.label = self.label if number is None else str(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases NVML. Later readings have only None."""
        if self._nvml is not None:
            answer(self._nvml, "nvmlShutdown")
        self._nvml = self._handle = None

    def read(self) -> DeviceReading:
        """The state of the device now."""
        if self._handle is None:
            return DeviceReading(self.label)
        return _read_handle(self._nvml, self._handle, self.label, self._pid)


def read_all(nvml: Any = None) -> tuple[DeviceReading, ...]:
    """Every GPU at this moment, each followed by its MIG slices; empty without a driver.

    No process memory is read: this process need not use any of the GPUs. `nvml` is the module for
    NVML (nvidia-ml-py, imported as `pynvml`); tests pass their own.
    """
    nvml = start_nvml(nvml)
    if nvml is None:
        return ()
    readings = []
    try:
        for index in range(answer(nvml, "nvmlDeviceGetCount") or 0):
            handle, error = answer_or_error(nvml, "nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                readings.append(DeviceReading(str(index), lost=error == GPU_IS_LOST))
                continue
            readings.append(_read_handle(nvml, handle, str(index)))
            most = answer(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) if readings[-1].mig else 0
            for number in range(most or 0):  # the most slices that are possible
                part = answer(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
                if part is not None:
                    readings.append(_read_handle(nvml, part, f"{index}:{number}"))
    finally:
        answer(nvml, "nvmlShutdown")
    return tuple(readings)


def read_devices(nvml: Any = None) -> tuple[DeviceReading, ...]:
    """Every GPU that the driver reports, in its order, without MIG slices."""
    return tuple(reading for reading in read_all(nvml) if reading.label.isdecimal())


@dataclass(frozen=True)
class Driver:
    """The driver, and the newest CUDA version that it supports, as (major, minor)."""

    version: str | None
    cuda: tuple[int, int] | None


def read_driver(nvml: Any = None) -> Driver | None:
    """The driver of the GPUs; None if there is none."""
    nvml = start_nvml(nvml)
    if nvml is None:
        return None
    version = answer(nvml, "nvmlSystemGetDriverVersion")
    cuda = answer(nvml, "nvmlSystemGetCudaDriverVersion")
    answer(nvml, "nvmlShutdown")
    # NVML gives version 13.1 as 13010.
    pair = None if cuda is None else (int(cuda) // 1000, int(cuda) % 1000 // 10)
    return Driver(version, pair)


def _read_handle(nvml: Any, handle: Any, label: str, pid: int | None = None) -> DeviceReading:
    """The state of the device with this NVML handle; NVML must be open. `pid` is a process known to
    be on the device, whose memory is read separately."""

    def ask(question: str, *more: int) -> Any:
        return answer(nvml, f"nvmlDeviceGet{question}", handle, *more)

    memory, error = memory_of(nvml, handle)
    unified = None if memory is None and error != NOT_SUPPORTED else not (memory and memory.total)
    held = None if unified else memory
    processes = _processes(nvml, handle)
    own, basis = (None, "") if pid is None else _own_memory(processes, pid)
    rates, mode = ask("UtilizationRates"), ask("MigMode")
    milliwatts, most = ask("PowerUsage"), ask("EnforcedPowerLimit")
    return DeviceReading(
        label,
        ask("Name"),
        memory_used=getattr(held, "used", None),
        memory_free=getattr(held, "free", None),
        memory_total=getattr(held, "total", None),
        memory_reserved=getattr(held, "reserved", None),
        process_memory=own,
        process_basis=basis,
        gpu_percent=None if rates is None else rates.gpu,
        power_watts=None if milliwatts is None else milliwatts / 1000,
        power_limit_watts=None if most is None else most / 1000,
        temperature_celsius=ask("Temperature", _SENSOR_GPU),
        clock_mhz=ask("ClockInfo", _CLOCK_SM),
        processes=processes,
        mig=None if mode is None else bool(mode[0]),
        unified=unified,
        lost=error == GPU_IS_LOST,
    )


def _processes(nvml: Any, handle: Any) -> tuple[ProcessReading, ...] | None:
    """The compute and the graphics processes; one that is both counts as compute."""
    processes: dict[int, ProcessReading] = {}
    listed = False
    for kind in ("compute", "graphics"):
        rows = answer(nvml, f"nvmlDeviceGet{kind.capitalize()}RunningProcesses", handle)
        listed = listed or rows is not None
        for row in rows or ():
            name = answer(nvml, "nvmlSystemGetProcessName", row.pid)
            reading = ProcessReading(int(row.pid), kind, name, row.usedGpuMemory)
            processes.setdefault(reading.pid, reading)
    return tuple(processes.values()) if listed else None


def _own_memory(processes: tuple[ProcessReading, ...] | None, pid: int) -> tuple[int | None, str]:
    """The bytes of process `pid`, which is on the device, and how they are known; (None, "") if
    they are not.

    NVML gives the host's process numbers, which are different ones inside a container. So if no
    number matches, the only compute process on the device is taken to be this one.
    """
    own = [process.memory for process in processes or () if process.pid == pid]
    alone = [process.memory for process in processes or () if process.kind == "compute"]
    if own:
        return own[0], "" if own[0] is None else BY_PID
    return (alone[0], BY_BEING_ALONE) if len(alone) == 1 and alone[0] is not None else (None, "")


def process_of(reading: DeviceReading, reserved: int, others: int | None) -> tuple[int | None, str]:
    """The bytes of this process, which reserved so many, and how they are known: as NVML reports
    them, else what is in use beyond `others`, in use before it started. A process that uses less
    than it reserved is another: in a container, its number on the host may equal ours."""
    own = reading.process_memory
    if own is not None and own >= reserved:
        return own, reading.process_basis
    if reading.memory_used is None or others is None:
        return None, ""
    return max(0, reading.memory_used - others), "more in use than before"


def rss_bytes(root: Path = Path("/")) -> int | None:
    """Resident memory of this process in bytes: the second number of /proc/self/statm, in pages
    (proc_pid_statm(5)); None on systems without that file. Tests replace `root`."""
    try:
        fields = (root / "proc/self/statm").read_text(encoding="ascii").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


@contextmanager
def sampling(
    interval: float, read: Callable[[], Reading], report: Callable[[Reading], object]
) -> Iterator[None]:
    """Calls `report(read())` every `interval` seconds in a daemon thread while its block runs.

    A reading that takes longer than the interval delays the next one; missed readings are not made
    up for. The first reading is made at once, and none is reported after the block. What `read` or
    `report` raises ends the sampling and is raised at the end of the block, unless the block itself
    raised.
    """
    over = Event()
    errors: list[BaseException] = []

    def run() -> None:
        due = time.monotonic()
        try:
            while not over.wait(due - time.monotonic()):
                reading = read()
                if over.is_set():
                    return
                report(reading)
                due = max(due + interval, time.monotonic())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run, name="sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_PATIENCE)
    if errors:
        raise errors[0]
