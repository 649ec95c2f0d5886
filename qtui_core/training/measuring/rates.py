"""How fast this device multiplies matrices of each dtype and copies memory, measured here; and what
`calibrate` measures on a GPU.

A GPU is timed with CUDA events, which exclude the launch; a CPU with the clock of the process. The
warm-up is only a few calls, and each rate takes about a second at most. So a device that slows down
under a long load is measured at the speed at which it begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, Final

import torch

from qtui_core.roofline.rates import COPY, PRODUCT, DeviceFacts, MeasuredRate
from qtui_core.telemetry.machine import read_machine
from qtui_core.telemetry.readings import DeviceReader, process_of
from qtui_core.training.measuring.calibration import PROBES, Found
from qtui_core.training.measuring.meters import clear_workspaces, start_cuda

_DTYPES: Final[dict[str, Any]] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
#: Dtypes that are timed on a GPU and on a CPU; other dtypes are computed as one of these.
_ON_CUDA: Final = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_ON_CPU: Final = ("fp32", "bf16", "fp16", "int8")
#: The most seconds and the most calls for one rate.
_BUDGET: Final = 0.6
_REPEATS: Final = 20
_WARM_UP: Final = 2
#: Sides of the matrices. On a GPU they fill it; on a CPU the first is used whose product takes long
#: enough for the clock.
_CUDA_SIDE: Final = 8192
_CPU_SIDES: Final = (256, 512, 1024, 2048)
_LONG_ENOUGH: Final = 0.01
#: Bytes that a copy reads on a GPU, and on a CPU, where they exceed all caches.
_CUDA_COPY: Final = 1 << 30
_CPU_COPY: Final = 256 << 20


def facts_of(device: torch.device) -> DeviceFacts:
    """The properties of a device that torch reports."""
    if device.type != "cuda":
        machine = read_machine()
        return DeviceFacts(
            "cpu",
            machine.processor or machine.architecture,
            total_memory=machine.memory_total,
            threads=torch.get_num_threads(),
        )
    properties = torch.cuda.get_device_properties(device)
    return DeviceFacts(
        "cuda",
        properties.name,
        capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        total_memory=properties.total_memory,
        l2=properties.L2_cache_size,
        shared=properties.shared_memory_per_multiprocessor,
        registers=4 * properties.regs_per_multiprocessor,  # type: ignore[attr-defined]
        clock_mhz=properties.clock_rate // 1000,
        bandwidth=2 * properties.memory_clock_rate * 1000 * properties.memory_bus_width // 8,
    )


def measure_rates(device: torch.device) -> Iterator[MeasuredRate]:
    """The rates of a product of each dtype and of a copy, each as soon as it is measured."""
    for dtype in _ON_CUDA if device.type == "cuda" else _ON_CPU:
        yield measure_product(device, dtype)
    yield measure_copy(device)


def measure_product(
    device: torch.device, dtype: str, side: int | None = None, budget: float = _BUDGET
) -> MeasuredRate:
    """The operations per second of `[side, side]` times `[side, side]`.

    If the device or this torch cannot multiply the dtype, the rate is None and the reason is given.
    """
    size, seconds = 0, [0.0]
    try:
        for size in _sides(device) if side is None else (side,):
            seconds = time_calls(_product(device, dtype, size), device, budget)
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
    """The bytes per second that a copy within the device's memory reads and writes; None and the
    reason if there is no room for it."""
    if nbytes is None:
        nbytes = min(_CUDA_COPY, _free(device) // 4) if device.type == "cuda" else _CPU_COPY
    try:
        source = torch.ones(nbytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        seconds = time_calls(lambda: target.copy_(source), device, budget)
    except RuntimeError as error:  # most likely out of memory
        return MeasuredRate(COPY, "bytes", nbytes, None, why_not=_first_line(error))
    one = median(seconds)
    return MeasuredRate(COPY, "bytes", nbytes, 2 * nbytes / one, one, len(seconds))


def time_calls(
    work: Callable[[], object], device: torch.device, budget: float = _BUDGET
) -> list[float]:
    """The seconds of each of several calls: as many as fit into the budget, at least one."""
    for _ in range(_WARM_UP):
        work()
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < _REPEATS and (not seconds or time.perf_counter() - began < budget):
        seconds.append(_time_on_cuda(work) if device.type == "cuda" else seconds_of(work))
    return seconds


def seconds_of(work: Callable[[], object]) -> float:
    """The seconds of a call, by the clock of this process."""
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
    """A call that multiplies two matrices of a dtype, into existing memory if torch has a function
    for that."""
    size, on_gpu = (side, side), device.type == "cuda"
    if dtype == "int8":
        a, b = (torch.randint(-127, 127, size, dtype=torch.int8, device=device) for _ in range(2))
        right = b.t() if on_gpu else b  # by columns, the only int8 layout of every cuBLASLt
        return lambda: torch._int_mm(a, right)
    a, b = (torch.randn(size, device=device).to(_DTYPES[dtype]) for _ in range(2))
    if dtype == "fp8":
        scale = torch.ones((), device=device)
        # The second operand by columns, which is the only layout the kernel takes.
        column = b.t().contiguous().t()
        return lambda: torch._scaled_mm(a, column, scale, scale, out_dtype=torch.bfloat16)
    out = torch.empty_like(a)

    def multiply() -> None:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        try:
            torch.mm(a, b, out=out)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    plain = not on_gpu or dtype not in ("fp32", "tf32")
    return (lambda: torch.mm(a, b, out=out)) if plain else multiply


#: Rows of the matrices that are multiplied, large enough that cuBLAS allocates its workspace.
_PRODUCT_ROWS: Final = 1024


class CudaMachine:
    """The current CUDA device of torch, as `calibrate` uses it: bytes. `reader` reads the same GPU
    through NVML. What is in use before CUDA starts belongs to other processes."""

    def __init__(self, reader: DeviceReader) -> None:
        self._reader = reader
        before = reader.read()
        self._others = before.memory_used
        self._name = before.name or "a GPU"

    def process(self) -> tuple[int | None, str]:
        """The bytes of this process according to the driver, and how they were identified."""
        torch.cuda.synchronize()
        return process_of(self._reader.read(), self.reserved(), self._others)

    def allocated(self) -> int:
        return torch.cuda.memory_allocated()

    def reserved(self) -> int:
        return torch.cuda.memory_reserved()

    def start(self) -> None:
        """Creates the context with a first tensor and frees that."""
        start_cuda(self._name)
        torch.zeros(1, device="cuda")

    def multiply(self, *, backward: bool) -> None:
        """A 16-bit product, with `backward` also its backward pass in autograd's thread. Its
        tensors are freed."""
        how: Any = {"device": "cuda", "dtype": torch.float16, "requires_grad": backward}
        a, b = (torch.randn(_PRODUCT_ROWS, _PRODUCT_ROWS, **how) for _ in range(2))
        result = a @ b
        if backward:
            result.sum().backward()
        torch.cuda.synchronize()

    def clear_workspaces(self) -> None:
        clear_workspaces()

    def hold(self, nbytes: int) -> Any:
        """A tensor of that many bytes, which lives as long as the returned object."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def empty(self) -> None:
        """Returns unused segments to the driver."""
        torch.cuda.empty_cache()

    def settings(self) -> dict[str, Any]:
        """The settings of the allocator."""
        settings = torch.cuda.memory._snapshot().get("allocator_settings", {})
        return {str(k): v for k, v in settings.items() if isinstance(v, int | float | str | None)}


def calibrate(machine: CudaMachine) -> Found:
    """Measures in a process that has not used the GPU before."""

    def context() -> tuple[int | None, str]:
        process, basis = machine.process()
        return (None if process is None else max(0, process - machine.reserved())), basis

    def workspaces() -> int:
        """The bytes that clearing the workspaces frees."""
        before = machine.allocated()
        machine.clear_workspaces()
        return before - machine.allocated()

    machine.start()
    first, _ = context()
    machine.multiply(backward=False)
    forward = workspaces()
    machine.multiply(backward=True)
    training = workspaces()
    machine.multiply(backward=True)  # the kernels stay loaded; the workspaces are allocated again
    products, basis = context()
    segments = {}
    for nbytes in PROBES:
        machine.clear_workspaces()
        machine.empty()
        before = machine.reserved()
        held = machine.hold(nbytes)
        segments[str(nbytes)] = machine.reserved() - before
        del held
    return Found(first, products, basis, forward, training, segments, machine.settings())
