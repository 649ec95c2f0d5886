"""Starts, reads, controls and ends a child process that gets one request, a line of JSON, and
reports lines until it ends; and a run in such a child, whose lines are messages. Nothing here
imports torch."""

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

from qtui.engine.child_exit import LINES_KEPT, exit_sentence, read_stderr
from qtui.engine.waiting import EXIT_SECONDS, STOP_SECONDS, Silence, silence_of
from qtui_core.codec import to_line
from qtui_core.recorded_lines import LONGEST, LineError, LineKinds
from qtui_core.threads import child_environment
from qtui_core.training.run.request import Control

T = TypeVar("T")


class ChildLines:
    """One child, in a process group of its own.

    `who` begins the sentences about it. `log` receives what it writes on stderr; `stderr_tail` has
    the last lines. `exit_code` is None until it has ended, and negative if a signal killed it.
    `asked_to_end` says whether it was asked to end.
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
        """A sentence if the child gives no sign of life, else empty. To be called every
        `waiting.LOOK_SECONDS`."""
        self._silence.look()
        return silence_of(self._who, self._silence.seconds) if self._process is not None else ""

    async def warm(self) -> None:
        """Starts the child and lets it import its libraries before it gets a request. Raises
        OSError if it cannot be started."""
        if self._process is None:
            await self._launch()
            self.control("warm")

    async def lines(self, asked: Any) -> AsyncGenerator[bytes | None, None]:
        """Starts the child, sends the request, and yields its lines; None for a line that is too
        long. Closing the generator kills the child, unless `wait` was awaited before. Raises
        OSError if the child cannot be started."""
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
        """Waits until the child has ended and its stderr is read, at most EXIT_SECONDS; then kills
        it."""
        process, stderr = self._process, self._stderr
        if process is None or stderr is None:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), EXIT_SECONDS)
            await asyncio.wait_for(asyncio.shield(stderr), EXIT_SECONDS)
        end_group(process)
        self.exit_code = await process.wait()

    def exit_sentence(self) -> str:
        """How the child ended: a sentence with the last line that it wrote on stderr."""
        sentence = exit_sentence(self._who, self.exit_code, self.stderr_tail)
        return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."

    def control(self, control: Control | Literal["warm"]) -> None:
        """Sends a control to the child; does nothing if there is none."""
        stdin = self._process.stdin if self._process is not None else None
        if stdin is not None and not stdin.is_closing():
            stdin.write(json.dumps({"control": control}).encode() + b"\n")

    def stop(self, patience: float = STOP_SECONDS) -> None:
        """Asks the child to end, and kills it after `patience` seconds. `lines` still yields what
        it reports until then."""
        self.asked_to_end = True
        if self._process is None:
            return
        self.control("stop")
        asyncio.get_running_loop().call_later(patience, self._kill, self._process)

    def kill(self) -> None:
        """Kills the child and all processes that it started."""
        self.asked_to_end = True
        if self._process is not None:
            end_group(self._process)

    async def _launch(self) -> asyncio.subprocess.Process:
        process = self._process = await start_child(self._command, LONGEST)
        assert process.stderr is not None
        self._stderr = asyncio.create_task(read_stderr(process.stderr, self.stderr_tail, self._log))
        return process

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        """Kills the child, if it is still the current one."""
        if process is self._process:
            end_group(process)


class RunListener(Protocol[T]):
    """Listens to the messages of one run."""

    def complaint(self, why: str) -> T | None:
        """The message in place of a line that cannot be read; None leaves it to the log."""

    def hear(self, event: T) -> bool:
        """Takes note of a message; returns whether it is the last."""

    def end(self, why: str, *, killed: bool) -> Iterable[T]:
        """The last messages of a run that went away without them: why it failed, and whether a
        signal killed it. `why` is empty for a run that was asked to go."""


class RunClient(Generic[T]):
    """Runs `what`, such as an experiment, in a process of its own, `child`, whose stderr is written
    to `log`. Each run has a `listener` of its own."""

    def __init__(
        self,
        command: Sequence[str],
        what: str,
        kinds: LineKinds[T, Any],
        listener: Callable[[], RunListener[T]],
        log: Path | None,
    ) -> None:
        self._what, self._kinds, self._listener = what, kinds, listener
        self.child: Final = ChildLines(command, f"The {what}", log)

    async def run(self, request: Any) -> AsyncGenerator[T, None]:
        """Starts a run and yields its messages, always with the last one. Closing the generator
        ends the run."""
        listener = self._listener()
        why = ""
        try:
            async with aclosing(self.child.lines(request)) as lines:
                async for line in lines:
                    event = self._read(line, listener)
                    if event is None:
                        continue
                    last = listener.hear(event)
                    yield event
                    if last:
                        await self.child.wait()
                        return
            if not self.child.asked_to_end:
                why = self.child.exit_sentence()
        except OSError as error:
            why = f"The {self._what} could not be started: {error}."
        for event in listener.end(why, killed=(self.child.exit_code or 0) < 0):
            yield event

    def _read(self, line: bytes | None, listener: RunListener[T]) -> T | None:
        """The message in a line, or that it cannot be read."""
        try:
            if line is not None:
                return self._kinds.from_line(line)
            why = f"A line of the {self._what} was too long and is left out."
        except LineError as error:
            why = f"A line of the {self._what} cannot be read: {error}"
        event = listener.complaint(why)
        if event is None:
            self.child.stderr_tail.append(why)
        return event


async def start_child(command: Sequence[str], limit: int) -> asyncio.subprocess.Process:
    """Starts a child with pipes, whose lines are read up to `limit` bytes. Raises OSError."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=limit,
        env=child_environment(),
        # Its own process group: Ctrl+C in the terminal does not reach it, and the processes that it
        # starts can be ended with it. The same session, as some kernels apply `nice` only within
        # one.
        process_group=0,
    )


def end_group(process: asyncio.subprocess.Process) -> None:
    """Kills a child and the processes that it started, which may outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _until_gone(process: asyncio.subprocess.Process) -> None:
    """Waits for the end of a killed child, EXIT_SECONDS at most, even if the caller is cancelled
    again meanwhile, as happens when the event loop ends: asyncio's transport of a child must not
    outlive the loop."""
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
