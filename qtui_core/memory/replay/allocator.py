"""Reserved bytes: a recording replayed through torch's caching allocator, on one device and stream.

The requested bytes are fewer than the allocated ones (blocks are multiples of 512 bytes, and a
large block may keep up to 1 MiB more than requested), and these are fewer than the reserved ones
(segments that were taken from the device and not given back).

The rules are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.8 to 2.13). Not modelled: other
streams, private pools of CUDA graphs, garbage_collection_threshold, roundup_power2_divisions.

cudaMalloc is assumed to return falling addresses, which decides between free blocks of the same
size. With this, the reserved bytes of all 20 plans with unquantized weights that were measured on a
T4 agree within 14 MiB, and of 14 plans to the byte; with rising addresses 8 are off by 46 to 512
MiB.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.folding import repeated_events
from qtui_core.memory.replay.record import EMPTY_CACHE, HAND_BACK, HOLD_BACK, PHASE, Event

MIB: Final = 1 << 20
#: kMinBlockSize: sizes are rounded up to a multiple of it.
MIN_BLOCK: Final = 512
#: kSmallSize: requests up to this come from the pool of small blocks.
SMALL_SIZE: Final = MIB
#: kSmallBuffer: the size of segments, or pages, of the small pool.
SMALL_SEGMENT: Final = 2 * MIB
#: large_segment_size: segments for 1 to 10 MiB, and pages of expandable segments.
LARGE_SEGMENT: Final = 20 * MIB
#: kMinLargeAlloc: a request of this size or more gets its own segment.
MIN_LARGE: Final = 10 * MIB
#: kRoundLarge: the size of such a segment is rounded up to a multiple of it.
ROUND_LARGE: Final = 2 * MIB

#: States of a block. Only blocks of expandable segments can be unmapped: without memory.
IN_USE: Final = 0
FREE: Final = 1
UNMAPPED: Final = 2


class Block:
    """A piece of a segment, with its neighbours in it. Addresses and sizes in bytes."""

    __slots__ = ("address", "next", "pool", "previous", "size", "state")

    def __init__(self, pool: Pool, address: int, size: int) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.state = FREE
        self.previous: Block | None = None
        self.next: Block | None = None

    @property
    def reach(self) -> int:
        """Bytes to which it could grow: its own and those of the unmapped blocks after it."""
        behind = self.next
        return self.size + (behind.size if behind is not None and behind.state == UNMAPPED else 0)


class Pool:
    """Free blocks of one kind, by size and then by address.

    A recording has many free blocks, thousands if it has hundreds of layers, but of few sizes. So
    only the sizes are kept sorted, and each has a row of blocks. The first block of a row is the
    one that is taken and given back most; it is at the row's end, where a list is quick.

    Attributes:
        page: the size in which its expandable segments grow.
        least_rest: a block is split if it is larger than requested by more than this.
        sizes: of the free blocks, each once, sorted.
        rows: the free blocks of each size, by falling address.
        unmapped: address space without memory, by address.
        absorbed: objects of blocks that were merged into others, to be reused: making new objects
            is a large part of the cost of a split.
    """

    __slots__ = ("absorbed", "least_rest", "page", "rows", "sizes", "unmapped")

    def __init__(self, page: int, least_rest: int) -> None:
        self.page = page
        self.least_rest = least_rest
        self.sizes: list[int] = []
        self.rows: dict[int, list[Block]] = {}
        self.unmapped: list[Block] = []
        self.absorbed: list[Block] = []

    def add(self, block: Block) -> None:
        size = block.size
        row = self.rows.get(size)
        if row is None:
            self.rows[size] = [block]
            insort(self.sizes, size)
        elif block.address < row[-1].address:
            row.append(block)
        else:
            insort(row, block, key=_falling)

    def remove(self, block: Block) -> None:
        size = block.size
        row = self.rows[size]
        if len(row) == 1:
            del self.rows[size]
            del self.sizes[bisect_left(self.sizes, size)]
        elif row[-1] is block:
            row.pop()
        else:
            del row[bisect_left(row, -block.address, key=_falling)]

    def first(self, least: int) -> Block | None:
        """The first free block of at least a size, if there is one."""
        index = bisect_left(self.sizes, least)
        return self.rows[self.sizes[index]][-1] if index < len(self.sizes) else None

    def take(self, least: int) -> Block | None:
        """Removes the first free block of at least a size, if there is one."""
        sizes = self.sizes
        index = bisect_left(sizes, least)
        if index == len(sizes):
            return None
        row = self.rows[sizes[index]]
        if len(row) == 1:
            del self.rows[sizes.pop(index)]
        return row.pop()

    def free(self, least: int = 0) -> Iterator[Block]:
        """The free blocks of at least a size, in order. None may be added or removed while they
        are read."""
        for size in self.sizes[bisect_left(self.sizes, least) :]:
            yield from reversed(self.rows[size])

    def add_unmapped(self, block: Block) -> None:
        insort(self.unmapped, block, key=lambda other: other.address)

    def cut(self, block: Block, size: int) -> None:
        """Leaves `size` bytes in a block and adds the rest as a free block."""
        left = block.size - size
        if self.absorbed:
            rest = self.absorbed.pop()
            rest.address = block.address + size
            rest.size = left
            rest.state = FREE
        else:
            rest = Block(self, block.address + size, left)
        block.size = size
        link(block, rest, block.next)
        self.add(rest)


def _falling(block: Block) -> int:
    return -block.address


def link(before: Block | None, block: Block, after: Block | None) -> None:
    """Puts a block between two neighbours."""
    block.previous, block.next = before, after
    if before is not None:
        before.next = block
    if after is not None:
        after.previous = block


def merge(block: Block) -> None:
    """Merges a block that is not in its pool with those neighbours that are, like it, free or
    unmapped. They cease to exist."""
    before, after, state = block.previous, block.next, block.state
    if before is not None and before.state == state:
        _absorb(block.pool, before)
        block.address = before.address
        block.size += before.size
        further = block.previous = before.previous
        if further is not None:
            further.next = block
    if after is not None and after.state == state:
        _absorb(block.pool, after)
        block.size += after.size
        further = block.next = after.next
        if further is not None:
            further.previous = block


def _absorb(pool: Pool, block: Block) -> None:
    if block.state == FREE:
        pool.remove(block)
    else:
        pool.unmapped.remove(block)
    pool.absorbed.append(block)


#: An address above that of the first segment.
_TOP: Final = 1 << 55


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings from PYTORCH_CUDA_ALLOC_CONF, and the device. In bytes.

    Attributes:
        segments: "native" takes each segment with cudaMalloc; "expandable" grows one by pages
            (expandable_segments:True).
        capacity: what the device can give to the allocator: its memory without context, modules and
            other processes. None never fails.
    """

    segments: Literal["native", "expandable"] = "native"
    capacity: int | None = None


class DeviceFull(Exception):
    """cudaMalloc failed, also after the whole cache was given back."""


class CachingAllocator:
    """The allocator of one device, with segments from cudaMalloc. Figures are bytes.

    Attributes:
        allocated, reserved: current values, as torch.cuda.memory_stats counts them in
            "allocated_bytes" and "reserved_bytes".
        retries: how often cudaMalloc failed and the whole cache was given back.
    """

    #: The smallest rest that is split off a block for a request above 1 MiB.
    least_rest = SMALL_SIZE + 1

    def __init__(self, settings: AllocatorSettings) -> None:
        self.capacity = settings.capacity
        # A large block is split only if the rest is large enough.
        self.small = Pool(SMALL_SEGMENT, MIN_BLOCK)
        self.large = Pool(LARGE_SEGMENT, self.least_rest)
        self.allocated = 0
        self.reserved = 0
        self.retries = 0
        self._most_allocated = self._most_reserved = 0
        self._lowest = _TOP
        self._held: list[Block] = []

    def malloc(self, size: int) -> Block:
        """A block of at least `size` bytes, a positive multiple of 512. Raises DeviceFull if the
        device has no more memory."""
        pool = self.small if size <= SMALL_SIZE else self.large
        block = self._take(pool, size)
        if block is None:
            block = self._new(pool, size)
        if block.size - size >= pool.least_rest:
            pool.cut(block, size)
        block.state = IN_USE
        self.allocated += block.size
        if self.allocated > self._most_allocated:
            self._most_allocated = self.allocated
        return block

    def free(self, block: Block) -> None:
        """Returns a block to its pool, merged with its free neighbours."""
        self.allocated -= block.size
        block.state = FREE
        merge(block)
        block.pool.add(block)

    def levels(self) -> tuple[int, int]:
        """(allocated, reserved) now."""
        return self.allocated, self.reserved

    def peaks(self) -> tuple[int, int]:
        """The peak of each of `levels` since `begin_peaks`."""
        return self._most_allocated, self._most_reserved

    def begin_peaks(self) -> None:
        """torch.cuda.reset_peak_memory_stats()."""
        self._most_allocated, self._most_reserved = self.levels()

    def hold_back(self, block: Block) -> None:
        """Counts a block as freed although its memory cannot be reused yet, as for a tensor that
        another stream may still read (`Tensor.record_stream`)."""
        self.allocated -= block.size
        self._held.append(block)

    def hand_back(self) -> None:
        """Frees the blocks that were held back (process_events)."""
        for block in self._held:
            self.allocated += block.size
            self.free(block)
        self._held.clear()

    def empty_cache(self) -> None:
        """Gives back free segments: free blocks that are a whole segment."""
        for pool in (self.large, self.small):
            for block in list(pool.free()):
                if block.previous is None and block.next is None:
                    pool.remove(block)  # cudaFree
                    self.reserved -= block.size

    def _take(self, pool: Pool, size: int) -> Block | None:
        """The free block to use, if there is one, no longer in the pool."""
        return pool.take(size)

    def _new(self, pool: Pool, size: int) -> Block:
        """A block from the device: at once, or after giving back the whole cache."""
        block = self._from_device(pool, size)
        if block is None:
            self.hand_back()  # synchronize_and_free_events in release_cached_blocks
            self.empty_cache()
            self.retries += 1
            block = self._from_device(pool, size)
        if block is None:
            raise DeviceFull
        return block

    def _from_device(self, pool: Pool, size: int) -> Block | None:
        """A free block that is in no pool; None if the device has no more memory."""
        nbytes = SMALL_SEGMENT if size <= SMALL_SIZE else LARGE_SEGMENT
        if size >= MIN_LARGE:
            nbytes = -(-size // ROUND_LARGE) * ROUND_LARGE
        if not self._fits(nbytes):
            return None
        self._reserve(nbytes)
        self._lowest -= nbytes
        return Block(pool, self._lowest, nbytes)

    def _reserve(self, nbytes: int) -> None:
        self.reserved += nbytes
        self._most_reserved = max(self._most_reserved, self.reserved)

    def _fits(self, nbytes: int) -> bool:
        return self.capacity is None or self.reserved + nbytes <= self.capacity


#: The least number of pages of address space in a segment. Torch takes 9/8 of the device's memory;
#: any number that is never exhausted gives the same result.
_PAGES: Final = 1 << 22


class ExpandableAllocator(CachingAllocator):
    """A CachingAllocator whose segments are not from cudaMalloc and whose free pages can always be
    given back."""

    least_rest = MIN_BLOCK
    #: Where the next segment may begin.
    _next_address = 0

    def empty_cache(self) -> None:
        """Gives back the whole pages of free blocks."""
        for pool in (self.large, self.small):
            for block in list(pool.free()):
                self._unmap(block)

    def _take(self, pool: Pool, size: int) -> Block | None:
        # A block that can grow counts with the size that it can reach, so that it is used last.
        found = pool.first(size)
        if found is not None and found.next is not None and found.next.state == UNMAPPED:
            reach = found.reach
            for block in islice(pool.free(size), 1, None):
                if block.reach >= reach:
                    break
                found, reach = block, block.reach
        if found is not None:
            pool.remove(found)
        return found

    def _from_device(self, pool: Pool, size: int) -> Block | None:
        """A free block at the lowest address where pages can be mapped, in no pool. None if the
        device is full; pages that were mapped until then stay mapped."""
        block = self._place(pool, size)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def _place(self, pool: Pool, size: int) -> Block:
        """The first block of a row of free and unmapped blocks of `size` bytes together, whose
        first or second block is unmapped; in a new segment if there is none."""
        for block in pool.unmapped:
            before = block.previous
            start = before if before is not None and before.state != IN_USE else block
            room = 0
            piece: Block | None = start
            while room < size and piece is not None and piece.state != IN_USE:
                room += piece.size
                piece = piece.next
            if room >= size:
                return start
        nbytes = pool.page * max(_PAGES, -(-size // pool.page))
        # Aligned to its own size, and so to pages.
        address = -(-self._next_address // nbytes) * nbytes
        self._next_address = address + nbytes
        segment = Block(pool, address, nbytes)
        segment.state = UNMAPPED
        pool.add_unmapped(segment)
        return segment

    def _map(self, block: Block, nbytes: int) -> bool:
        """Maps memory to the first pages of an unmapped block, and merges them with free neighbours
        into a free block."""
        pool = block.pool
        mapped = -(-nbytes // pool.page) * pool.page
        if not self._fits(mapped):
            return False
        pool.unmapped.remove(block)
        if mapped < block.size:
            rest = Block(pool, block.address + mapped, block.size - mapped)
            rest.state = UNMAPPED
            link(block, rest, block.next)
            block.size = mapped
            pool.add_unmapped(rest)
        block.state = FREE
        merge(block)
        pool.add(block)
        self._reserve(mapped)
        return True

    def _unmap(self, block: Block) -> None:
        """Gives back the whole pages of a free block."""
        pool = block.pool
        start = -(-block.address // pool.page) * pool.page
        end = (block.address + block.size) // pool.page * pool.page
        if start >= end:
            return
        pool.remove(block)
        if start > block.address:
            before = Block(pool, block.address, start - block.address)
            link(block.previous, before, block)
            pool.add(before)
        if end < block.address + block.size:
            after = Block(pool, end, block.address + block.size - end)
            link(block, after, block.next)
            pool.add(after)
        block.address, block.size, block.state = start, end - start, UNMAPPED
        self.reserved -= block.size
        merge(block)
        # A segment without mapped pages is dropped together with its addresses.
        if block.previous is not None or block.next is not None:
            pool.add_unmapped(block)


#: Memory that caching_allocator_warmup of transformers leaves free at least.
_WARM_UP_MARGIN: Final = 1.2 * (1 << 30)


@dataclass(frozen=True)
class Levels:
    """Bytes at the levels of torch.cuda.memory_stats.

    Attributes:
        allocated: in blocks that are in use (its peak is max_memory_allocated).
        reserved: in segments (its peak is max_memory_reserved).
    """

    allocated: int
    reserved: int


@dataclass(frozen=True)
class PhaseLevels:
    """A phase: its name, the peak of each level in it, and the levels at its end."""

    name: str
    peak: Levels
    end: Levels


@dataclass(frozen=True)
class AllocatorRun:
    """The result of a replay.

    Attributes:
        phases: in order, one each time a phase begins; the events before the first are the phase
            "".
        retries: how often cudaMalloc failed and the whole cache was given back.
        out_of_memory: whether it ended before its last event, as the device had no more memory.
    """

    phases: tuple[PhaseLevels, ...]
    retries: int
    out_of_memory: bool = False

    @property
    def peak(self) -> Levels:
        """The peak of each level in the whole run."""
        peaks = [phase.peak for phase in self.phases]
        return Levels(max(peak.allocated for peak in peaks), max(peak.reserved for peak in peaks))

    @property
    def end(self) -> Levels:
        """The levels after the last event."""
        return self.phases[-1].end

    @property
    def lasting_reserved(self) -> int:
        """Reserved bytes with which a run goes on. If the device was full and the cache was given
        back: the larger of those at the end and the peak of allocated bytes, which the next step
        needs again. Otherwise the peak."""
        return max(self.end.reserved, self.peak.allocated) if self.retries else self.peak.reserved


def simulate(events: Sequence[Event], settings: AllocatorSettings | None = None) -> AllocatorRun:
    """Replays events (`qtui_core.memory.replay.record`) through the allocator.

    The peaks of each phase are what torch.cuda.max_memory_allocated, max_memory_reserved and so on
    give after torch.cuda.reset_peak_memory_stats() at its begin. As in torch, an allocation of no
    bytes takes none. Raises ValueError for a buffer that is freed before it is allocated.
    """
    settings = settings or AllocatorSettings()
    expandable = settings.segments == "expandable"
    allocator = ExpandableAllocator(settings) if expandable else CachingAllocator(settings)
    malloc, free = allocator.malloc, allocator.free
    repeated = repeated_events(events)
    phases: list[PhaseLevels] = []
    phase, full = "", False

    def end_phase() -> None:
        peak, end = Levels(*allocator.peaks()), Levels(*allocator.levels())
        phases.append(PhaseLevels(phase, peak, end))

    tables: list[list[Any]] = []  # the blocks of each call, by ordinal
    try:
        for number, call in enumerate(repeated.calls):
            own: list[Any] = [None] * call.program.allocations
            tables.append(own)
            owners = [tables[owner] for owner in call.owners]
            owners.append(own)  # own is the last, at index OWN
            for size, owner, ordinal in call.program.moves:
                if size > 0:
                    own[ordinal] = malloc(size)
                    continue
                if size == 0:
                    free(owners[owner][ordinal])
                    continue
                kind, whose, block, _, event = call.program.steps[owner]
                if kind == PHASE:
                    if repeated.starts[number] + owner:  # not at the very beginning
                        end_phase()
                    phase = str(event[1])
                    allocator.begin_peaks()
                elif kind == EMPTY_CACHE:
                    allocator.empty_cache()
                elif kind == HOLD_BACK:
                    allocator.hold_back(owners[whose][block])
                elif kind == HAND_BACK:
                    allocator.hand_back()
    except DeviceFull:
        full = True
    end_phase()
    return AllocatorRun(tuple(phases), allocator.retries, full)


def warm_up_bytes(weight_bytes: int, device_bytes: int | None = None) -> int:
    """Bytes of the single tensor that `from_pretrained` of transformers allocates and frees before
    it loads weights of `weight_bytes`, unrounded and summed, to a device.

    The weights are then placed in its segment. Source: caching_allocator_warmup in
    transformers/modeling_utils.py (5.x) for a process that has reserved nothing before; it takes
    float16 elements, and leaves 1.2 GiB of the device free. Record it as an allocation and its free
    at the beginning of the load.
    """
    most = weight_bytes if device_bytes is None else device_bytes - _WARM_UP_MARGIN
    return max(0, int(min(weight_bytes, most) // 2) * 2)
