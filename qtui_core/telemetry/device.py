"""The GPUs of this machine: their names and what NVML measures of them.

NVML answers each question separately: a MIG slice has no utilisation, a chip with unified memory
has no device memory, and a container may hide a value. So each value may be None by itself. A
machine without a driver has no devices.
"""

from __future__ import annotations

from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.telemetry.nvml import answer, start_nvml, text
from qtui_core.telemetry.readings import read_all


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
    return tuple(
        GpuReading(int(each.label), each.name, each.memory_used, each.memory_total)
        for each in read_all(nvml)
        if each.label.isdecimal()
    )
