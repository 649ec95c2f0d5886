"""Torch's caching allocator as its documentation describes it. It stores nothing that can be
recomputed, and so is slow; the fast allocator is compared with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from qtui_core.memory.replay.allocator import AllocatorSettings, Levels
from qtui_core.memory.replay.record import ALLOCATE, EMPTY_CACHE, FREE, Event

MIB = 1 << 20


class Exhausted(Exception):
    """The slow allocator has no more memory."""


@dataclass
class Space:
    """A row of bytes: a cudaMalloc segment, which is one page, or the address space of an
    expandable segment.

    `pages` are the pages that have memory, `used` the allocated blocks as {start: end}. Nothing
    else is stored: free blocks are what is in between.
    """

    small: bool
    base: int
    size: int
    page: int
    pages: set[int]
    used: dict[int, int] = field(default_factory=dict)

    def has_memory(self, offset: int) -> bool:
        return offset // self.page in self.pages

    def gaps(self, mapped: bool) -> list[tuple[int, int]]:
        """(start, end) of free ranges that have memory, or have none, divided where that
        changes."""
        edges = {0, self.size, *self.used, *self.used.values()}
        edges |= {edge * self.page for n in self.pages for edge in (n, n + 1)}
        found: list[tuple[int, int]] = []
        for start, end in pairwise(sorted(edges)):
            taken = any(first <= start < last for first, last in self.used.items())
            if taken or self.has_memory(start) != mapped:
                continue
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, end))
        return found


Place = tuple[Space, int, int]


class SlowAllocator:
    """The rules, in the order of the documentation."""

    def __init__(self, settings: AllocatorSettings) -> None:
        self.capacity = settings.capacity
        self.expandable = settings.segments == "expandable"
        self.spaces: list[Space] = []
        self.blocks: dict[int, tuple[Space, int, int]] = {}
        self.next_base = 0
        self.retries = 0

    @property
    def levels(self) -> Levels:
        allocated = sum(space.used[start] - start for space, start, _ in self.blocks.values())
        return Levels(allocated, sum(len(space.pages) * space.page for space in self.spaces))

    def malloc(self, name: int, nbytes: int) -> None:
        size = max(512, (nbytes + 511) // 512 * 512)
        small = size <= MIB
        place = self.cached(small, size) or self.fresh(small, size)
        if place is None:
            self.empty_cache()
            self.retries += 1
            place = self.fresh(small, size)
        if place is None:
            raise Exhausted
        space, start, end = place
        rest = end - start - size
        if rest >= 512 if small or self.expandable else rest > MIB:
            end = start + size
        space.used[start] = end
        self.blocks[name] = (space, start, nbytes)

    def free(self, name: int) -> None:
        space, start, _ = self.blocks.pop(name)
        del space.used[start]

    def cached(self, small: bool, size: int) -> Place | None:
        """The smallest cached block that is large enough, at the lowest address."""
        fitting = sorted(
            (
                (end - start, space.base + start, (space, start, end))
                for space in self.spaces
                if space.small == small
                for start, end in space.gaps(mapped=True)
                if end - start >= size
            ),
            key=lambda block: block[:2],
        )

        def reach(block: tuple[int, int, Place]) -> int:
            """Its size with what lies behind it without memory."""
            nbytes, _, (space, _, end) = block
            return nbytes + dict(space.gaps(mapped=False)).get(end, end) - end

        while self.expandable and len(fitting) > 1 and reach(fitting[1]) < reach(fitting[0]):
            fitting.pop(0)
        return fitting[0][2] if fitting else None

    def fresh(self, small: bool, size: int) -> Place | None:
        if self.expandable:
            return self.mapped(small, size)
        rounded = (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        nbytes = 2 * MIB if small else 20 * MIB if size < 10 * MIB else rounded
        if not self.fits(nbytes):
            return None
        self.next_base -= nbytes
        self.spaces.append(Space(small, self.next_base, nbytes, nbytes, {0}))
        return self.spaces[-1], 0, nbytes

    def mapped(self, small: bool, size: int) -> Place | None:
        page = 2 * MIB if small else 20 * MIB
        space = next((space for space in self.spaces if space.small == small), None)
        if space is None:
            space = Space(small, self.next_base, page << 22, page, set())
            self.next_base += 1 << 60
            self.spaces.append(space)
        # The lowest free range that is large enough and has a page to map: it begins at a free
        # block before unmapped pages, or at such pages.
        holes = sorted(space.gaps(mapped=True) + space.gaps(mapped=False))
        for index, (start, reach) in enumerate(holes):
            following = holes[index + 1 :]
            if space.has_memory(start) and (not following or following[0][0] != reach):
                continue
            for first, last in following:
                if first != reach:
                    break
                reach = last
            if reach - start >= size:
                break
        every = range(start // page, -(-(start + size) // page))
        wanted = [n for n in every if n not in space.pages]
        # Each run of pages is mapped as a whole or not at all.
        while wanted:
            run = [n for i, n in enumerate(wanted) if n == wanted[0] + i]
            if not self.fits(len(run) * page):
                return None
            space.pages |= set(run)
            wanted = wanted[len(run) :]
        found = next(gap for gap in space.gaps(mapped=True) if gap[0] <= start < gap[1])
        return space, *found

    def fits(self, nbytes: int) -> bool:
        return self.capacity is None or self.levels.reserved + nbytes <= self.capacity

    def empty_cache(self) -> None:
        for space in self.spaces:
            space.pages -= {
                page
                for start, end in space.gaps(mapped=True)
                for page in range(-(-start // space.page), end // space.page)
            }
        self.spaces = [space for space in self.spaces if self.expandable or space.pages]


def slow_run(events: list[Event], settings: AllocatorSettings) -> tuple[list[Levels], int]:
    """The levels after each event, up to the one that failed, and the number of retries."""
    allocator = SlowAllocator(settings)
    levels = []
    for event in events:
        try:
            if event[0] == ALLOCATE:
                allocator.malloc(event[1], event[2])
            elif event[0] == FREE:
                allocator.free(event[1])
            elif event[0] == EMPTY_CACHE:
                allocator.empty_cache()
        except Exhausted:
            break
        levels.append(allocator.levels)
    return levels, allocator.retries
