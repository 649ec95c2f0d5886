"""A real run without a screen, from start to end: narrated on stderr, recorded if wanted."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from qtui.cli.exits import Narrator
from qtui.ending import say
from qtui.engine.run.client import WORKER, RunClient
from qtui.engine.waiting import LOOK_SECONDS
from qtui.report.train.words import DOING
from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.files import Target
from qtui_core.live.header import RecordingHeader
from qtui_core.live.lines import Told
from qtui_core.live.recording import Recorder
from qtui_core.live.snapshot import Fault, PhaseBegun, Said, StepTaken
from qtui_core.live.state import RunState, after
from qtui_core.quantities import format_bytes
from qtui_core.training.run.placement import NoGpu
from qtui_core.training.run.request import RunRequest

#: The exit codes that a run may end with (qtui.cli.exits).
_CODES: Final = (1, 2, 3, 4)
_ERRORS: Final = {error.exit_code: error for error in (QtuiError, UsageError, ModelError, NoGpu)}
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

    Raises QtuiError (UsageError, ModelError) where the run failed before its first line, and
    KeyboardInterrupt where it was interrupted before that.
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
        self._record = record
        self._recorder = None if record is None else Recorder(record)
        self._client = RunClient(command)
        self._state = RunState()
        self._interrupted = False
        self._unrecorded = False
        self._narrator = Narrator()
        self._said = 0.0
        self._told: set[str] = set()

    async def to_end(self, debug: bool) -> RunOutcome:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._narrator)
            if self._recorder is not None:
                stack.enter_context(self._recorder)
            stack.enter_context(self._interruptible())
            stream = await stack.enter_async_context(
                contextlib.aclosing(self._client.run(self._request))
            )
            stack.callback(asyncio.create_task(self._watch()).cancel)
            async for told in stream:
                self._state = after(self._state, told)
                self._write(told)
                self._narrate(told)
        if debug and self._state.status == "failed":
            for line in self._client.stderr_tail:
                say(line)
        code = self._exit_code()
        if self._state.header is None:
            if self._interrupted:
                raise KeyboardInterrupt
            fault = self._state.fault
            sentence = "The run told nothing." if fault is None else fault.text
            raise _ERRORS.get(code, QtuiError)(sentence)
        return RunOutcome(self._state, code, self._interrupted)

    async def _watch(self) -> None:
        """Says when the child stops answering, and when it answers again."""
        silent = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            silence = self._client.silence()
            if silence and not silent:
                self._narrator.say(f"qtui: {silence} Ctrl-C ends it.")
            elif silent and not silence:
                self._narrator.say("qtui: The run answers again.")
            silent = bool(silence)

    def _write(self, told: Told) -> None:
        """Records a line, from the header on. Where the disk is full the recording ends and the
        run goes on, as its report is still wanted."""
        if self._recorder is None or self._unrecorded or self._state.header is None:
            return
        try:
            self._recorder.write(told)
        except OSError as error:
            self._unrecorded = True
            assert self._record is not None
            what = "is not made" if isinstance(told, RecordingHeader) else "ends here"
            self._narrator.say(
                f"qtui: The recording {self._record.name!r} {what} ({error.strerror or error}); "
                "the run goes on."
            )

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C asks the run to stop, a second one kills it; what it told stays."""
        loop = asyncio.get_running_loop()
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            yield
            return
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _interrupt(self) -> None:
        if self._interrupted:
            self._client.kill()
        else:
            self._interrupted = True
            self._client.stop()

    def _exit_code(self) -> int:
        if self._state.status == "done" or self._interrupted:
            return 1 if self._unrecorded else 0
        code = self._client.exit_code
        return code if code in _CODES else 1

    def _narrate(self, told: Told) -> None:
        """Writes lines to stderr: what is prepared, the steps (at most two a second), and what the
        run says."""
        if isinstance(told, RecordingHeader):
            if told.predicted is not None and told.predicted.warning:
                self._say_once(told.predicted.warning)
        elif isinstance(told, PhaseBegun) and told.step == 0:
            if told.phase in DOING:
                self._say_once(DOING[told.phase])
        elif isinstance(told, StepTaken):
            now = time.monotonic()
            steps = self._state.header.steps if self._state.header is not None else None
            if now - self._said >= _PAUSE or told.step in (1, steps):
                self._said = now
                self._narrator.say(self._step(told, steps))
        elif isinstance(told, Fault | Said) and self._state.header is not None:
            self._say_once(told.text)

    def _say_once(self, text: str) -> None:
        """The same warning may come from the estimate and from the log of the run."""
        if text not in self._told:
            self._told.add(text)
            self._narrator.say(f"qtui: {text}")

    def _step(self, told: StepTaken, steps: int | None) -> str:
        words = [f"step {told.step:,}" + ("" if steps is None else f" of {steps:,}")]
        if told.loss is not None:
            words.append(f"loss {told.loss:.4g}")
        words.append(f"{told.step_seconds:.3g} s")
        peaks = [phase.most.peak_allocated_bytes for phase in self._state.phases]
        if peaks:
            words.append(f"peak {format_bytes(max(peaks))}")
        return "qtui: " + ", ".join(words)
