"""What NVML, the driver's own library, reports of the GPUs of this machine and of their driver at a
moment, and the resident memory of a process. A machine without a driver has no GPUs.

Each value may be None by itself: a MIG slice has no utilisation, a chip with unified memory has no
memory of its own, a container hides processes, and WSL and WDDM do not report the memory of a
process. Units are in the names; numbers without one are bytes. `nvml` is always the Python module
(nvidia-ml-py, imported as `pynvml`) or, in tests, an object with the same functions.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Final, Self

from qtui_core.dataclass import dataclass

#: NVML_ERROR_NOT_SUPPORTED and NVML_ERROR_GPU_IS_LOST of nvml.h.
NOT_SUPPORTED: Final = 3
GPU_IS_LOST: Final = 15
#: Constants of nvml.h: nvmlClockType_t and nvmlTemperatureSensors_t.
_CLOCK_SM, _CLOCK_MEMORY, _SENSOR_GPU = 1, 2, 0
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
        gpu_percent: share of the last sampling period in which a kernel ran; memory_percent: in
            which memory was read or written.
        clock_mhz: of the multiprocessors; memory_clock_mhz: of the memory.
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
    memory_percent: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    clock_mhz: int | None = None
    clock_limit_mhz: int | None = None
    memory_clock_mhz: int | None = None
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
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
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
        if self._nvml is not None:
            if uuid is None:
                self._handle = answer(self._nvml, "nvmlDeviceGetHandleByIndex", index)
                return
            known = uuid.startswith(("GPU-", "MIG-"))
            for name in (uuid,) if known else (f"GPU-{uuid}", f"MIG-{uuid}"):
                self._handle = answer(self._nvml, "nvmlDeviceGetHandleByUUID", name)
                if self._handle is not None:
                    break
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
    memory, error = memory_of(nvml, handle)
    unified = None if memory is None and error != NOT_SUPPORTED else not (memory and memory.total)
    memories: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
    if memory is not None and not unified:
        reserved = getattr(memory, "reserved", None)
        memories = int(memory.used), int(memory.free), int(memory.total), _whole(reserved)
    processes = _processes(nvml, handle)
    own, basis = (None, "") if pid is None else _own_memory(processes, pid)
    rates = answer(nvml, "nvmlDeviceGetUtilizationRates", handle)
    mode = answer(nvml, "nvmlDeviceGetMigMode", handle)
    return DeviceReading(
        label,
        answer(nvml, "nvmlDeviceGetName", handle),
        *memories,
        process_memory=own,
        process_basis=basis,
        gpu_percent=None if rates is None else int(rates.gpu),
        memory_percent=None if rates is None else int(rates.memory),
        power_watts=_thousandths(answer(nvml, "nvmlDeviceGetPowerUsage", handle)),
        power_limit_watts=_thousandths(answer(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)),
        temperature_celsius=answer(nvml, "nvmlDeviceGetTemperature", handle, _SENSOR_GPU),
        clock_mhz=answer(nvml, "nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
        clock_limit_mhz=answer(nvml, "nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM),
        memory_clock_mhz=answer(nvml, "nvmlDeviceGetClockInfo", handle, _CLOCK_MEMORY),
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
            reading = ProcessReading(int(row.pid), kind, name, _whole(row.usedGpuMemory))
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


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _thousandths(value: int | None) -> float | None:
    return None if value is None else value / 1000


def rss_bytes(root: Path = Path("/")) -> int | None:
    """Resident memory of this process in bytes: the second number of /proc/self/statm, in pages
    (proc_pid_statm(5)); None on systems without that file. Tests replace `root`."""
    try:
        fields = (root / "proc/self/statm").read_text(encoding="ascii").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
