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
    """Reads the memory of one device. The run puts what it holds into `standing` as it makes it."""

    standing: HeldByName

    def watch(self) -> AbstractContextManager[Any]:
        """A context in which operations are counted, for meters that have to."""

    def wait(self) -> None:
        """Until all that was launched is done."""

    def begin(self, phase: str) -> None:
        """A phase begins: peaks count from here."""

    def track(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        component: Component | Callable[[str], Component],
    ) -> None:
        """Names tensors that stand."""

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Does not count tensors that are on the host beside a GPU."""

    def end(self, seconds: float, step: int) -> PhaseEnded:
        """The phase is over."""

    def sample(self, seconds: float, step: int, phase: str) -> Sample:
        """The machine now; called from another thread."""

    def close(self) -> None:
        """Releases open handles."""
