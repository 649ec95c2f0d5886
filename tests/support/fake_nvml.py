"""A replacement for pynvml in which tests choose the answer or error of every function."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class NVMLError(Exception):
    """Like pynvml's: `value` is the number in nvml.h."""

    def __init__(self, value: int = 0) -> None:
        super().__init__(value)
        self.value = value


class NVMLLibraryMismatchError(Exception):
    """What pynvml raises for a function for which the driver is too old."""


#: NVML_ERROR_NOT_SUPPORTED, _NO_PERMISSION, _GPU_IS_LOST of nvml.h.
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = NVMLError(3), NVMLError(4), NVMLError(15)


def process(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def _memory(handle: Any, version: int = 0) -> SimpleNamespace:
    """24 GiB with half a GiB reserved, which version 1 counts as used."""
    if version:
        return SimpleNamespace(
            used=3 * GIB, total=24 * GIB, free=24 * GIB - 3 * GIB - GIB // 2, reserved=GIB // 2
        )
    return SimpleNamespace(
        used=3 * GIB + GIB // 2, total=24 * GIB, free=24 * GIB - 3 * GIB - GIB // 2
    )


_ANSWERS: dict[str, Any] = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlSystemGetDriverVersion": "580.65.06",
    "nvmlSystemGetCudaDriverVersion": 13000,
    "nvmlSystemGetProcessName": lambda pid: f"program {pid}",
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
    "nvmlDeviceGetHandleByUUID": lambda uuid: f"handle {uuid}",
    "nvmlDeviceGetIndex": 0,
    "nvmlDeviceGetName": "NVIDIA L4",
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=87, memory=41),
    "nvmlDeviceGetPowerUsage": 61_250,
    "nvmlDeviceGetEnforcedPowerLimit": 72_000,
    "nvmlDeviceGetTemperature": lambda handle, sensor: 56 if sensor == 0 else 0,
    "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1890, 2: 6251}[kind],
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetMaxMigDeviceCount": 0,
    "nvmlDeviceGetComputeRunningProcesses": [process(41, 2 * GIB), process(77, GIB)],
    "nvmlDeviceGetGraphicsRunningProcesses": [],
}


def fake_nvml(**answers: Any) -> SimpleNamespace:
    """The module. An item of `answers` is returned, raised if it is an exception, or called if it
    is a function. `calls` lists the calls in order. Functions named in `missing` do not exist, as
    in an old module."""
    calls: list[str] = []

    def reply(name: str, answer: Any) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            calls.append(name)
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return function

    functions = {name: reply(name, answer) for name, answer in {**_ANSWERS, **answers}.items()}
    for name in answers.get("missing", ()):
        del functions[name]
    return SimpleNamespace(
        NVMLError=NVMLError,
        NVMLLibraryMismatchError=NVMLLibraryMismatchError,
        nvmlMemory_v2=0x02000028,
        calls=calls,
        **functions,
    )
