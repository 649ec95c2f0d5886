"""Meters, which read the memory of a run at the ends of its phases and in between.

On a GPU they are exact counts of torch's allocator, and readings of the driver. On a CPU they are
the bytes of all live tensors: each storage is counted as CUDA's allocator would, in multiples of
512 bytes, so that the result can be compared with the estimate of the same run on a GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from itertools import chain
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.live.snapshot import PhaseEnded, Sample
from qtui_core.memory.replay.record import Component, Phase, rounded
from qtui_core.memory.replay.timeline import STACK
from qtui_core.telemetry.readings import DeviceReader, DeviceReading, process_of, rss_bytes
from qtui_core.training.model.build import Built, component_of_state
from qtui_core.training.model.optimizers import optimizer_tensors, scaler_tensors
from qtui_core.training.run.placement import NoGpu, Placement
from qtui_core.training.tracing.tracker import (
    ComponentOf,
    CpuTracker,
    Ledger,
    NamedTensors,
    as_on_a_gpu,
)


@dataclass
class HeldByName:
    """What a run holds so far, by name."""

    built: Built | None = None
    optimizer: Any = None
    scaler: Any = None
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Meter:
    """Reads the memory of one device. The run adds its lasting tensors to `standing` as it creates
    them."""

    def __init__(self) -> None:
        self.standing = HeldByName()
        self._phase = ""

    def watch(self) -> AbstractContextManager[Any]:
        """A context in which operations are counted, for meters that count them."""
        return nullcontext()

    def wait(self) -> None:
        """Waits until all launched work is done."""

    def unseen(self) -> AbstractContextManager[Any]:
        """A context in which what is allocated and freed again counts in no peak."""
        return nullcontext()

    def begin(self, phase: str) -> None:
        """A phase begins; peaks are measured from here."""
        self._phase = phase

    def track(self, tensors: NamedTensors, component: ComponentOf) -> None:
        """Names tensors that stay."""

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Excludes tensors that a GPU run keeps on the host."""

    def end(self, seconds: float, step: int) -> PhaseEnded:
        """The phase is over; its figures."""
        raise NotImplementedError

    def sample(self, seconds: float, step: int, phase: str) -> Sample:
        """The state of the machine now. Called from another thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Releases open handles."""


def held(
    standing: HeldByName, device_type: str, cache: Iterable[torch.Tensor] = ()
) -> dict[str, int]:
    """The bytes on a device by component: parameters, buffers, quantization constants, gradients,
    optimizer states, inputs, and the keys and values in `cache`. Each storage counts once, rounded
    as CUDA's allocator rounds it."""
    seen: set[int] = set()
    sums: dict[str, int] = {}
    keys_and_values = ((Component.CACHE, tensor) for tensor in cache)
    for component, tensor in chain(_named(standing), keys_and_values):
        if tensor.device.type != device_type:
            continue
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage._cdata not in seen:
            seen.add(storage._cdata)
            sums[component.value] = sums.get(component.value, 0) + rounded(storage.nbytes())
    return sums


def _named(standing: HeldByName) -> Iterator[tuple[Component, torch.Tensor]]:
    built = standing.built
    if built is not None:
        of = component_of_state(built)
        for name, tensor in built.state():
            yield of(name), tensor
        for parameter in built.model.parameters():
            if parameter.grad is not None:
                yield Component.GRADIENTS, parameter.grad
        if standing.optimizer is not None:
            states = optimizer_tensors(standing.optimizer, built.model.named_parameters())
            for _, tensor in chain(states, scaler_tensors(standing.scaler)):
                yield Component.OPTIMIZER, tensor
    for tensor in standing.inputs.values():
        yield Component.INPUTS, tensor


#: Phases of a run that a recording has no name for, and the phases that they count as.
_LIKE: Final = {"import": Phase.LOAD, "quantize": Phase.LOAD, "compare": Phase.BETWEEN}


class CpuMeter(Meter):
    """Counts with a tracker what operations allocate and free."""

    def __init__(self) -> None:
        super().__init__()
        self._tracker = CpuTracker()
        self._ledger = Ledger()

    @contextmanager
    def watch(self) -> Iterator[None]:
        with as_on_a_gpu(), self._tracker:
            self._tracker.calibrate()
            yield

    def begin(self, phase: str) -> None:
        super().begin(phase)
        self._tracker.phase(_LIKE.get(phase) or Phase(phase))

    def track(self, tensors: NamedTensors, component: ComponentOf) -> None:
        self._tracker.track(tensors, component)

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tracker.leave_out(tensors)

    def end(self, seconds: float, step: int) -> PhaseEnded:
        closed = self._ledger.close(self._tracker.take())
        return PhaseEnded(
            seconds=seconds,
            step=step,
            phase=self._phase,
            peak_allocated_bytes=closed.peak,
            allocated_bytes=closed.end,
            held=_stacked(closed.held),
            peak_held=_stacked(closed.peak_held),
            process_bytes=rss_bytes(),
            counted="tensors",
        )

    def sample(self, seconds: float, step: int, phase: str) -> Sample:
        rss = rss_bytes()
        live = self._tracker.live
        return Sample(seconds, step, phase, allocated_bytes=live, process_bytes=rss, rss_bytes=rss)


def _stacked(sums: dict[Component, int]) -> dict[str, int]:
    return {part.value: sums[part] for part in STACK if sums.get(part)}


class CudaMeter(Meter):
    """Reads torch.cuda.memory_stats and NVML on torch's current device; `reader` reads the same GPU
    by NVML.

    `begin` resets torch's peak counters. Both ends of a phase wait for launched work, so that work
    counts in the phase that launched it.
    """

    def __init__(self, reader: DeviceReader) -> None:
        super().__init__()
        self._reader = reader
        self._workspaces: int | None = None
        self._cache: list[weakref.ref[torch.Tensor]] = []
        #: By level, the peak of the phase up to the last reading that was not to be seen.
        self._peaks = {"allocated": 0, "reserved": 0}
        #: Bytes of other processes, used if the driver does not identify ours: what was in use
        #: before ours started.
        self._others = reader.read().memory_used

    def wait(self) -> None:
        torch.cuda.synchronize()

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Segments that are reserved meanwhile stay, and count from then on."""
        before = torch.cuda.memory_stats()
        yield
        torch.cuda.reset_peak_memory_stats()
        for level, peak in self._peaks.items():
            self._peaks[level] = max(peak, before.get(f"{level}_bytes.all.peak", 0))

    def begin(self, phase: str) -> None:
        super().begin(phase)
        self._peaks = dict.fromkeys(self._peaks, 0)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def track(self, tensors: NamedTensors, component: ComponentOf) -> None:
        """The allocator counts all tensors, so only a cache is remembered, as long as it lives."""
        if component is Component.CACHE:
            self._cache = [ref for ref in self._cache if ref() is not None]
            self._cache += [weakref.ref(tensor) for _, tensor in tensors]

    def end(self, seconds: float, step: int) -> PhaseEnded:
        torch.cuda.synchronize()
        stats, reading = torch.cuda.memory_stats(), self._reader.read()
        allocated = stats.get("allocated_bytes.all.current", 0)
        return PhaseEnded(
            seconds=seconds,
            step=step,
            phase=self._phase,
            peak_allocated_bytes=self._peak("allocated", stats),
            allocated_bytes=allocated,
            peak_reserved_bytes=self._peak("reserved", stats),
            reserved_bytes=stats.get("reserved_bytes.all.current", 0),
            inactive_split_bytes=stats.get("inactive_split_bytes.all.current"),
            segments=stats.get("segment.all.current"),
            retries=stats.get("num_alloc_retries"),
            out_of_memory=stats.get("num_ooms"),
            held=self._held(allocated),
            process_bytes=self._process(reading, stats),
            device_used_bytes=reading.memory_used,
        )

    def sample(self, seconds: float, step: int, phase: str) -> Sample:
        stats, reading = torch.cuda.memory_stats(), self._reader.read()
        levels = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes")
        return Sample(
            seconds,
            step,
            phase,
            **{level: stats.get(f"{level}.all.current") for level in levels},
            process_bytes=self._process(reading, stats),
            device_used_bytes=reading.memory_used,
            device_free_bytes=reading.memory_free,
            rss_bytes=rss_bytes(),
            utilisation_percent=reading.gpu_percent,
            power_watts=reading.power_watts,
            temperature_celsius=reading.temperature_celsius,
            clock_mhz=reading.clock_mhz,
        )

    def close(self) -> None:
        self._reader.close()

    def _peak(self, level: str, stats: Mapping[str, int]) -> int:
        return max(self._peaks[level], stats.get(f"{level}_bytes.all.peak", 0))

    def _process(self, reading: DeviceReading, stats: Mapping[str, int]) -> int | None:
        reserved = stats.get("reserved_bytes.all.current", 0)
        return process_of(reading, reserved, self._others)[0]

    def _held(self, allocated: int) -> dict[str, int]:
        """Bytes by component. The rest belongs to no tensor of the model, the optimizer or the
        inputs. Between two steps no other tensor is left, so the rest is cuBLAS's workspaces; at
        other times it is workspaces and activations."""
        if self.standing.built is None:
            return {}
        cache = [tensor for ref in self._cache if (tensor := ref()) is not None]
        sums = held(self.standing, "cuda", cache)
        rest = max(0, allocated - sum(sums.values()))
        if self._phase == Phase.BETWEEN:
            self._workspaces = rest
        kept = min(rest, self._workspaces or 0)
        others = {Component.WORKSPACES.value: kept, Component.ACTIVATIONS.value: rest - kept}
        return sums | {name: nbytes for name, nbytes in others.items() if nbytes}


def open_meter(placement: Placement) -> Meter:
    """Opens the meter, and the device if it is a GPU.

    Raises NoGpu if the driver shows a GPU that torch cannot use.
    """
    if placement.torch_device == "cpu":
        return CpuMeter()
    meter = CudaMeter(DeviceReader(placement.device.index or 0, uuid=placement.uuid))
    try:
        start_cuda(placement.device.name, placement.torch_device)
    except NoGpu:
        meter.close()
        raise
    return meter


def start_cuda(name: str, device: str = "cuda:0") -> None:
    """Starts CUDA in torch. `name` is the driver's name of the GPU.

    Raises NoGpu if the driver shows the GPU and torch cannot use it.
    """
    try:
        torch.cuda.init()
        torch.cuda.set_device(device)
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        raise NoGpu(
            f"The driver shows {name}, and torch {torch.__version__} cannot use it: "
            f"{str(error).strip().splitlines()[0]}. Use --device cpu, or a torch that is built for "
            f"this driver."
        ) from error


def clear_workspaces() -> None:
    """Frees cuBLAS's workspaces, which its next product makes again."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
