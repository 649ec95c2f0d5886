"""The caching allocator of torch on one device and stream: blocks, pools, and how they are cut,
merged and given back.

The rules are those of c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h (torch
2.8 to 2.13). Memory comes in segments; a segment is a row of blocks, and blocks that are free wait
in one of two pools, ordered by size and then address. What is not modelled: other streams, private
pools of CUDA graphs, garbage collection, rounding to powers of two. cudaMalloc is taken to give
rising addresses, which only decides between blocks of equal size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

MIB: Final = 1 << 20
#: kMinBlockSize: sizes are rounded up to it.
MIN_BLOCK: Final = 512
#: kSmallSize: what is no larger comes from the pool of small blocks.
SMALL_SIZE: Final = MIB
#: kSmallBuffer: segments, or pages, of the small pool.
SMALL_SEGMENT: Final = 2 * MIB
#: Default of large_segment_size: segments for 1 to 10 MiB, and pages of expandable segments.
LARGE_SEGMENT: Final = 20 * MIB
#: kMinLargeAlloc: what is as large has a segment to itself.
MIN_LARGE: Final = 10 * MIB
#: kRoundLarge: such a segment is rounded up to it.
ROUND_LARGE: Final = 2 * MIB

#: Pages of address space that an expandable segment has. Torch takes 9/8 of the device's memory;
#: any number that is never used up does.
_PAGES: Final = 1 << 22
#: Free blocks are ordered by `size << _SHIFT | address` as one integer, which compares faster than
#: a pair.
_SHIFT: Final = 56


class DeviceFull(Exception):
    """cudaMalloc failed, and again after all that was cached had been given back."""


class Block:
    """A piece of a segment, with its neighbours. Times and places of use are in the allocator."""

    __slots__ = (
        "address",
        "allocated",
        "expandable",
        "mapped",
        "next",
        "pool",
        "previous",
        "requested",
        "size",
    )

    def __init__(self, pool: Pool, address: int, size: int, expandable: bool) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.expandable = expandable
        self.requested = 0
        self.allocated = False
        self.mapped = True
        self.previous: Block | None = None
        self.next: Block | None = None

    @property
    def reach(self) -> int:
        """Bytes it could grow to: its own, and the unmapped ones behind it."""
        behind = self.next
        return self.size + (behind.size if behind is not None and not behind.mapped else 0)


class Pool:
    """Free blocks of one kind, ordered by size and address.

    Attributes:
        small: whether it is that of blocks up to 1 MiB.
        page: what an expandable segment of it grows by.
        keys, blocks: of the free ones, in the same order.
        unmapped: address space without memory, by address.
    """

    __slots__ = ("blocks", "keys", "page", "small", "unmapped")

    def __init__(self, small: bool, page: int) -> None:
        self.small = small
        self.page = page
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.unmapped: list[Block] = []

    def add(self, block: Block) -> None:
        key = block.size << _SHIFT | block.address
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.blocks.insert(index, block)

    def remove(self, block: Block) -> None:
        index = bisect_left(self.keys, block.size << _SHIFT | block.address)
        del self.keys[index]
        del self.blocks[index]

    def add_unmapped(self, block: Block) -> None:
        insort(self.unmapped, block, key=_address)


class CachingAllocator:
    """The allocator of one device. Bytes throughout.

    Attributes:
        allocated, reserved, requested, inactive_split, segments: as torch.cuda.memory_stats counts
            them now, in "allocated_bytes", "reserved_bytes", "requested_bytes",
            "inactive_split_bytes" and "segment". The last two leave expandable segments out.
        peak_inactive_split: its most since the peaks were reset; the peaks of the others follow
            from their values after each `malloc`.
        retries: times that cudaMalloc failed and everything cached was given back.
    """

    def __init__(
        self,
        *,
        expandable: bool = False,
        capacity: int | None = None,
        max_split: int | None = None,
        max_non_split_rounding: int = LARGE_SEGMENT,
        large_segment: int = LARGE_SEGMENT,
    ) -> None:
        self.expandable = expandable
        self.capacity = capacity
        self.max_split = max_split
        self.max_non_split_rounding = max_non_split_rounding
        self.large_segment = large_segment
        self.small = Pool(True, SMALL_SEGMENT)
        self.large = Pool(False, large_segment)
        self.allocated = 0
        self.reserved = 0
        self.requested = 0
        self.inactive_split = 0
        self.peak_inactive_split = 0
        self.segments = 0
        self.retries = 0
        self._next_address = 0

    def malloc(self, nbytes: int) -> Block:
        """A block of at least `nbytes`. Raises DeviceFull where the device has no more."""
        size = -(-nbytes // MIN_BLOCK) * MIN_BLOCK or MIN_BLOCK
        pool = self.small if size <= SMALL_SIZE else self.large
        # The common case by itself: the smallest free block that is large enough.
        index = bisect_left(pool.keys, size << _SHIFT)
        if index < len(pool.keys) and not self.expandable and self.max_split is None:
            block = pool.blocks.pop(index)
            del pool.keys[index]
        else:
            block = self._cached(pool, size, index) or self._new(pool, size)
        rest = block.size - size
        was_split = block.previous is not None or block.next is not None
        if rest and self._should_split(block, size, rest):
            self._cut(block, size, was_split)
        elif was_split and not block.expandable:
            self.inactive_split -= block.size
        block.allocated = True
        block.requested = nbytes
        self.allocated += block.size
        self.requested += nbytes
        return block

    def free(self, block: Block) -> None:
        """Puts a block back into its pool, in one with its free neighbours."""
        self.allocated -= block.size
        self.requested -= block.requested
        block.allocated = False
        merged = self._merge(block)
        block.pool.add(block)
        if not block.expandable:
            if block.previous is not None or block.next is not None:
                self.inactive_split += block.size - merged
                if self.inactive_split > self.peak_inactive_split:
                    self.peak_inactive_split = self.inactive_split
            else:
                self.inactive_split -= merged

    def empty_cache(self) -> None:
        """Gives back whole free segments, and whole free pages of expandable ones."""
        for pool in (self.large, self.small):
            for block in tuple(pool.blocks):
                if block.expandable:
                    self._unmap(block)
                elif block.previous is None and block.next is None:
                    self._release(block)

    def _should_split(self, block: Block, size: int, rest: int) -> bool:
        if block.pool.small or self.expandable:
            return rest >= MIN_BLOCK
        return rest > SMALL_SIZE and (self.max_split is None or size < self.max_split)

    def _cut(self, block: Block, size: int, was_split: bool) -> None:
        """Leaves `size` bytes of a block and puts the others into the pool."""
        rest = Block(block.pool, block.address + size, block.size - size, block.expandable)
        after = block.next
        rest.previous = block
        rest.next = after
        if after is not None:
            after.previous = rest
        block.next = rest
        block.size = size
        block.pool.add(rest)
        if not block.expandable:
            if was_split:
                self.inactive_split -= size
            else:
                self.inactive_split += rest.size
                if self.inactive_split > self.peak_inactive_split:
                    self.peak_inactive_split = self.inactive_split

    def _merge(self, block: Block) -> int:
        """Takes the neighbours in that are in the same state; the bytes they had."""
        merged = 0
        before, after = block.previous, block.next
        if before is not None and not before.allocated and before.mapped == block.mapped:
            merged += before.size
            self._forget(before)
            block.address = before.address
            block.size += before.size
            block.previous = before.previous
            if block.previous is not None:
                block.previous.next = block
        if after is not None and not after.allocated and after.mapped == block.mapped:
            merged += after.size
            self._forget(after)
            block.size += after.size
            block.next = after.next
            if block.next is not None:
                block.next.previous = block
        return merged

    @staticmethod
    def _forget(block: Block) -> None:
        if block.mapped:
            block.pool.remove(block)
        else:
            block.pool.unmapped.remove(block)

    def _cached(self, pool: Pool, size: int, index: int) -> Block | None:
        """The free block to use, from the first that is large enough on."""
        blocks = pool.blocks
        if index == len(blocks):
            return None
        if self.expandable:
            # A block that can grow counts as large as it can become, so that it is kept for last.
            while index + 1 < len(blocks) and blocks[index + 1].reach < blocks[index].reach:
                index += 1
        if self.max_split is not None:
            found = blocks[index].size
            if size < self.max_split <= found:
                return None
            if size >= self.max_split and found >= size + self.max_non_split_rounding:
                return None
        del pool.keys[index]
        return blocks.pop(index)

    def _new(self, pool: Pool, size: int) -> Block:
        """A block from the device: at once, after giving back oversize blocks, or after all."""
        block = self._from_device(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._from_device(pool, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._from_device(pool, size)
        if block is None:
            raise DeviceFull
        return block

    def _from_device(self, pool: Pool, size: int) -> Block | None:
        if self.expandable:
            return self._expand(pool, size)
        nbytes = self._segment_size(size)
        if not self._fits(nbytes):
            return None
        self.reserved += nbytes
        self.segments += 1
        return Block(pool, self._take_addresses(nbytes), nbytes, expandable=False)

    def _segment_size(self, size: int) -> int:
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT
        if size < MIN_LARGE:
            return self.large_segment
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def _fits(self, nbytes: int) -> bool:
        return self.capacity is None or self.reserved + nbytes <= self.capacity

    def _take_addresses(self, nbytes: int) -> int:
        """Addresses not given before, at a multiple of `nbytes`, which is one of a page."""
        address = -(-self._next_address // nbytes) * nbytes
        self._next_address = address + nbytes
        return address

    def _release(self, block: Block) -> None:
        """cudaFree of a segment that is one free block."""
        block.pool.remove(block)
        self.reserved -= block.size
        self.segments -= 1

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Gives back blocks that must not be split: one that is large enough, or the largest
        until they are together. False where that does not free as much."""
        if self.max_split is None:
            return False
        wanted = max(size, self.max_split)
        index = bisect_left(pool.keys, wanted << _SHIFT)
        if index < len(pool.blocks) and not pool.blocks[index].expandable:
            self._release(pool.blocks[index])
            return True
        released = 0
        for block in reversed(pool.blocks[:index]):
            if released >= wanted or block.size < self.max_split:
                break
            if not block.expandable:
                released += block.size
                self._release(block)
        return released >= wanted

    def _expand(self, pool: Pool, size: int) -> Block | None:
        """A free block of at least `size` bytes at the lowest address where pages can be mapped,
        taken out of the pool. None where the device has no more; what was mapped stays."""
        block = self._expandable_place(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def _expandable_place(self, pool: Pool, size: int) -> Block:
        for block in pool.unmapped:
            before = block.previous
            start = before if before is not None and not before.allocated else block
            room = 0
            piece: Block | None = start
            while room < size and piece is not None and not piece.allocated:
                room += piece.size
                piece = piece.next
            if room >= size:
                return start
        address = self._take_addresses(pool.page * _PAGES)
        segment = Block(pool, address, pool.page * _PAGES, expandable=True)
        segment.mapped = False
        pool.add_unmapped(segment)
        return segment

    def _map(self, block: Block, nbytes: int) -> bool:
        """Backs the first pages of an unmapped block with memory and makes them a free block,
        which is `block`, with its free neighbours."""
        pool = block.pool
        mapped = -(-nbytes // pool.page) * pool.page
        if not self._fits(mapped):
            return False
        pool.unmapped.remove(block)
        if mapped < block.size:
            rest = Block(pool, block.address + mapped, block.size - mapped, expandable=True)
            rest.mapped = False
            _link(block, rest, block.next)
            block.size = mapped
            pool.add_unmapped(rest)
        block.mapped = True
        self._merge(block)
        pool.add(block)
        self.reserved += mapped
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
            before = Block(pool, block.address, start - block.address, expandable=True)
            _link(block.previous, before, block)
            pool.add(before)
        if end < block.address + block.size:
            after = Block(pool, end, block.address + block.size - end, expandable=True)
            _link(block, after, block.next)
            pool.add(after)
        block.address, block.size, block.mapped = start, end - start, False
        self.reserved -= block.size
        self._merge(block)
        # A segment that is all unmapped is dropped, and its addresses with it.
        if block.previous is not None or block.next is not None:
            pool.add_unmapped(block)


def _link(before: Block | None, block: Block, after: Block | None) -> None:
    """Puts a block between two neighbours."""
    block.previous, block.next = before, after
    if before is not None:
        before.next = block
    if after is not None:
        after.previous = block


def _address(block: Block) -> int:
    return block.address
