"""The simulation of the caching allocator: against a second one that is slow and obvious, against
the constants in torch's headers, and against examples worked by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtui_core.errors import UsageError
from qtui_core.memory import caching_allocator
from qtui_core.memory.allocator import (
    AllocatorRun,
    AllocatorSettings,
    Levels,
    simulate,
    warm_up_bytes,
)
from qtui_core.memory.record import (
    ALLOCATE,
    EMPTY_CACHE,
    FREE,
    LAYER,
    OPERATION,
    PHASE,
    Event,
    live_peak,
    rounded,
)

KIB, MIB = 1 << 10, 1 << 20


class Exhausted(Exception):
    """The slow allocator has no more memory."""


@dataclass
class Space:
    """A row of bytes: a cudaMalloc segment, or the address space of an expandable segment.

    `used` are the blocks handed out as {start: end}; `pages` are the pages that have memory, or
    None where all has. Nothing else is stored: free blocks are what is between.
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
        """(start, end) of what is free, cut where memory begins or ends, of the state asked for."""
        edges = {0, self.size, *self.used, *self.used.values()}
        if self.pages is not None:
            last = max(self.pages, default=-1) + 2
            edges |= {page * self.page for page in range(last)}
        starts = sorted(edge for edge in edges if edge <= self.size)
        found: list[tuple[int, int]] = []
        for start, end in zip(starts, starts[1:], strict=False):
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
    """The documented rules over intervals, with nothing kept that can be recomputed."""

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
        split = 0
        for space in self.spaces:
            if space.pages is None:
                gaps = space.gaps(mapped=True)
                split += sum(end - start for start, end in gaps if end - start < space.size)
        return Levels(
            requested=sum(requested for _, _, requested in self.blocks.values()),
            allocated=sum(space.used[start] - start for space, start, _ in self.blocks.values()),
            reserved=self.reserved,
            inactive_split=split,
            segments=sum(space.pages is None for space in self.spaces),
        )

    def malloc(self, name: int, nbytes: int) -> None:
        size = max(512, (nbytes + 511) // 512 * 512)
        small = size <= MIB
        space, start, end = (
            self.cached(small, size)
            or self.fresh(small, size)
            or (self.give_back_oversize(small, size) and self.fresh(small, size))
            or (self.give_back_all() and self.fresh(small, size))
            or self.fail()
        )
        rest = end - start - size
        limit = self.settings.max_split or 1 << 60
        if rest >= 512 if small or self.expandable else rest > MIB and size < limit:
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
        found, _, space, start, end = fitting[0]
        limit = self.settings.max_split
        if limit and size < limit <= found:
            return None
        if limit and limit <= size and found >= size + self.settings.max_non_split_rounding:
            return None
        return space, start, end

    def fresh(self, small: bool, size: int) -> tuple[Space, int, int] | None:
        if self.expandable:
            return self.mapped(small, size)
        if small:
            nbytes = 2 * MIB
        elif size < 10 * MIB:
            nbytes = self.settings.large_segment
        else:
            nbytes = (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        if not self.fits(nbytes):
            return None
        self.spaces.append(Space(small, self.next_base, nbytes))
        self.next_base += nbytes
        return self.spaces[-1], 0, nbytes

    def mapped(self, small: bool, size: int) -> tuple[Space, int, int] | None:
        page = 2 * MIB if small else self.settings.large_segment
        space = next((space for space in self.spaces if space.small == small), None)
        if space is None:
            space = Space(small, self.next_base, page << 22, page, set())
            self.next_base += 1 << 60
            self.spaces.append(space)
        assert space.pages is not None
        # The lowest free range that holds it and has a page to map: it begins at a free block
        # before unmapped pages, or at such pages.
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
        # Each run of pages is mapped at once or not at all.
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

    def give_back_oversize(self, small: bool, size: int) -> bool:
        if not self.settings.max_split:
            return False
        wanted = max(size, self.settings.max_split)
        oversize = [
            block
            for block in self.free_blocks(small)
            if block[0] >= self.settings.max_split and block[2].pages is None
        ]
        enough = [block for block in oversize if block[0] >= wanted]
        if enough:
            self.spaces.remove(enough[0][2])
            return True
        total = 0
        while oversize and total < wanted:
            size, _, space, _, _ = oversize.pop()
            self.spaces.remove(space)
            total += size
        return total >= wanted

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
    """The levels after each event, to the one that failed, and the number of retries."""
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


def random_events(random: Random, length: int, largest: int) -> list[Event]:
    """Allocations of sizes around every threshold, frees in random order, now and then a phase or
    an empty_cache."""
    events: list[Event] = [(PHASE, "load")]
    alive: list[int] = []
    edges = (512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 40 * MIB)
    for name in range(length):
        draw = random.random()
        if draw < 0.02:
            events.append((EMPTY_CACHE,))
        elif draw < 0.05:
            events.append((PHASE, f"phase {name}"))
        elif alive and draw < 0.48:
            events.append((FREE, alive.pop(random.randrange(len(alive)))))
        else:
            nbytes = random.choice(
                (
                    random.randint(1, 4096),
                    random.randint(1, MIB),
                    random.randint(MIB, 10 * MIB),
                    random.randint(1, largest),
                    random.choice(edges) + random.choice((-511, -1, 0, 1, 512)),
                )
            )
            events.append((ALLOCATE, name, nbytes, "tensor"))
            alive.append(name)
    return events


def phases_of(events: list[Event]) -> list[list[int]]:
    """Indices of the events of each phase, each with the one before that set its levels."""
    phases: list[list[int]] = []
    for index, event in enumerate(events):
        if event[0] == PHASE:
            phases.append([index])
        elif phases:
            phases[-1].append(index)
    return phases


def most(levels: list[Levels]) -> Levels:
    return Levels(
        *(max(getattr(level, name) for level in levels) for name in Levels.__dataclass_fields__)
    )


@pytest.mark.parametrize("segments", ["native", "expandable"])
@pytest.mark.parametrize("capacity", [None, 300 * MIB])
@pytest.mark.parametrize("max_split", [None, 32 * MIB])
def test_every_phase_equals_the_slow_allocator(segments, capacity, max_split):
    ended = 0
    for seed in range(12):
        events = random_events(Random(seed), 220, 60 * MIB)
        options = AllocatorSettings(segments, capacity, max_split)
        run = simulate(events, options)
        levels, retries = slow_run(events, options)
        assert run.retries == retries
        assert (run.out_of_memory is not None) == (len(levels) < len(events))
        if run.out_of_memory is not None:
            ended += 1
            assert run.out_of_memory.event == len(levels)
            assert run.out_of_memory.bytes == events[len(levels)][2]
        expected = [[i for i in phase if i < len(levels)] for phase in phases_of(events)]
        expected = [phase for phase in expected if phase]
        assert len(run.phases) == len(expected)
        for phase, indices in zip(run.phases, expected, strict=True):
            if run.out_of_memory is None or phase is not run.phases[-1]:
                assert phase.end == levels[indices[-1]]
                assert phase.peak == most([levels[index] for index in indices])
    assert (ended > 0) == (capacity is not None)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 48 * MIB), min_size=1, max_size=40),
    seed=st.integers(0, 1 << 20),
    segments=st.sampled_from(["native", "expandable"]),
)
def test_levels_are_ordered_and_all_is_given_back(sizes, seed, segments):
    random = Random(seed)
    events: list[Event] = [(ALLOCATE, i, size, "tensor") for i, size in enumerate(sizes)]
    order = list(range(len(sizes)))
    random.shuffle(order)
    events += [(FREE, i) for i in order]
    run = simulate(events, AllocatorSettings(segments))
    peak = run.peak
    assert sum(sizes) == peak.requested
    assert live_peak(events) <= peak.allocated <= peak.reserved
    assert run.end.requested == run.end.allocated == run.end.inactive_split == 0
    assert run.end.reserved == peak.reserved
    assert simulate([*events, (EMPTY_CACHE,)], AllocatorSettings(segments)).end.reserved == 0


def test_expandable_segments_have_no_slack_beyond_512_bytes():
    events = random_events(Random(5), 400, 60 * MIB)
    run = simulate(events, AllocatorSettings("expandable"))
    assert run.peak.allocated == live_peak(events)


def allocate(*sizes: int) -> list[Event]:
    return [(ALLOCATE, index, size, "tensor") for index, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        # One byte more comes from the large pool: 20 MiB, of which the rest is cut off.
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        # From 10 MiB on a segment is its own, in steps of 2 MiB; up to 1 MiB stays uncut.
        (11 * MIB, 12 * MIB, 12 * MIB),
        (10 * MIB + 512, 10 * MIB + 512, 12 * MIB),
        (500 * MIB, 500 * MIB, 500 * MIB),
        (501 * MIB, 502 * MIB, 502 * MIB),
    ],
)
def test_one_tensor_on_its_own(size, allocated, reserved):
    peak = simulate(allocate(size)).peak
    assert (peak.requested, peak.allocated, peak.reserved) == (size, allocated, reserved)
    assert peak.segments == 1
    expandable = simulate(allocate(size), AllocatorSettings("expandable")).peak
    page = 2 * MIB if size <= MIB else 20 * MIB
    assert expandable.allocated == rounded(size)
    assert expandable.reserved == -(-rounded(size) // page) * page


def test_the_smallest_block_that_fits_is_taken_and_the_lower_address_of_equal_ones():
    # Three segments of 30, 20 and 20 MiB, freed; 19 MiB come from the first of the two of 20.
    events = [*allocate(30 * MIB, 20 * MIB, 20 * MIB), (FREE, 0), (FREE, 1), (FREE, 2)]
    allocator = caching_allocator.CachingAllocator()
    blocks = [allocator.malloc(event[2]) for event in events[:3]]
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(19 * MIB) is blocks[1]
    assert allocator.malloc(19 * MIB) is blocks[2]
    assert allocator.malloc(19 * MIB) is blocks[0]


def test_freed_neighbours_become_one_block():
    # Four quarters of a 20 MiB segment; the middle two together hold 10 MiB, the outer ones not.
    events = allocate(*(5 * MIB,) * 4)
    middle = [*events, (FREE, 1), (FREE, 2), (ALLOCATE, 9, 10 * MIB, "tensor")]
    outer = [*events, (FREE, 0), (FREE, 3), (ALLOCATE, 9, 10 * MIB, "tensor")]
    assert simulate(middle).peak.reserved == 20 * MIB
    assert simulate(outer).peak.reserved == 30 * MIB
    assert simulate(outer).end.inactive_split == 10 * MIB


def test_a_warm_up_leaves_one_segment_for_all_weights():
    weights = [33 * MIB + 700 * KIB, 3 * MIB, 4 * KIB, 17 * MIB] * 20
    cold = simulate(allocate(*weights)).peak
    total = sum(weights)
    start: list[Event] = [(ALLOCATE, -1, warm_up_bytes(total), "warm-up"), (FREE, -1)]
    warm = simulate([*start, *allocate(*weights)]).peak
    assert warm.segments == 2
    assert warm.reserved == -(-total // (2 * MIB)) * 2 * MIB + 2 * MIB
    assert cold.reserved > warm.reserved
    assert cold.segments > 20


def test_warm_up_leaves_a_part_of_the_device_free():
    # 1.2 GiB, and whole elements of float16.
    assert warm_up_bytes(7 << 30, 80 << 30) == 7 << 30
    assert warm_up_bytes(101, None) == 100
    assert warm_up_bytes(24 << 30, 24 << 30) == (24 << 30) - 1_288_490_190
    assert warm_up_bytes(1 << 30, 1 << 30) == 0


def test_cached_blocks_are_given_back_when_the_device_is_full():
    # 60 MiB are cached as one segment; 100 MiB more do not fit beside them.
    events = [*allocate(60 * MIB), (FREE, 0), (ALLOCATE, 1, 100 * MIB, "tensor")]
    run = simulate(events, AllocatorSettings(capacity=120 * MIB))
    assert run.retries == 1
    assert run.out_of_memory is None
    assert run.peak.reserved == 100 * MIB
    assert simulate(events).peak.reserved == 160 * MIB
    assert run.reserved_curve == ((0, 60 * MIB), (2, 100 * MIB))


def test_a_full_device_ends_the_run_where_it_happened():
    events: list[Event] = [(PHASE, "load"), *allocate(60 * MIB, 100 * MIB), (FREE, 0)]
    run = simulate(events, AllocatorSettings(capacity=120 * MIB))
    assert run.out_of_memory is not None
    assert (run.out_of_memory.event, run.out_of_memory.phase) == (2, "load")
    assert run.out_of_memory.bytes == 100 * MIB
    assert run.out_of_memory.levels.reserved == 60 * MIB


def test_peaks_start_anew_with_each_phase():
    events: list[Event] = [
        (PHASE, "forward"),
        (LAYER, 0, "forward"),
        *allocate(30 * MIB, 40 * MIB),
        (FREE, 1),
        (PHASE, "backward"),
        (OPERATION, "mm", "head"),
        (ALLOCATE, 2, 20 * MIB, "tensor"),
    ]
    run = simulate(events)
    assert [phase.name for phase in run.phases] == ["forward", "backward"]
    assert run.phases[0].peak.allocated == 70 * MIB
    assert run.phases[0].end.allocated == 30 * MIB
    assert run.phases[1].peak.allocated == 50 * MIB
    assert run.phases[1].peak.reserved == 70 * MIB
    assert run.peak_since(1).allocated == 50 * MIB
    assert run.peak.allocated == 70 * MIB


def test_nothing_asked_for_takes_nothing():
    run = simulate([(ALLOCATE, 1, 0, "empty"), (FREE, 1)])
    assert run.peak == Levels(0, 0, 0, 0, 0)
    assert simulate([]) == AllocatorRun(run.phases, (), 0)


def test_blocks_are_not_split_from_max_split_size_on():
    # A cached block of 60 MiB serves 50 MiB as it is, not 30 MiB, and not 33 MiB, which would
    # waste more than 20 MiB.
    options = AllocatorSettings(max_split=32 * MIB)

    def after(size: int) -> Levels:
        events = [*allocate(60 * MIB), (FREE, 0), (ALLOCATE, 1, size, "tensor")]
        return simulate(events, options).end

    assert after(50 * MIB).reserved == after(50 * MIB).allocated == 60 * MIB
    assert after(30 * MIB).reserved == 90 * MIB
    assert after(33 * MIB).reserved == 94 * MIB


def test_a_max_split_size_that_torch_refuses_is_refused():
    with pytest.raises(UsageError, match="20 MiB"):
        AllocatorSettings(max_split=20 * MIB)


def test_constants_are_those_of_the_installed_headers():
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    header = Path(torch.origin).parent / "include/c10/core/AllocatorConfig.h"
    text = header.read_text()
    constants = {
        name: int(value) for name, value in re.findall(r"constexpr size_t (k\w+) = (\d+);", text)
    }
    assert constants == {
        "kSmallBuffer": caching_allocator.SMALL_SEGMENT,
        "kMinBlockSize": caching_allocator.MIN_BLOCK,
        "kSmallSize": caching_allocator.SMALL_SIZE,
        "kMinLargeAlloc": caching_allocator.MIN_LARGE,
        "kRoundLarge": caching_allocator.ROUND_LARGE,
    }
    found = re.search(r"large_segment_size_\{(\d+)\}", text)
    assert found is not None
    assert int(found[1]) == caching_allocator.LARGE_SEGMENT
