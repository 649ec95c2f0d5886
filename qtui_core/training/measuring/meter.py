"""The interface of meters, which read the memory of a run at the ends of its phases and in
between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, Protocol

import torch

from qtui_core.dataclass import dataclass
from qtui_core.live.snapshot import PhaseEnded, Sample
from qtui_core.memory.replay.record import Component
from qtui_core.training.model.build import Built


@dataclass
class HeldByName:
    """What a run holds so far, by name."""

    built: Built | None = None
    optimizer: Any = None
    scaler: Any = None
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Meter(Protocol):
    """Reads the memory of one device. The run adds its lasting tensors to `standing` as it creates
    them."""

    standing: HeldByName

    def watch(self) -> AbstractContextManager[Any]:
        """A context in which operations are counted, for meters that count them."""

    def wait(self) -> None:
        """Waits until all launched work is done."""

    def unseen(self) -> AbstractContextManager[Any]:
        """A context in which what is allocated and freed again counts in no peak."""

    def begin(self, phase: str) -> None:
        """A phase begins; peaks are measured from here."""

    def track(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        component: Component | Callable[[str], Component],
    ) -> None:
        """Names tensors that stay."""

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Excludes tensors that a GPU run keeps on the host."""

    def end(self, seconds: float, step: int) -> PhaseEnded:
        """The phase is over; its figures."""

    def sample(self, seconds: float, step: int, phase: str) -> Sample:
        """The state of the machine now. Called from another thread."""

    def close(self) -> None:
        """Releases open handles."""
