"""The receivers of a step's progress: a tracker that records it, or a run that measures it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from qtui_core.memory.replay.record import Component, Phase


class Marks(Protocol):
    """Told of phases, and of tensors that stand and what they are for."""

    @property
    def at(self) -> Phase | None:
        """The phase that has begun last."""

    def phase(self, phase: Phase) -> None:
        """A phase begins."""

    def track(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        component: Component | Callable[[str], Component],
    ) -> None:
        """Names tensors that stand."""

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Tensors on the host, where a step on a GPU has them too; they are not counted."""
