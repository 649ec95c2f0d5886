"""The memory of a run on a CPU: bytes of all live tensors, in place of an allocator's.

Each storage is counted as CUDA's allocator would, in multiples of 512 bytes, so that the result can
be compared with the estimate of the same run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from qtui_core.live.snapshot import PhaseEnded, Sample
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.replay.timeline import STACK
from qtui_core.telemetry.readings import rss_bytes
from qtui_core.training.measuring.meter import HeldByName
from qtui_core.training.tracing.cpu_tracker import CpuTracker, as_on_a_gpu
from qtui_core.training.tracing.ledger import Ledger

#: Phases of a run that a recording has no name for, and the phases that they count as.
_LIKE: Final = {"import": Phase.LOAD, "quantize": Phase.LOAD, "compare": Phase.BETWEEN}


class CpuMeter:
    """Counts with a tracker what operations allocate and free."""

    def __init__(self) -> None:
        self.standing = HeldByName()
        self._tracker = CpuTracker()
        self._ledger = Ledger()
        self._phase = ""

    @contextmanager
    def watch(self) -> Iterator[None]:
        with as_on_a_gpu(), self._tracker:
            self._tracker.calibrate()
            yield

    def wait(self) -> None:
        """Operations on a CPU are over when they return."""

    def begin(self, phase: str) -> None:
        self._phase = phase
        self._tracker.phase(_LIKE.get(phase) or Phase(phase))

    def track(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        component: Component | Callable[[str], Component],
    ) -> None:
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
        return Sample(
            seconds,
            step,
            phase,
            allocated_bytes=self._tracker.live,
            process_bytes=rss,
            rss_bytes=rss,
        )

    def close(self) -> None:
        """There is nothing to release."""


def _stacked(found: dict[Component, int]) -> dict[str, int]:
    return {part.value: found[part] for part in STACK if found.get(part)}
