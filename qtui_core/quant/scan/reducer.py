"""Reducers: small objects that each compute something about a tensor and can share one reading of
it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from qtui_core.quant.segments.elements import Elements, HeldSegment, Segment
from qtui_core.quant.segments.parallel import Scratch, map_segments

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
    def take(self, segment: Segment, scratch: Scratch) -> Part:
        """The contribution of a segment, which must not be scratch memory. May run in any thread,
        so it changes nothing except what belongs to the elements of this segment."""

    @abstractmethod
    def add(self, part: Part) -> None:
        """Adds a contribution that `take` returned."""

    @abstractmethod
    def result(self) -> Any:
        """The result."""


def read(
    elements: Elements,
    reducers: Sequence[Reducer[Any]],
    *,
    threads: int = 1,
    advance: Callable[[int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> None:
    """Reads a tensor once for reducers that have the same segments; after that their results are
    valid. The other arguments and the errors are those of `map_segments`."""
    for reducer in reducers:
        reducer.begin(elements)

    def work(segment: Segment, scratch: Scratch) -> list[Any]:
        if len(reducers) > 1:
            segment = HeldSegment(segment.start, segment.raw, segment.convert)
        # Threads do not inherit the error state of their caller.
        with np.errstate(all="ignore"):
            return [reducer.take(segment, scratch) for reducer in reducers]

    segments = reducers[0].segments(elements)
    for parts in map_segments(
        work, segments, threads=threads, advance=advance, cancelled=cancelled
    ):
        for reducer, part in zip(reducers, parts, strict=True):
            reducer.add(part)
