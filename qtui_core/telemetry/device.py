"""The GPUs of this machine, as NVML names and measures them.

NVML answers each question on its own: a MIG slice reports no utilisation, a chip with unified
memory reports no device memory, a container may hide a value. So every value may be None by
itself, and a machine without a driver simply has no devices.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Device:
    """One GPU. Memory is in bytes and covers every process on it, not only this one; None
    means that the driver does not say."""

    index: int
    name: str | None
    memory_used: int | None
    memory_total: int | None


@dataclass(frozen=True)
class Driver:
    """The driver, and the newest CUDA that it serves as (major, minor)."""

    version: str | None
    cuda: tuple[int, int] | None


def read_driver(nvml: Any = None) -> Driver | None:
    """The driver of the GPUs, None where there is none. `nvml` as in `read_devices`."""
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        version = _answer(nvml, nvml.nvmlSystemGetDriverVersion)
        cuda = _answer(nvml, nvml.nvmlSystemGetCudaDriverVersion)
    finally:
        nvml.nvmlShutdown()
    # NVML packs 13.1 as 13010.
    pair = None if cuda is None else (int(cuda) // 1000, int(cuda) % 1000 // 10)
    return Driver(version.decode() if isinstance(version, bytes) else version, pair)


def read_devices(nvml: Any = None) -> tuple[Device, ...]:
    """Every GPU the driver shows, in its order; empty without a driver.

    `nvml` is the module that speaks NVML (nvidia-ml-py, imported as `pynvml`), given by tests.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        count = _answer(nvml, nvml.nvmlDeviceGetCount) or 0
        return tuple(_read_device(nvml, index) for index in range(count))
    finally:
        nvml.nvmlShutdown()


def _read_device(nvml: Any, index: int) -> Device:
    handle = _answer(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return Device(index, None, None, None)
    name = _answer(nvml, nvml.nvmlDeviceGetName, handle)
    memory = _answer(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return Device(
        index,
        name.decode() if isinstance(name, bytes) else name,
        None if memory is None else int(memory.used),
        None if memory is None else int(memory.total),
    )


def _answer(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """NVML's answer, or None where it has none."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None
