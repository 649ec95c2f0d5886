"""The reader's end of a run: starts the child that trains, hears what it tells, and ends it.

Nothing here imports torch. A run always ends with an `End`: where the child goes away without one,
what happened is told in its place, as a `Fault` unless it was asked to go.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from qtui.engine.last_words import LINES_KEPT, obituary, read_stderr
from qtui.engine.waiting import EXIT_SECONDS, STOP_SECONDS, Silence, silence_of
from qtui_core.child_environment import child_environment
from qtui_core.codec import to_line
from qtui_core.live.header import RecordingHeader
from qtui_core.live.lines import LineError, Told, from_line
from qtui_core.live.snapshot import End, Fault, PhaseBegun, Said
from qtui_core.training.run.request import RunRequest

Control = Literal["pause", "resume", "step", "stop"]

WORKER: Final = (sys.executable, "-P", "-m", "qtui.engine.run.worker")
#: No honest line is longer: a header with all terms of an estimate has some hundred kB.
_LINE_BYTES: Final = 64 << 20


class RunClient:
    """One run in a process of its own.

    `log` receives what the child writes on stderr; the last lines are also in `stderr_tail`.
    After the run, `exit_code` is that of the child: None where it never started, negative for
    the signal that it died of.
    """

    def __init__(self, command: Sequence[str] = WORKER, *, log: Path | None = None) -> None:
        self._command = tuple(command)
        self._log = log
        self.stderr_tail: deque[str] = deque(maxlen=LINES_KEPT)
        self.exit_code: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._asked_to_end = False
        self._silence = Silence()
        self._seconds, self._step, self._phase = 0.0, 0, ""
        self._began = 0.0

    def silence(self) -> str:
        """That the run gives no sign of life, as a sentence; empty where it does. To be asked at
        every `silence.LOOK_SECONDS`."""
        self._silence.look()
        return silence_of("The run", self._silence.seconds) if self._process is not None else ""

    @property
    def pid(self) -> int | None:
        """The process id of the child, while there is one."""
        return self._process.pid if self._process is not None else None

    async def run(self, request: RunRequest | Mapping[str, Any]) -> AsyncGenerator[Told, None]:
        """Starts a run and gives all that it tells, an End last. Whoever stops listening ends the
        run."""
        self._asked_to_end, self.exit_code = False, None
        self._seconds, self._step, self._phase = 0.0, 0, ""
        self._began = time.monotonic()
        self._silence = Silence()
        try:
            process = self._process = await self._launch()
        except OSError as error:
            for told in self._ended_badly(f"The run could not be started: {error}."):
                yield told
            return
        if self._asked_to_end:  # while it was being started
            _end_group(process)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        stderr = asyncio.create_task(read_stderr(process.stderr, self.stderr_tail, self._log))
        ended = False
        try:
            process.stdin.write(to_line(request).encode() + b"\n")
            async for told in self._read(process.stdout):
                ended = isinstance(told, End)
                yield told
                if ended:
                    break
            await self._wait(process, stderr)
            if not ended:
                # It said nothing of its end, which may be long after what it said last.
                self._seconds = max(self._seconds, time.monotonic() - self._began)
                if self._asked_to_end:
                    yield End(self._seconds, "stopped")
                else:
                    sentence = obituary("The run", process.returncode, self.stderr_tail)
                    for told in self._ended_badly(sentence, process.returncode):
                        yield told
        finally:
            _end_group(process)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), EXIT_SECONDS)
            stderr.cancel()
            self.exit_code = process.returncode
            self._process = None

    def control(self, control: Control) -> None:
        """Says something to the run; nothing where there is none."""
        stdin = self._process.stdin if self._process is not None else None
        if stdin is not None and not stdin.is_closing():
            stdin.write(json.dumps({"control": control}).encode() + b"\n")

    def stop(self, patience: float = STOP_SECONDS) -> None:
        """Asks the run to end, and ends it after `patience` seconds. What it tells until then, and
        an End, still come from `run`."""
        self._asked_to_end = True
        if self._process is None:
            return
        self.control("stop")
        asyncio.get_running_loop().call_later(patience, self._kill, self._process)

    def kill(self) -> None:
        """Ends the run and all that it started at once."""
        self._asked_to_end = True
        if self._process is not None:
            _end_group(self._process)

    async def _launch(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            env=child_environment(),
            # Its own process group, so that Ctrl+C in the terminal is not for it, and that what
            # it starts ends with it.
            process_group=0,
        )

    async def _read(self, stream: asyncio.StreamReader) -> AsyncIterator[Told]:
        """What lines of the child say. One that says nothing is told as words for the log."""
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                # Over the limit; asyncio has thrown away what it read of it.
                yield Said(self._seconds, "A line of the run was too long and is left out.")
                continue
            if not line:
                return
            self._silence.heard()
            try:
                told = from_line(line)
            except LineError as error:
                told = Said(self._seconds, f"A line of the run cannot be read: {error}")
            if told is not None:
                self._follow(told)
                yield told

    def _follow(self, told: Told) -> None:
        """Where the run is, in case it goes away."""
        if isinstance(told, RecordingHeader):
            return
        self._seconds = max(self._seconds, told.seconds)
        if isinstance(told, PhaseBegun):
            self._step, self._phase = told.step, told.phase

    def _ended_badly(self, sentence: str, returncode: int | None = None) -> tuple[Told, ...]:
        sentence = sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
        where = f" It was in the phase {self._phase!r}." if self._phase else ""
        kind = "killed" if (returncode or 0) < 0 else "failure"
        fault = Fault(self._seconds, self._step, self._phase, kind, sentence + where)
        return fault, End(self._seconds, "failed")

    async def _wait(self, process: asyncio.subprocess.Process, stderr: asyncio.Task[None]) -> None:
        """Waits until the child is gone and its last words are read, for so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), EXIT_SECONDS)
            await asyncio.wait_for(asyncio.shield(stderr), EXIT_SECONDS)
        _end_group(process)
        await process.wait()

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        """Ends the child, if it is still the one that runs."""
        if process is self._process:
            _end_group(process)


def _end_group(process: asyncio.subprocess.Process) -> None:
    """Ends a child and what it started, which may outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
