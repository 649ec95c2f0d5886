"""A real run without a screen, from start to end: narrated on stderr, recorded if wanted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from qtui.cli.child_run import ChildRun
from qtui.engine.run.client import WORKER, run_client
from qtui.report.train.conclusion import DOING
from qtui_core.dataclass import dataclass
from qtui_core.errors import error_of
from qtui_core.files import Target
from qtui_core.live.snapshot import Fault, LogMessage, PhaseBegun, RecordingHeader, StepTaken
from qtui_core.live.state import RunEvent, RunState, after, to_line
from qtui_core.quantities import format_bytes
from qtui_core.recorded_lines import Recorder
from qtui_core.training.run.placement import NoGpu
from qtui_core.training.run.request import NOT_BEGUN, NotBegun, RunRequest

#: At least so many seconds lie between two lines about steps.
_PAUSE: Final = 0.5


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: what is known of it, the exit code of the command, and whether Ctrl-C ended
    it."""

    state: RunState
    exit_code: int
    interrupted: bool


def run_to_end(
    request: RunRequest | Mapping[str, Any],
    record: Target | None,
    *,
    command: tuple[str, ...] = WORKER,
    debug: bool = False,
) -> RunOutcome:
    """Runs `request` (fields of qtui_core.training.run.request.RunRequest) in a child process.
    `debug` shows the last lines of the child's stderr if it fails.

    Raises QtuiError (UsageError, ModelError, NotBegun) where the run failed before its first line,
    and KeyboardInterrupt where it was interrupted before that.
    """
    return asyncio.run(_Run(request, record, command).to_end(debug))


class _Run:
    def __init__(
        self,
        request: RunRequest | Mapping[str, Any],
        record: Target | None,
        command: tuple[str, ...],
    ) -> None:
        self._request = request
        self._client = run_client(command)
        self._run = ChildRun[RunEvent](
            self._client.child, None if record is None else Recorder(record, to_line)
        )
        self._state = RunState()
        self._said = 0.0

    async def to_end(self, debug: bool) -> RunOutcome:
        await self._run.follow(
            self._client.run(self._request),
            self._hear,
            lambda: self._state.status == "failed",
            debug=debug,
        )
        code = self._run.exit_code(self._state.status == "done")
        if self._state.header is None:
            if self._run.interrupted:
                raise KeyboardInterrupt
            fault = self._state.fault
            sentence = "The run reported nothing." if fault is None else fault.text
            if fault is not None and fault.kind == NOT_BEGUN:
                raise NotBegun(f"{sentence} --yes runs it all the same.")
            raise error_of(sentence, code, NoGpu)
        return RunOutcome(self._state, code, self._run.interrupted)

    def _hear(self, event: RunEvent) -> bool:
        """A recording begins with the header."""
        self._state = after(self._state, event)
        self._narrate(event)
        return self._state.header is not None

    def _narrate(self, event: RunEvent) -> None:
        """Writes lines to stderr: what is prepared, the steps (at most two a second), and what the
        run says."""
        if isinstance(event, RecordingHeader):
            if event.predicted is not None and event.predicted.warning:
                self._run.say_once(event.predicted.warning)
        elif isinstance(event, PhaseBegun) and event.step == 0:
            if event.phase in DOING:
                self._run.say_once(DOING[event.phase])
        elif isinstance(event, StepTaken):
            now = time.monotonic()
            steps = self._state.header.steps if self._state.header is not None else None
            if now - self._said >= _PAUSE or event.step in (1, steps):
                self._said = now
                self._run.say(self._step(event, steps))
        elif isinstance(event, Fault | LogMessage) and self._state.header is not None:
            self._run.say_once(event.text)

    def _step(self, event: StepTaken, steps: int | None) -> str:
        words = [f"step {event.step:,}" + ("" if steps is None else f" of {steps:,}")]
        if event.loss is not None:
            words.append(f"loss {event.loss:.4g}")
        words.append(f"{event.step_seconds:.3g} s")
        peaks = [phase.most.peak_allocated_bytes for phase in self._state.phases]
        if peaks:
            words.append(f"peak {format_bytes(max(peaks))}")
        return ", ".join(words)
