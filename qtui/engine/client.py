"""The screen's side of the engine: starts the child and sends it requests.

Nothing here imports numpy or torch. The child is started by the first request. When it dies,
is killed or writes something that is not a frame, every request in flight raises EngineLost and
the client stays `lost` until `restart()`: a request that crashes the child must not crash it again
in a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from qtui.engine.child_exit import LINES_KEPT, exit_sentence, read_stderr
from qtui.engine.child_lines import end_group, start_child
from qtui.engine.protocol import (
    Array,
    Event,
    Frame,
    ProtocolError,
    Request,
    encode_request,
    read_event,
)
from qtui.engine.waiting import (
    EXIT_SECONDS,
    HEED_SECONDS,
    LOOK_SECONDS,
    SILENT_AFTER_SECONDS,
    Silence,
    silence_of,
)
from qtui_core.codec import from_plain
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, error_of

T = TypeVar("T")

READ_BUFFER_BYTES = 1 << 20

#: Is called with the progress of a request (0 to 1) and, if there is one, a part of its answer as
#: JSON; otherwise that is empty.
ProgressCallback = Callable[[float, dict[str, Any]], None]


class EngineState(StrEnum):
    """`idle`: no child yet, or closed. `lost`: the child ended without being asked to."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    LOST = "lost"


StateListener = Callable[[EngineState, str], None]


class EngineLost(QtuiError):
    """The child process ended before it answered."""


@dataclass(frozen=True)
class Reply:
    """The answer to a request: JSON, and arrays by field name."""

    data: dict[str, Any]
    arrays: dict[str, Array]

    def read(self, kind: type[T]) -> T:
        """The answer as the dataclass `kind`. Raises CodecError if it is not one."""
        return from_plain(kind, {**self.data, **self.arrays} if self.arrays else self.data)


@dataclass
class _Call:
    future: asyncio.Future[Reply]
    on_progress: ProgressCallback | None
    answered: bool = False


class EngineClient:
    """One child process and the requests in flight.

    `log` receives what the child writes on stderr; `stderr_tail` has the last lines. `on_state` is
    a first listener. `detail` is a sentence about the state: why the child is lost, or that a child
    with open requests gives no sign of life. It is empty if there is nothing to say.
    """

    def __init__(
        self,
        command: Sequence[str] | None = None,
        *,
        log: Path | None = None,
        on_state: StateListener | None = None,
    ) -> None:
        self._command = tuple(command or (sys.executable, "-P", "-m", "qtui.engine.worker"))
        self._log = log
        self._listeners: list[StateListener] = [on_state] if on_state is not None else []
        self.state = EngineState.IDLE
        self.detail = ""
        self.stderr_tail: deque[str] = deque(maxlen=LINES_KEPT)
        self._process: asyncio.subprocess.Process | None = None
        self._start: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._calls: dict[int, _Call] = {}
        self._cancelled: set[int] = set()
        """Requests that were cancelled, until the child confirms it."""
        self._silence = Silence()
        self._watching: asyncio.Task[None] | None = None
        self._next_id = 0

    @property
    def pid(self) -> int | None:
        """The process id of the child, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def busy(self) -> bool:
        """Whether a request is in flight."""
        return bool(self._calls)

    def subscribe(self, listener: StateListener) -> Callable[[], None]:
        """Calls `listener(state, detail)` at every change. Returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def request(
        self,
        method: str,
        params: object = None,
        *,
        on_progress: ProgressCallback | None = None,
    ) -> Reply:
        """Sends a request, starting the child if needed, and waits for the answer. `params` is the
        request dataclass of the operation, or a mapping of its fields.

        Cancelling the awaiting task cancels the request; nothing else does, as other askers of this
        client may ask the same. Raises the QtuiError (UsageError, ModelError and so on) that the
        engine reports, and EngineLost if the child is gone.
        """
        await self.start()
        self._next_id += 1
        request_id = self._next_id
        line = encode_request(Request(request_id, method, params or {}))
        call = _Call(asyncio.get_running_loop().create_future(), on_progress)
        self._calls[request_id] = call
        try:
            await self._write(line)
            return await call.future
        except asyncio.CancelledError:
            if not call.answered:
                self._send_cancel(request_id)
            raise
        finally:
            self._calls.pop(request_id, None)

    def forget_loss(self) -> None:
        """Ends the child, whatever state it is in; the next request starts another."""
        self._drop("The engine was restarted.")
        self._set_state(EngineState.IDLE, "")

    async def restart(self) -> None:
        """Replaces the child by a new one, whatever state it is in."""
        self.forget_loss()
        await self.start()

    def kill(self) -> None:
        """Kills the child (SIGKILL). Requests in flight raise EngineLost."""
        if self._process is None and self._start is None:
            return
        self._lose("The engine was stopped.")

    async def close(self) -> None:
        """Ends the child: closes its stdin, at which it exits, and kills it if it does not. A child
        that is still importing its libraries would notice only afterwards; it is killed at once."""
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            process.stdin.close()
            if self._start is not None:
                self._start.cancel()
                end_group(process)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), EXIT_SECONDS)
        background = list(self._background)
        self._drop("The engine was closed.")
        self._set_state(EngineState.IDLE, "")
        await asyncio.gather(*background, return_exceptions=True)

    # Starting and losing the child

    async def start(self) -> None:
        """Starts the child if it does not run; a request does so too. Raises EngineLost."""
        if self.state is EngineState.LOST:
            raise EngineLost(self.detail)
        if self.state is EngineState.RUNNING:
            return
        if self._start is None:
            self._start = asyncio.create_task(self._launch())
        start = self._start
        try:
            await asyncio.shield(start)
        except asyncio.CancelledError:
            if not start.cancelled():
                raise  # the caller was cancelled, the start continues
            raise EngineLost(self.detail or "The engine was stopped.") from None
        finally:
            if start.done() and self._start is start:
                self._start = None

    async def _launch(self) -> None:
        self._set_state(EngineState.STARTING, "")
        try:
            process = await start_child(self._command, READ_BUFFER_BYTES)
        except OSError as error:
            self._lose(f"The engine could not be started: {error}")
            raise EngineLost(self.detail) from error
        self._process = process
        self._silence = Silence()
        self._watching = self._spawn(self._watch(process))
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise AssertionError("asyncio gave no pipes although all three were asked for")
        stderr_task = self._spawn(read_stderr(process.stderr, self.stderr_tail, self._log))
        try:
            while (ready := await read_event(process.stdout)) and ready.head.event == "alive":
                self._silence.heard()
        except ProtocolError as error:
            self._lose(f"The engine could not be understood while it started: {error}")
            raise EngineLost(self.detail) from error
        if ready is None or ready.head.event != "ready":
            await self._process_ended(process, stderr_task)
            raise EngineLost(self.detail)
        self._set_state(EngineState.RUNNING, "")
        self._spawn(self._read_events(process, process.stdout, stderr_task))

    async def _process_ended(
        self, process: asyncio.subprocess.Process, stderr_task: asyncio.Task[None]
    ) -> None:
        """Called when the child has closed its output: reports how it ended."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), EXIT_SECONDS)
            await asyncio.wait_for(asyncio.shield(stderr_task), EXIT_SECONDS)
        if process is self._process:
            self._lose(exit_sentence("The engine", process.returncode, self.stderr_tail))

    def _lose(self, sentence: str) -> None:
        self._drop(sentence)
        self._set_state(EngineState.LOST, sentence)

    def _drop(self, sentence: str) -> None:
        """Kills the child; requests in flight fail with `sentence`."""
        if self._watching is not None and self._watching is not asyncio.current_task():
            self._watching.cancel()
        self._watching = None
        self._cancelled.clear()
        process, self._process = self._process, None
        start, self._start = self._start, None
        if process is not None and process.returncode is None:
            end_group(process)
        # If this is called from the launch itself, that ends by itself.
        if start is not None and start is not asyncio.current_task():
            start.cancel()
        for call in self._calls.values():
            if not call.future.done():
                call.future.set_exception(EngineLost(sentence))

    def _set_state(self, state: EngineState, detail: str) -> None:
        if (state, detail) == (self.state, self.detail):
            return
        self.state, self.detail = state, detail
        for listener in tuple(self._listeners):
            listener(state, detail)

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    # A child that does not answer

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Reports a child that gives no sign of life while a caller waits. Kills a child that does
        not stop cancelled work while no caller waits."""
        unheeded = 0.0
        while process is self._process:
            await asyncio.sleep(LOOK_SECONDS)
            asked = self.state is EngineState.STARTING or self._calls.keys() - self._cancelled
            if not (asked or self._cancelled):
                self._silence.heard()
            silent = self._silence.look() >= SILENT_AFTER_SECONDS
            unheeded = unheeded + LOOK_SECONDS if self._cancelled and not asked else 0.0
            if unheeded and (silent or unheeded >= HEED_SECONDS):
                self._drop("The engine was ended, because it did not stop what was cancelled.")
                self._set_state(EngineState.IDLE, "")
            elif self.state in (EngineState.STARTING, EngineState.RUNNING):
                self._set_state(self.state, self._silence_told())

    def _silence_told(self) -> str:
        """A sentence if the child gives no sign of life, else empty."""
        return silence_of("The engine", self._silence.seconds)

    # Talking to the child

    async def _write(self, line: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise EngineLost(self.detail or "The engine was stopped.")
        process.stdin.write(line)
        # A broken pipe means that the child is ending. The reader of its output notices that and
        # fails every request, including this one.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await process.stdin.drain()

    def _send_cancel(self, request_id: int) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return
        self._cancelled.add(request_id)
        process.stdin.write(encode_request(Request(0, "cancel", {"id": request_id})))

    async def _read_events(
        self,
        process: asyncio.subprocess.Process,
        stream: asyncio.StreamReader,
        stderr_task: asyncio.Task[None],
    ) -> None:
        try:
            while (frame := await read_event(stream)) is not None:
                self._silence.heard()
                self._deliver(frame)
        except ProtocolError as error:
            if process is self._process:
                self._lose(
                    f"The engine was stopped, because its answer could not be understood: {error}"
                )
            return
        await self._process_ended(process, stderr_task)

    def _deliver(self, frame: Frame) -> None:
        head = frame.head
        asked = head.id or 0
        call = self._calls.get(asked)
        if head.event != "progress":
            self._cancelled.discard(asked)
            if call is not None:
                call.answered = True
        if call is None or call.future.done():
            return  # its caller was cancelled, and the answer was already on the way
        if head.event == "progress":
            self._report_progress(head, call)
        elif head.event == "result":
            call.future.set_result(Reply(head.data or {}, frame.arrays))
        elif head.event == "error":
            message = head.message or "The engine failed."
            call.future.set_exception(error_of(message, head.exit_code))
        else:
            raise ProtocolError(f"An event is named {head.event!r}.")

    def _report_progress(self, head: Event, call: _Call) -> None:
        if call.on_progress is None:
            return
        try:
            call.on_progress(head.fraction, head.data or {})
        except Exception as error:
            # An error of the caller's callback is raised to the caller, not in this reader.
            call.future.set_exception(error)
