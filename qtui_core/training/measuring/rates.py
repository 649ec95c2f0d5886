"""How fast this device multiplies matrices of each type and copies memory, timed here.

On a GPU with CUDA events, which do not count the launch; on a CPU with the clock of the process.
Nothing here is warmed up longer than a few calls, so that a laptop's boost is not measured for a
server's steady rate, and no rate takes longer than about a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, Final

import torch

from qtui_core.memory.devices.rates import COPY, PRODUCT, DeviceFacts, MeasuredRate
from qtui_core.telemetry.machine import read_machine

_DTYPES: Final[dict[str, Any]] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
#: Types that are timed on a GPU, and on a CPU, where other types are computed as one of these.
_ON_CUDA: Final = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_ON_CPU: Final = ("fp32", "bf16", "fp16", "int8")
#: Seconds a rate may take, and how often one is timed at the most.
_BUDGET: Final = 0.6
_REPEATS: Final = 20
_WARM_UP: Final = 2
#: Sides of matrices. On a GPU: large enough to fill it. On a CPU: the first that takes long enough
#: for its clock, which is a small one where the CPU has no instructions for the type.
_CUDA_SIDE: Final = 8192
_CPU_SIDES: Final = (256, 512, 1024, 2048)
_LONG_ENOUGH: Final = 0.01
#: Bytes a copy reads on a GPU; on a CPU, past all caches.
_CUDA_COPY: Final = 1 << 30
_CPU_COPY: Final = 256 << 20


def facts_of(device: torch.device) -> DeviceFacts:
    """What torch knows of a device."""
    if device.type != "cuda":
        machine = read_machine()
        return DeviceFacts(
            "cpu",
            machine.processor or machine.architecture,
            total_memory=machine.memory_total,
            threads=torch.get_num_threads(),
        )
    found = torch.cuda.get_device_properties(device)
    # Later versions of torch tell more; what this one does not have is None.
    memory_khz = getattr(found, "memory_clock_rate", None)
    bus = getattr(found, "memory_bus_width", None)
    clock_khz = getattr(found, "clock_rate", None)
    registers = getattr(found, "regs_per_multiprocessor", None)
    return DeviceFacts(
        "cuda",
        found.name,
        capability=(found.major, found.minor),
        multiprocessors=found.multi_processor_count,
        total_memory=found.total_memory,
        l2=getattr(found, "L2_cache_size", None),
        shared=getattr(found, "shared_memory_per_multiprocessor", None),
        registers=4 * registers if registers else None,
        clock_mhz=clock_khz // 1000 if clock_khz else None,
        bandwidth=2 * memory_khz * 1000 * bus // 8 if memory_khz and bus else None,
    )


def measure_rates(device: torch.device) -> Iterator[MeasuredRate]:
    """A product of each dtype and a copy, reported one by one when measured."""
    for dtype in _ON_CUDA if device.type == "cuda" else _ON_CPU:
        yield measure_product(device, dtype)
    yield measure_copy(device)


def measure_product(
    device: torch.device, dtype: str, side: int | None = None, budget: float = _BUDGET
) -> MeasuredRate:
    """Operations a second of `[side, side]` times `[side, side]`.

    Where the device or this torch cannot multiply the type, the rate is None and says why.
    """
    sides = (side,) if side is not None else _sides(device)
    size, seconds = sides[0], [0.0]
    try:
        for size in sides:
            work = _product(device, dtype, size)
            seconds = time_calls(work, device, budget)
            if min(seconds) >= _LONG_ENOUGH:
                break
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return MeasuredRate(PRODUCT, dtype, size, None, why_not=_first_line(error))
    one = median(seconds)
    return MeasuredRate(PRODUCT, dtype, size, 2 * size**3 / one, one, len(seconds))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "refused without a word")[:200]


def measure_copy(
    device: torch.device, nbytes: int | None = None, budget: float = _BUDGET
) -> MeasuredRate:
    """Bytes a second that a copy within the device's memory reads and writes; None, and why,
    where there is no room for it."""
    if nbytes is None:
        nbytes = min(_CUDA_COPY, _free(device) // 4) if device.type == "cuda" else _CPU_COPY
    try:
        source = torch.ones(nbytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        seconds = time_calls(lambda: target.copy_(source), device, budget)
    except RuntimeError as error:  # no room for it, most likely
        return MeasuredRate(COPY, "bytes", nbytes, None, why_not=_first_line(error))
    one = median(seconds)
    return MeasuredRate(COPY, "bytes", nbytes, 2 * nbytes / one, one, len(seconds))


def time_calls(
    work: Callable[[], object], device: torch.device, budget: float = _BUDGET
) -> list[float]:
    """Seconds of each of some calls, as many as the budget holds; at least one."""
    for _ in range(_WARM_UP):
        work()
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < _REPEATS and (not found or time.perf_counter() - began < budget):
        found.append(_time_on_cuda(work) if device.type == "cuda" else _time(work))
    return found


def _time(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _time_on_cuda(work: Callable[[], object]) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1000


def _sides(device: torch.device) -> tuple[int, ...]:
    if device.type != "cuda":
        return _CPU_SIDES
    side = _CUDA_SIDE
    while side > 1024 and 3 * 4 * side**2 > _free(device) // 2:
        side //= 2
    return (side,)


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]


def _product(device: torch.device, dtype: str, side: int) -> Callable[[], object]:
    """A call that multiplies two matrices of a type, into memory that is already there where torch
    has a function for that."""
    if dtype == "int8":
        a, b = (
            torch.randint(-127, 127, (side, side), dtype=torch.int8, device=device)
            for _ in range(2)
        )
        if device.type == "cuda":
            b = b.t()  # by columns, the one layout of int8 that every cuBLASLt takes
        return lambda: torch._int_mm(a, b)
    a, b = (torch.randn(side, side, device=device).to(_DTYPES[dtype]) for _ in range(2))
    if dtype == "fp8":
        scale = torch.ones((), device=device)
        # The second operand by columns, which is the only layout the kernel takes.
        column = b.t().contiguous().t()
        return lambda: torch._scaled_mm(a, column, scale, scale, out_dtype=torch.bfloat16)
    out = torch.empty_like(a)
    if device.type != "cuda" or dtype not in ("fp32", "tf32"):
        return lambda: torch.mm(a, b, out=out)

    def as_asked() -> None:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        try:
            torch.mm(a, b, out=out)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return as_asked
