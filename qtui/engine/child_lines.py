"""A child that gets one request, a line of JSON, and reports lines until it ends: it is started,
read, controlled, and ended with all its own children; and a run in such a child, whose lines are
messages. Nothing here imports torch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from qtui.engine.last_words import LINES_KEPT, obituary, read_stderr
from qtui.engine.waiting import EXIT_SECONDS, STOP_SECONDS, Silence, silence_of
from qtui_core.child_environment import child_environment
from qtui_core.codec import to_line
from qtui_core.recorded_lines import LONGEST, LineError, LineKinds
from qtui_core.training.run.controls import Control

T = TypeVar("T")


class ChildLines:
    """One child, in a process group of its own.

    `who` begins the sentences about it. `log` receives what it writes on stderr; the last lines are
    also in `stderr_tail`. Once it is gone, `exit_code` is its own: None where it never started,
    negative for the signal that it died of. `asked_to_end` says whether it was told to go.
    """

    def __init__(self, command: Sequence[str], who: str, log: Path | None = None) -> None:
        self._command = tuple(command)
        self._who = who
        self._log = log
        self.stderr_tail: deque[str] = deque(maxlen=LINES_KEPT)
        self.exit_code: int | None = None
        self.asked_to_end = False
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: asyncio.Task[None] | None = None
        self._silence = Silence()

    @property
    def pid(self) -> int | None:
        """The process id of the child, while there is one."""
        return self._process.pid if self._process is not None else None

    def silence(self) -> str:
        """That the child gives no sign of life, as a sentence; empty where it does. To be asked
        at every `waiting.LOOK_SECONDS`."""
        self._silence.look()
        return silence_of(self._who, self._silence.seconds) if self._process is not None else ""

    async def warm(self) -> None:
        """Starts the child and lets it import what it needs, before it is asked. Raises OSError
        where it cannot be started."""
        if self._process is None:
            await self._launch()
            self.control("warm")

    async def lines(self, asked: Any) -> AsyncGenerator[bytes | None, None]:
        """Starts the child, asks it, and gives its lines; None for one that is too long to be
        read. Whoever stops listening ends the child at once; `wait` before lets it end by itself.
        Raises OSError where it cannot be started."""
        self.asked_to_end, self.exit_code = False, None
        self._silence = Silence()
        process = self._process or await self._launch()
        if self.asked_to_end:  # while it was being started
            end_group(process)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(to_line(asked).encode() + b"\n")
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:
                    # Over the limit; asyncio has thrown away what it read of it.
                    yield None
                    continue
                if not line:
                    break
                self._silence.heard()
                yield line
            await self.wait()
        finally:
            end_group(process)
            try:
                await _until_gone(process)
            finally:
                if self._stderr is not None:
                    self._stderr.cancel()
                self.exit_code = process.returncode
                self._process = None

    async def wait(self) -> None:
        """Waits until the child is gone and its last words are read, for EXIT_SECONDS; then it is
        killed."""
        process, stderr = self._process, self._stderr
        if process is None or stderr is None:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), EXIT_SECONDS)
            await asyncio.wait_for(asyncio.shield(stderr), EXIT_SECONDS)
        end_group(process)
        self.exit_code = await process.wait()

    def obituary(self) -> str:
        """How it ended, as a sentence with the last line that it wrote on stderr."""
        sentence = obituary(self._who, self.exit_code, self.stderr_tail)
        return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."

    def control(self, control: Control | Literal["warm"]) -> None:
        """Sends a control to the child; does nothing if there is none."""
        stdin = self._process.stdin if self._process is not None else None
        if stdin is not None and not stdin.is_closing():
            stdin.write(json.dumps({"control": control}).encode() + b"\n")

    def stop(self, patience: float = STOP_SECONDS) -> None:
        """Asks the child to end, and ends it after `patience` seconds. What it tells until then
        still comes from `lines`."""
        self.asked_to_end = True
        if self._process is None:
            return
        self.control("stop")
        asyncio.get_running_loop().call_later(patience, self._kill, self._process)

    def kill(self) -> None:
        """Ends the child and all that it started at once."""
        self.asked_to_end = True
        if self._process is not None:
            end_group(self._process)

    async def _launch(self) -> asyncio.subprocess.Process:
        process = self._process = await start_child(self._command, LONGEST)
        assert process.stderr is not None
        self._stderr = asyncio.create_task(read_stderr(process.stderr, self.stderr_tail, self._log))
        return process

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        """Ends the child, if it is still the current one."""
        if process is self._process:
            end_group(process)


class Hearing(Protocol[T]):
    """What is known of one run from its messages."""

    def complaint(self, why: str) -> T | None:
        """The message in place of a line that cannot be read; None leaves it to the log."""

    def hear(self, told: T) -> bool:
        """Takes note of a message; returns whether it is the last."""

    def end(self, why: str, *, killed: bool) -> Iterable[T]:
        """The last messages of a run that went away without them: why it failed, and whether a
        signal killed it. `why` is empty for a run that was asked to go."""


class RunClient(Generic[T]):
    """Runs `what`, such as an experiment, in a process of its own, `child`, whose stderr is written
    to `log`. Each run has a `hearing` of its own."""

    def __init__(
        self,
        command: Sequence[str],
        what: str,
        kinds: LineKinds[T],
        hearing: Callable[[], Hearing[T]],
        log: Path | None,
    ) -> None:
        self._what, self._kinds, self._hearing = what, kinds, hearing
        self.child: Final = ChildLines(command, f"The {what}", log)

    async def run(self, request: Any) -> AsyncGenerator[T, None]:
        """Starts a run and yields its messages, always with the last one. Closing the generator
        ends the run."""
        hearing = self._hearing()
        why = ""
        try:
            async with aclosing(self.child.lines(request)) as lines:
                async for line in lines:
                    told = self._read(line, hearing)
                    if told is None:
                        continue
                    last = hearing.hear(told)
                    yield told
                    if last:
                        await self.child.wait()
                        return
            if not self.child.asked_to_end:
                why = self.child.obituary()
        except OSError as error:
            why = f"The {self._what} could not be started: {error}."
        for told in hearing.end(why, killed=(self.child.exit_code or 0) < 0):
            yield told

    def _read(self, line: bytes | None, hearing: Hearing[T]) -> T | None:
        """The message in a line, or that it cannot be read."""
        try:
            if line is not None:
                return self._kinds.from_line(line)
            why = f"A line of the {self._what} was too long and is left out."
        except LineError as error:
            why = f"A line of the {self._what} cannot be read: {error}"
        told = hearing.complaint(why)
        if told is None:
            self.child.stderr_tail.append(why)
        return told


async def start_child(command: Sequence[str], limit: int) -> asyncio.subprocess.Process:
    """Starts a child with pipes, whose lines are read up to `limit` bytes. Raises OSError."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=limit,
        env=child_environment(),
        # Its own process group, so that Ctrl+C in the terminal is not for it, and that what it
        # starts ends with it; but the same session, as some kernels apply `nice` only within one.
        process_group=0,
    )


def end_group(process: asyncio.subprocess.Process) -> None:
    """Ends a child and what it started, which may outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _until_gone(process: asyncio.subprocess.Process) -> None:
    """Waits for the end of a child that was killed, EXIT_SECONDS at most, also where the listener
    is cancelled once more meanwhile, as a loop that ends does: what asyncio holds of a child must
    not outlive the loop."""
    again: asyncio.CancelledError | None = None
    for _ in range(2):
        try:
            await asyncio.wait_for(process.wait(), EXIT_SECONDS)
        except TimeoutError:
            pass
        except asyncio.CancelledError as error:
            again = error
            continue
        break
    if again is not None:
        raise again
