"""The receivers of a step's progress: a tracker that records it, or a run that measures it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from qtui_core.memory.replay.record import Component, Phase


class Marks(Protocol):
    """Receives the beginning of phases, and tensors that stay with their component."""

    @property
    def at(self) -> Phase | None:
        """The phase that began last."""

    def phase(self, phase: Phase) -> None:
        """A phase begins."""

    def track(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        component: Component | Callable[[str], Component],
    ) -> None:
        """Names tensors that stay."""

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Excludes tensors that a step on a GPU keeps on the host."""
