"""The memory of a run on a GPU: exact counts of torch's allocator, and readings of the driver."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch

from qtui_core.live.snapshot import PhaseEnded, Sample
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.telemetry.readings import DeviceReader, DeviceReading, process_of, rss_bytes
from qtui_core.training.measuring.meter import HeldByName
from qtui_core.training.model.components import held

_ACTIVATIONS: Final = Component.ACTIVATIONS.value
_WORKSPACES: Final = Component.WORKSPACES.value


class CudaMeter:
    """Reads torch.cuda.memory_stats and NVML on torch's current device.

    `begin` resets torch's peak counters. Both ends of a phase wait for launched work, so that work
    counts in the phase that launched it.

    Args:
        reader: of the same GPU by NVML.
    """

    def __init__(self, reader: DeviceReader) -> None:
        self.standing = HeldByName()
        self._reader = reader
        self._phase = ""
        self._workspaces: int | None = None
        self._cache: list[weakref.ref[torch.Tensor]] = []
        #: By level, the peak of the phase up to the last reading that was not to be seen.
        self._peaks = {"allocated": 0, "reserved": 0}
        used = reader.read().memory_used
        #: Bytes of other processes, used if the driver does not identify ours: what was in use
        #: before ours started.
        self._others = used

    def watch(self) -> AbstractContextManager[Any]:
        return nullcontext()

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
        self._phase = phase
        self._peaks = dict.fromkeys(self._peaks, 0)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def track(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        component: Component | Callable[[str], Component],
    ) -> None:
        """The allocator counts all tensors, so only a cache is remembered, as long as it lives."""
        if component is Component.CACHE:
            self._cache = [ref for ref in self._cache if ref() is not None]
            self._cache += [weakref.ref(tensor) for _, tensor in tensors]

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Nothing to do: the allocator counts no tensors on the host."""

    def end(self, seconds: float, step: int) -> PhaseEnded:
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        reading = self._reader.read()
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
        stats = torch.cuda.memory_stats()
        reading = self._reader.read()
        return Sample(
            seconds,
            step,
            phase,
            allocated_bytes=stats.get("allocated_bytes.all.current"),
            reserved_bytes=stats.get("reserved_bytes.all.current"),
            active_bytes=stats.get("active_bytes.all.current"),
            inactive_split_bytes=stats.get("inactive_split_bytes.all.current"),
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
        found = held(self.standing, "cuda", cache)
        rest = max(0, allocated - sum(found.values()))
        if self._phase == Phase.BETWEEN:
            self._workspaces = rest
        kept = min(rest, self._workspaces or 0)
        if kept:
            found[_WORKSPACES] = kept
        if rest > kept:
            found[_ACTIVATIONS] = rest - kept
        return found
