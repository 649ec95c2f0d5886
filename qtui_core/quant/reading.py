"""Reads a tensor once for several reducers: small objects that each compute something about it.

numpy releases the interpreter lock inside its loops, so Python threads over segments use the cores
without the thread pools of other libraries. Results come back in order, which makes sums identical
for any number of threads."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import cache
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import numpy as np

from qtui_core.job import IDLE, Job
from qtui_core.quant.elements import Elements, Segment
from qtui_core.threads import thread_limit

Result = TypeVar("Result")

#: Below this many elements, starting a thread costs more than it saves.
THREADED_FROM = 1 << 20
#: Two threads reach most of the memory bandwidth; more would take cores from a training run on the
#: same machine.
MAX_THREADS = 2


def thread_count(elements: int, threads: int | None) -> int:
    """How many threads to use for `elements`; `threads` overrides it."""
    if threads is not None:
        return max(1, threads)
    if elements < THREADED_FROM:
        return 1
    return min(MAX_THREADS, thread_limit())


def map_segments(
    work: Callable[[Segment], Result], segments: Iterable[Segment], total: int, job: Job = IDLE
) -> Iterator[Result]:
    """`work` of every segment of `total` elements, in order. Segments are drawn, and the job is
    told, on the calling thread, which works too; few segments exist at a time.

    Raises Cancelled as soon as the job is cancelled.
    """
    waiting: deque[tuple[Segment, Future[Result]]] = deque()
    threads, done = thread_count(total, job.threads), 0

    def take() -> Result:
        nonlocal done
        segment, future = waiting.popleft()
        result = future.result()
        done += segment.size
        # A tensor without elements is one empty segment.
        job.at(min(done, total) if total else 1, total or 1)
        return result

    try:
        for segment in segments:
            job.check()
            future: Future[Result] = Future()
            waiting.append((segment, future))
            # Each other thread has a segment at work and one to go on with.
            if sum(not other.done() for _, other in waiting) <= 2 * (threads - 1):
                _queue(threads - 1).put((future, work, segment))
            else:
                _perform(future, work, segment)
            while waiting and (waiting[0][1].done() or len(waiting) > 4 * threads):
                yield take()
        # What no other thread has begun is done here, as the end would have to wait for it.
        for at, (segment, future) in enumerate(waiting):
            job.check()
            if future.cancel():
                waiting[at] = segment, Future()
                _perform(waiting[at][1], work, segment)
        while waiting:
            job.check()
            yield take()
    finally:
        # Nothing writes to the caller's arrays after this.
        wait([future for _, future in waiting if not future.cancel()])


_Task = tuple[Future[Any], Callable[[Segment], Any], Segment]


@cache
def _queue(threads: int) -> SimpleQueue[_Task]:
    """What threads that stay take their work from: to start some for each tensor costs
    milliseconds, as the kernel first runs them on the core of the caller. Work must not call
    `map_segments` itself.

    They do not hold up the end of the program. ThreadPoolExecutor waits at the end for its threads,
    without end for one whose start Ctrl-C interrupted.
    """
    tasks: SimpleQueue[_Task] = SimpleQueue()

    def work() -> None:
        while True:
            _perform(*tasks.get())

    for number in range(threads):
        Thread(target=work, name=f"quant_{number}", daemon=True).start()
    return tasks


def _perform(future: Future[Any], work: Callable[[Segment], Any], segment: Segment) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work(segment))
        except BaseException as error:  # raised where the result is taken
            future.set_exception(error)


# A forked child has the queues without their threads.
os.register_at_fork(after_in_child=_queue.cache_clear)


Part = TypeVar("Part")


class Reducer(ABC, Generic[Part]):
    """Computes something about a tensor. `begin` is called once, then `take` for each segment, and
    `add` for each part in the order of the tensor; after that `result` is valid."""

    @property
    def multiple(self) -> int:
        """The length of every segment must be a multiple of this. Sums depend on where segments are
        cut."""
        return 1

    def segments(self, elements: Elements) -> Iterator[Segment]:
        """The segments of the tensor that it takes, in order."""
        return elements.segments(self.multiple)

    def cut(self, elements: Elements) -> Hashable:
        """A value that is equal for reducers with the same `segments`, which can share a
        reading."""
        return elements.cut(self.multiple)

    def reads(self, elements: Elements) -> int:
        """How many elements those segments hold."""
        return elements.count

    @abstractmethod
    def begin(self, elements: Elements) -> None:
        """Called with the elements that will be read."""

    @abstractmethod
    def take(self, segment: Segment) -> Part:
        """The contribution of a segment. May run in any thread, so it changes nothing except what
        belongs to the elements of this segment."""

    @abstractmethod
    def add(self, part: Part) -> None:
        """Adds a contribution that `take` returned."""

    @abstractmethod
    def result(self) -> Any:
        """The result."""


def read(elements: Elements, reducers: Sequence[Reducer[Any]], job: Job = IDLE) -> None:
    """Reads a tensor once for reducers that have the same segments; after that their results are
    valid. Raises as `map_segments` does."""
    for reducer in reducers:
        reducer.begin(elements)

    def work(segment: Segment) -> list[Any]:
        # Threads do not inherit the error state of their caller.
        with np.errstate(all="ignore"):
            return [reducer.take(segment) for reducer in reducers]

    first = reducers[0]
    for parts in map_segments(work, first.segments(elements), first.reads(elements), job):
        for reducer, part in zip(reducers, parts, strict=True):
            reducer.add(part)
