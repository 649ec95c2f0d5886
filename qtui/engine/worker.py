"""The engine's child process: `python -m qtui.engine.worker`.

The main thread only reads requests, so that it sees a cancellation during a computation. Operations
run in lanes, one thread each, in order of arrival. Events are written to the stdout with which the
process started. What libraries print goes to stderr, because one stray line would corrupt the
stream.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from qtui.engine.protocol import (
    MAX_REQUEST_BYTES,
    Event,
    ProtocolError,
    Request,
    encode_event,
    parse_request,
)
from qtui.engine.task import EngineOperation, Task
from qtui.engine.waiting import PULSE_SECONDS
from qtui_core.errors import QtuiError, UsageError, memory_ran_out
from qtui_core.job import Cancelled
from qtui_core.telemetry.machine import more_memory

# Twice a second is calm to look at, and few bytes over a slow connection. A key pressed right after
# a repaint waits for the next frame, so needless repaints make keys slower.
PROGRESS_SECONDS = 0.5
# A lower priority than the screen, which needs a few milliseconds now and then.
NICENESS = 10


class EventSink:
    """Writes events to the parent, from any thread. If the parent is gone, ends this process."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, event: Event) -> None:
        frame = encode_event(event)
        with self._lock:
            try:
                self._stream.write(frame)
                self._stream.flush()
            except (BrokenPipeError, ValueError):
                os._exit(0)


class Lane:
    """A thread and its queue. The operations of a lane run one after the other."""

    def __init__(self, name: str, worker: Worker) -> None:
        self._worker = worker
        self._waiting: deque[Task[Any]] = deque()
        self._running: Task[Any] | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, task: Task[Any]) -> None:
        """Queues a task."""
        with self._changed:
            self._waiting.append(task)
            self._changed.notify()

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or self._running is not None

    def cancel(self, task_id: int) -> None:
        """Cancels the task with this id, if it waits or runs here."""
        with self._changed:
            for task in [task for task in self._waiting if task.id == task_id]:
                self._waiting.remove(task)
                self._worker.answer_cancelled(task)
            if self._running is not None and self._running.id == task_id:
                self._running.cancel()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                self._running = task = self._waiting.popleft()
            self._worker.perform(task)
            with self._changed:
                self._running = None


class Worker:
    """Answers each request with exactly one event: a result, an error or "cancelled"."""

    def __init__(self, sink: EventSink, operations: Mapping[str, EngineOperation]) -> None:
        self._sink = sink
        self._operations = operations
        # All at once: where memory has run out, no more threads can be started.
        self._lanes = {
            name: Lane(name, self) for name in {each.lane for each in operations.values()}
        }

    @property
    def busy(self) -> bool:
        """Whether a task runs or waits."""
        return any(lane.busy for lane in self._lanes.values())

    def serve(self, source: BinaryIO) -> None:
        """Reads requests from `source` until the parent closes it or ends."""
        while line := source.readline(MAX_REQUEST_BYTES + 1):
            if not line.endswith(b"\n") and len(line) <= MAX_REQUEST_BYTES:
                break  # the parent ended in the middle of a line
            try:
                self._accept(parse_request(line))
            except ProtocolError as error:
                print(f"engine: {error}", file=sys.stderr, flush=True)
                self._sink.send(_error(None, error))
                while line and not line.endswith(b"\n"):  # the rest of an overlong line
                    line = source.readline(MAX_REQUEST_BYTES)

    def _accept(self, request: Request) -> None:
        task_id, method = request.id, request.method
        if method == "cancel":
            for lane in self._lanes.values():
                lane.cancel(request.params.get("id", -1))
            return
        operation = self._operations.get(method)
        if operation is None:
            error = ProtocolError(f"The engine knows no operation named {method!r}.")
            self._sink.send(_error(task_id, error))
            return
        try:
            asked = operation.read(method, request.params)
        except UsageError as error:
            self._sink.send(_error(task_id, error))
            return
        task = Task(task_id, method, asked, self._progress_of(task_id))
        self._lanes[operation.lane].submit(task)

    def perform(self, task: Task[Any]) -> None:
        """Runs one task in the calling thread and sends its answer."""
        try:
            task.check()
            result = self._operations[task.method].run(task)
            task.check()
        except Cancelled:
            self.answer_cancelled(task)
        except Exception as error:
            if isinstance(error, QtuiError) and task.is_cancelled():
                self.answer_cancelled(task)  # a function of qtui_core raised Cancelled
            else:
                self._sink.send(_error(task.id, _told(task.method, error)))
        else:
            self._sink.send(Event("result", task.id, result))

    def answer_cancelled(self, task: Task[Any]) -> None:
        self._sink.send(Event("cancelled", task.id))

    def _progress_of(self, task_id: int) -> Any:
        last = 0.0

        def send(fraction: float, data: Any) -> None:
            nonlocal last
            now = time.monotonic()
            if data is None and now - last < PROGRESS_SECONDS:
                return
            last = now
            self._sink.send(Event("progress", task_id, data, fraction))

        return send


def _told(method: str, error: Exception) -> QtuiError:
    """What the screen is told of an error. If that is neither a sentence already nor a lack of
    memory, it is a bug: the screen gets one line, the log the traceback."""
    if memory_ran_out(error):
        return QtuiError(f"Memory ran out in {method}. {more_memory()}")
    if isinstance(error, QtuiError):
        return error
    traceback.print_exception(error)
    return QtuiError(f"Internal error in {method}: {type(error).__name__}: {error}")


def _error(task_id: int | None, error: QtuiError) -> Event:
    return Event("error", task_id, message=str(error), exit_code=error.exit_code)


def take_over_streams() -> tuple[BinaryIO, BinaryIO]:
    """Duplicates of stdin and stdout for the protocol.

    Afterwards descriptor 0 is empty and descriptor 1 is stderr, for this process, its C code and
    its children.
    """
    source, sink = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return os.fdopen(source, "rb"), os.fdopen(sink, "wb")


def main(build: Callable[[], Mapping[str, EngineOperation]], niceness: int = NICENESS) -> None:
    """Serves the operations that `build` returns until stdin ends, then ends the process, whatever
    its lanes are computing. `build` is called after the streams are replaced, because importing a
    library may print."""
    source, sink = take_over_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C belongs to the parent
    os.nice(niceness)
    events = EventSink(sink)
    working: list[Callable[[], bool]] = [lambda: True]
    threading.Thread(target=_beat, args=(events, working), name="pulse", daemon=True).start()
    worker = Worker(events, build())
    working[0] = lambda: worker.busy
    events.send(Event("ready"))
    worker.serve(source)
    os._exit(0)


def _beat(events: EventSink, working: Sequence[Callable[[], bool]]) -> None:
    """Sends signs of life while a task runs, so that the screen can distinguish a long computation
    from a process that hangs."""
    while True:
        time.sleep(PULSE_SECONDS)
        if working[0]():
            events.send(Event("alive"))


def _build() -> Mapping[str, EngineOperation]:
    from qtui.engine.operations import build_operations

    return build_operations()


if __name__ == "__main__":
    main(_build)
