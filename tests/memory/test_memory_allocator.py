"""The simulation of the caching allocator, compared with a slow and obvious one, with the constants
in torch's headers, and with examples computed by hand."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtui_core.memory.replay import allocator
from qtui_core.memory.replay.allocator import (
    AllocatorRun,
    AllocatorSettings,
    Block,
    CachingAllocator,
    Levels,
    Pool,
    simulate,
    warm_up_bytes,
)
from qtui_core.memory.replay.record import (
    ALLOCATE,
    EMPTY_CACHE,
    FREE,
    LAYER,
    OPERATION,
    PHASE,
    Event,
    rounded,
)
from tests.support.slow_timeline import live_peak

KIB, MIB = 1 << 10, 1 << 20


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
def test_every_phase_equals_the_slow_allocator(segments, capacity):
    ended = 0
    for seed in range(12):
        events = random_events(Random(seed), 220, 60 * MIB)
        options = AllocatorSettings(segments, capacity)
        run = simulate(events, options)
        levels, retries = slow_run(events, options)
        assert run.retries == retries
        assert run.out_of_memory == (len(levels) < len(events))
        ended += run.out_of_memory
        expected = [[i for i in phase if i < len(levels)] for phase in phases_of(events)]
        expected = [phase for phase in expected if phase]
        assert len(run.phases) == len(expected)
        for phase, indices in zip(run.phases, expected, strict=True):
            if not run.out_of_memory or phase is not run.phases[-1]:
                assert phase.end == levels[indices[-1]]
                assert phase.peak == most([levels[index] for index in indices])
    assert (ended > 0) == (capacity is not None)


@settings(max_examples=60)
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
    assert sum(sizes) <= peak.allocated
    assert live_peak(events) <= peak.allocated <= peak.reserved
    assert run.end.allocated == 0
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
    assert (peak.allocated, peak.reserved) == (allocated, reserved)
    expandable = simulate(allocate(size), AllocatorSettings("expandable")).peak
    page = 2 * MIB if size <= MIB else 20 * MIB
    assert expandable.allocated == rounded(size)
    assert expandable.reserved == -(-rounded(size) // page) * page


def test_the_smallest_block_that_fits_is_taken_and_the_lower_address_of_equal_ones():
    # Three segments of 30, 20 and 20 MiB, freed; addresses fall, so that 19 MiB come from the last.
    events = [*allocate(30 * MIB, 20 * MIB, 20 * MIB), (FREE, 0), (FREE, 1), (FREE, 2)]
    allocator = CachingAllocator(AllocatorSettings())
    blocks = [allocator.malloc(event[2]) for event in events[:3]]
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(19 * MIB) is blocks[2]
    assert allocator.malloc(19 * MIB) is blocks[1]
    assert allocator.malloc(19 * MIB) is blocks[0]


def test_freed_neighbours_become_one_block():
    # Four quarters of a 20 MiB segment; the middle two together hold 10 MiB, the outer ones not.
    events = allocate(*(5 * MIB,) * 4)
    middle = [*events, (FREE, 1), (FREE, 2), (ALLOCATE, 9, 10 * MIB, "tensor")]
    outer = [*events, (FREE, 0), (FREE, 3), (ALLOCATE, 9, 10 * MIB, "tensor")]
    assert simulate(middle).peak.reserved == 20 * MIB
    assert simulate(outer).peak.reserved == 30 * MIB


def test_a_warm_up_leaves_one_segment_for_all_weights():
    weights = [33 * MIB + 700 * KIB, 3 * MIB, 4 * KIB, 17 * MIB] * 20
    cold = simulate(allocate(*weights)).peak
    total = sum(weights)
    start: list[Event] = [(ALLOCATE, -1, warm_up_bytes(total), "warm-up"), (FREE, -1)]
    warm = simulate([*start, *allocate(*weights)]).peak
    assert warm.reserved == -(-total // (2 * MIB)) * 2 * MIB + 2 * MIB
    assert cold.reserved > warm.reserved


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
    assert not run.out_of_memory
    assert run.peak.reserved == 100 * MIB
    assert simulate(events).peak.reserved == 160 * MIB


def test_a_full_device_ends_the_run_where_it_happened():
    events: list[Event] = [(PHASE, "load"), *allocate(60 * MIB, 100 * MIB), (FREE, 0)]
    run = simulate(events, AllocatorSettings(capacity=120 * MIB))
    assert run.out_of_memory
    assert (run.end.allocated, run.end.reserved) == (60 * MIB, 60 * MIB)


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
    assert run.peak.allocated == 70 * MIB


def test_nothing_asked_for_takes_nothing():
    run = simulate([(ALLOCATE, 1, 0, "empty"), (FREE, 1)])
    assert run.peak == Levels(0, 0)
    assert simulate([]) == AllocatorRun(run.phases, 0)


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
        "kSmallBuffer": allocator.SMALL_SEGMENT,
        "kMinBlockSize": allocator.MIN_BLOCK,
        "kSmallSize": allocator.SMALL_SIZE,
        "kMinLargeAlloc": allocator.MIN_LARGE,
        "kRoundLarge": allocator.ROUND_LARGE,
    }
    found = re.search(r"large_segment_size_\{(\d+)\}", text)
    assert found is not None
    assert int(found[1]) == allocator.LARGE_SEGMENT


def test_an_expandable_segment_is_as_large_as_what_it_is_for():
    """More than four million pages of 20 MiB, which no device has but a plan may request."""
    huge = 100 << 40
    run = simulate([(ALLOCATE, 1, huge, None), (FREE, 1)], AllocatorSettings("expandable"))
    assert run.peak.reserved == -(-huge // (20 << 20)) * (20 << 20)
    full = simulate([(ALLOCATE, 1, huge, None)], AllocatorSettings("expandable", capacity=1 << 40))
    assert full.out_of_memory


@pytest.mark.parametrize("seed", range(20))
def test_a_pool_answers_like_one_sorted_list(seed):
    random = Random(seed)
    pool = Pool(2 * MIB, 512)
    flat: list[tuple[int, int]] = []  # (size, address)
    blocks: dict[int, Block] = {}
    sizes = [512 * random.randint(1, 40) for _ in range(random.choice((1, 3, 30)))]
    for step in range(400):
        draw = random.random()
        least = 512 * random.randint(1, 42)
        if draw < 0.5:
            size, address = random.choice(sizes), (2 * step + 1) * random.choice((1, -1)) << 20
            blocks[address] = Block(pool, address, size)
            pool.add(blocks[address])
            insort(flat, (size, address))
        elif draw < 0.7 and flat:
            _, address = flat.pop(random.randrange(len(flat)))
            pool.remove(blocks[address])
        elif draw < 0.9:
            index = bisect_left(flat, (least, -(1 << 60)))
            expected = flat.pop(index) if index < len(flat) else None
            first, taken = pool.first(least), pool.take(least)
            assert first is taken
            assert (taken and (taken.size, taken.address)) == expected
        elif flat:
            index = bisect_left(flat, (1024, -(1 << 60)))
            if index < len(flat):
                size, address = flat.pop(index)
                block = pool.take(1024)
                assert block is blocks[address]
                pool.cut(block, 512)
                assert block.next is not None
                blocks[block.next.address] = block.next
                insort(flat, (size - 512, address + 512))
        assert [(b.size, b.address) for b in pool.free()] == flat
        assert [b.size for b in pool.free(least)] == [s for s, _ in flat if s >= least]


def test_a_temporary_costs_no_more_beside_many_free_blocks():
    """Half of very many buffers of one size are freed, below and above the sizes of others; then
    temporaries come and go. A sorted list of all free blocks would move the half each time."""

    def seconds(count: int) -> float:
        allocator = CachingAllocator(AllocatorSettings())
        held = [allocator.malloc(size) for _ in range(count) for size in (4096, 512)]
        for block in held[::2]:
            allocator.free(block)
        best = 1e9
        for _ in range(3):
            started = process_time()
            for _ in range(2000):
                allocator.free(allocator.malloc(1024))
                allocator.free(allocator.malloc(8192))
            best = min(best, process_time() - started)
        return best

    assert seconds(60_000) < 5 * seconds(60)
