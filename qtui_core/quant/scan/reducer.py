"""What one reading of a tensor finds out, in small objects that share the reading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from qtui_core.quant.segments.elements import Elements, HeldSegment, Segment
from qtui_core.quant.segments.parallel import Scratch, map_segments

Part = TypeVar("Part")


class Reducer(ABC, Generic[Part]):
    """Something to be found out about a tensor. `begin` comes once, then `take` for each segment,
    and `add` for each part in the order of the tensor; then there is a `result`."""

    @property
    def multiple(self) -> int:
        """Segments must be multiples of this long. Sums depend on where segments are cut."""
        return 1

    def segments(self, elements: Elements) -> Iterator[Segment]:
        """The pieces of the tensor that are taken, in order."""
        return elements.segments(self.multiple)

    def cut(self, elements: Elements) -> Hashable:
        """Equal for reducers whose `segments` are the same, so that they can share a reading."""
        return elements.cut(self.multiple)

    def reads(self, elements: Elements) -> int:
        """How many elements those pieces hold."""
        return elements.count

    @abstractmethod
    def begin(self, elements: Elements) -> None:
        """These are the elements that will come."""

    @abstractmethod
    def take(self, segment: Segment, scratch: Scratch) -> Part:
        """What there is to add of a segment; not in scratch memory. May run in any thread, so it
        changes nothing but what belongs to the elements of this segment alone."""

    @abstractmethod
    def add(self, part: Part) -> None:
        """Take in what `take` gave."""

    @abstractmethod
    def result(self) -> Any:
        """What was found out."""


def read(
    elements: Elements,
    reducers: Sequence[Reducer[Any]],
    *,
    threads: int = 1,
    advance: Callable[[int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> None:
    """Reads a tensor once for reducers whose segments are the same, which have their results
    then. The other arguments, and what is raised, are as for `map_segments`."""
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
