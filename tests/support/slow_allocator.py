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
    """A row of bytes: a cudaMalloc segment, or the address space of an expandable segment.

    `used` are the allocated blocks as {start: end}; `pages` are the pages that have memory, or None
    if all have. Nothing else is stored: free blocks are what is in between.
    """

    small: bool
    base: int
    size: int
    page: int = 0
    pages: set[int] | None = None
    used: dict[int, int] = field(default_factory=dict)

    def has_memory(self, offset: int) -> bool:
        return self.pages is None or offset // self.page in self.pages

    def gaps(self, mapped: bool) -> list[tuple[int, int]]:
        """(start, end) of free ranges that have memory, or have none, divided where that
        changes."""
        edges = {0, self.size, *self.used, *self.used.values()}
        if self.pages is not None:
            last = max(self.pages, default=-1) + 2
            edges |= {page * self.page for page in range(last)}
        starts = sorted(edge for edge in edges if edge <= self.size)
        found: list[tuple[int, int]] = []
        for start, end in pairwise(starts):
            if any(first <= start < last for first, last in self.used.items()):
                continue
            if self.has_memory(start) != mapped:
                continue
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
        return found


class SlowAllocator:
    """The rules, in the order of the documentation."""

    def __init__(self, settings: AllocatorSettings) -> None:
        self.settings = settings
        self.expandable = settings.segments == "expandable"
        self.spaces: list[Space] = []
        self.blocks: dict[int, tuple[Space, int, int]] = {}
        self.next_base = 0
        self.retries = 0

    @property
    def reserved(self) -> int:
        return sum(
            space.size if space.pages is None else len(space.pages) * space.page
            for space in self.spaces
        )

    @property
    def levels(self) -> Levels:
        return Levels(
            allocated=sum(space.used[start] - start for space, start, _ in self.blocks.values()),
            reserved=self.reserved,
        )

    def malloc(self, name: int, nbytes: int) -> None:
        size = max(512, (nbytes + 511) // 512 * 512)
        small = size <= MIB
        space, start, end = (
            self.cached(small, size)
            or self.fresh(small, size)
            or (self.give_back_all() and self.fresh(small, size))
            or self.fail()
        )
        rest = end - start - size
        if rest >= 512 if small or self.expandable else rest > MIB:
            end = start + size
        space.used[start] = end
        self.blocks[name] = (space, start, nbytes)

    def free(self, name: int) -> None:
        space, start, _ = self.blocks.pop(name)
        del space.used[start]

    def free_blocks(self, small: bool) -> list[tuple[int, int, Space, int, int]]:
        """(size, address, space, start, end) of cached blocks, smallest first."""
        return sorted(
            (
                (end - start, space.base + start, space, start, end)
                for space in self.spaces
                if space.small == small
                for start, end in space.gaps(mapped=True)
            ),
            key=lambda block: block[:2],
        )

    def cached(self, small: bool, size: int) -> tuple[Space, int, int] | None:
        fitting = [block for block in self.free_blocks(small) if block[0] >= size]
        if not fitting:
            return None
        if self.expandable:

            def reach(block: tuple[int, int, Space, int, int]) -> int:
                beyond = dict(block[2].gaps(mapped=False))
                return block[0] + beyond.get(block[4], block[4]) - block[4]

            while len(fitting) > 1 and reach(fitting[1]) < reach(fitting[0]):
                fitting.pop(0)
        _, _, space, start, end = fitting[0]
        return space, start, end

    def fresh(self, small: bool, size: int) -> tuple[Space, int, int] | None:
        if self.expandable:
            return self.mapped(small, size)
        if small:
            nbytes = 2 * MIB
        elif size < 10 * MIB:
            nbytes = 20 * MIB
        else:
            nbytes = (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        if not self.fits(nbytes):
            return None
        self.next_base -= nbytes
        self.spaces.append(Space(small, self.next_base, nbytes))
        return self.spaces[-1], 0, nbytes

    def mapped(self, small: bool, size: int) -> tuple[Space, int, int] | None:
        page = 2 * MIB if small else 20 * MIB
        space = next((space for space in self.spaces if space.small == small), None)
        if space is None:
            space = Space(small, self.next_base, page << 22, page, set())
            self.next_base += 1 << 60
            self.spaces.append(space)
        assert space.pages is not None
        # The lowest free range that is large enough and has a page to map: it begins at a free
        # block before unmapped pages, or at such pages.
        holes = sorted(space.gaps(mapped=True) + space.gaps(mapped=False))
        for index, (start, end) in enumerate(holes):
            if index + 1 < len(holes) and space.has_memory(start) and holes[index + 1][0] != end:
                continue
            if space.has_memory(start) and index + 1 == len(holes):
                continue
            reach = end
            for following in holes[index + 1 :]:
                if following[0] != reach:
                    break
                reach = following[1]
            if reach - start >= size:
                break
        wanted = [
            number
            for number in range(start // page, -(-(start + size) // page))
            if number not in space.pages
        ]
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
        capacity = self.settings.capacity
        return capacity is None or self.reserved + nbytes <= capacity

    def give_back_all(self) -> bool:
        self.empty_cache()
        self.retries += 1
        return True

    def empty_cache(self) -> None:
        self.spaces = [space for space in self.spaces if space.pages is not None or space.used]
        for space in self.spaces:
            if space.pages is not None:
                space.pages -= {
                    page
                    for start, end in space.gaps(mapped=True)
                    for page in range(-(-start // space.page), end // space.page)
                }

    def fail(self) -> tuple[Space, int, int]:
        raise Exhausted


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
