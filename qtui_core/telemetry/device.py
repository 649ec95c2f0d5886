"""The GPUs of this machine: their names and what NVML measures of them.

NVML answers each question separately: a MIG slice has no utilisation, a chip with unified memory
has no device memory, and a container may hide a value. So each value may be None by itself. A
machine without a driver has no devices.
"""

from __future__ import annotations

from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.telemetry.nvml import answer, memory_of, start_nvml, text


@dataclass(frozen=True)
class GpuReading:
    """One GPU. Memory is in bytes; what is used is that of all processes on it, not only this one.
    None means that the driver does not report the value."""

    index: int
    name: str | None
    memory_used: int | None
    memory_total: int | None

    PRINTED = (
        "index",
        "name",
        ("memory_used_bytes", "memory_used"),
        ("memory_total_bytes", "memory_total"),
    )


@dataclass(frozen=True)
class Driver:
    """The driver, and the newest CUDA version that it supports, as (major, minor)."""

    version: str | None
    cuda: tuple[int, int] | None


def read_driver(nvml: Any = None) -> Driver | None:
    """The driver of the GPUs; None if there is none. `nvml` as in `read_devices`."""
    nvml = start_nvml(nvml)
    if nvml is None:
        return None
    try:
        version = answer(nvml, "nvmlSystemGetDriverVersion")
        cuda = answer(nvml, "nvmlSystemGetCudaDriverVersion")
    finally:
        nvml.nvmlShutdown()
    # NVML gives version 13.1 as 13010.
    pair = None if cuda is None else (int(cuda) // 1000, int(cuda) % 1000 // 10)
    return Driver(text(version), pair)


def read_devices(nvml: Any = None) -> tuple[GpuReading, ...]:
    """Every GPU that the driver reports, in its order; empty without a driver.

    `nvml` is the module for NVML (nvidia-ml-py, imported as `pynvml`); tests pass their own.
    """
    nvml = start_nvml(nvml)
    if nvml is None:
        return ()
    try:
        count = answer(nvml, "nvmlDeviceGetCount") or 0
        return tuple(_read_device(nvml, index) for index in range(count))
    finally:
        nvml.nvmlShutdown()


def _read_device(nvml: Any, index: int) -> GpuReading:
    handle = answer(nvml, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return GpuReading(index, None, None, None)
    name = answer(nvml, "nvmlDeviceGetName", handle)
    memory, _ = memory_of(nvml, handle)
    return GpuReading(
        index,
        text(name),
        None if memory is None else int(memory.used),
        None if memory is None else int(memory.total),
    )
