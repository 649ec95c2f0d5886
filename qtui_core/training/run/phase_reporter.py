"""Reports the phases of a run as they begin and end, with readings of memory and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from qtui_core.live.snapshot import LogMessage, PhaseBegun, Snapshot
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.training.measuring.meters import Meter
from qtui_core.training.run.controls import Controls

Tell = Callable[[Snapshot], None]

_OF_A_STEP: Final = frozenset(Phase)


class PhaseReporter:
    """How far a run has come. Reports its phases, with the meter's readings at their ends.

    Args:
        tell: receives the reports.
        controls: the commands to the run.
        began: `time.perf_counter()` at the beginning of the run.
    """

    meter: Meter

    def __init__(self, tell: Tell, controls: Controls, began: float) -> None:
        self.tell = tell
        self.controls = controls
        self.step = 0
        self.name = ""
        self._began = began
        self._step_of_phase = 0
        #: Seconds that were spent on reading meters and on reporting; they are not part of a step.
        self.metering = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    @property
    def working(self) -> float:
        """Seconds since the run began, without those spent on reading meters and on reporting."""
        return self.seconds - self.metering

    @property
    def at(self) -> Phase | None:
        return Phase(self.name) if self.name in _OF_A_STEP else None

    def phase(self, phase: str, *, begun: bool = False) -> None:
        """Ends the current phase and begins the next. `begun`: its beginning was reported already.

        Raises Stopped if the run should stop.
        """
        self.finish()
        self.controls.check()
        began = time.perf_counter()
        self.name, self._step_of_phase = phase, self.step
        self.meter.begin(phase)
        if not begun:
            self.tell(PhaseBegun(self.seconds, self.step, str(phase)))
        self.metering += time.perf_counter() - began

    def finish(self) -> dict[str, int]:
        """Ends the current phase, if there is one. Returns the bytes that it held at its end, by
        component."""
        if not self.name:
            return {}
        self.meter.wait()
        over = time.perf_counter()
        ended = self.meter.end(self.seconds, self._step_of_phase)
        self.name = ""
        self.tell(ended)
        self.metering += time.perf_counter() - over
        return dict(ended.held)

    def track(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        component: Component | Callable[[str], Component],
    ) -> None:
        began = time.perf_counter()
        self.meter.track(tensors, component)
        self.metering += time.perf_counter() - began

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context for work on the device that is no part of the step: neither its seconds nor
        its memory count."""
        self.meter.wait()
        began = time.perf_counter()
        with self.meter.unseen():
            yield
        self.metering += time.perf_counter() - began

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        self.meter.leave_out(tensors)

    def say(self, text: str) -> None:
        """Reports a line for the log."""
        self.tell(LogMessage(self.seconds, text))
