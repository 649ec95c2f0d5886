"""Segments of memory cut into blocks, and the pools that free blocks wait in, as the caching
allocator of torch keeps them (c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.h)."""

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

#: Free blocks are ordered by `size << SHIFT | address` as one integer, which compares faster than
#: a pair.
SHIFT: Final = 56


class Block:
    """A piece of a segment, with its neighbours in it. Addresses and sizes in bytes.

    Attributes:
        mapped: whether it has memory; only in an expandable segment some have not.
    """

    __slots__ = (
        "address",
        "allocated",
        "mapped",
        "next",
        "pool",
        "previous",
        "size",
    )

    def __init__(
        self,
        pool: Pool,
        address: int,
        size: int,
        previous: Block | None = None,
        following: Block | None = None,
    ) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.allocated = False
        self.mapped = True
        self.previous = previous
        self.next = following

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
        least_rest: what a block must be larger than asked for, to be cut.
        keys: of the free ones, in order.
        blocks: the free ones by their keys.
        unmapped: address space without memory, by address.
    """

    __slots__ = ("blocks", "keys", "least_rest", "page", "small", "unmapped")

    def __init__(self, small: bool, page: int, least_rest: int) -> None:
        self.small = small
        self.page = page
        self.least_rest = least_rest
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []

    def add(self, block: Block) -> None:
        key = block.size << SHIFT | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def remove(self, block: Block) -> None:
        key = block.size << SHIFT | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def free(self) -> list[Block]:
        """The free blocks, in order."""
        return [self.blocks[key] for key in self.keys]

    def add_unmapped(self, block: Block) -> None:
        insort(self.unmapped, block, key=lambda other: other.address)


def link(before: Block | None, block: Block, after: Block | None) -> None:
    """Puts a block between two neighbours."""
    block.previous, block.next = before, after
    if before is not None:
        before.next = block
    if after is not None:
        after.previous = block


def merge(block: Block) -> None:
    """Takes in the neighbours of a block that is not in its pool: those that are not allocated
    and are mapped or not as it is."""
    before, after, mapped = block.previous, block.next, block.mapped
    if before is not None and not before.allocated and before.mapped == mapped:
        _take_out(before)
        block.address = before.address
        block.size += before.size
        further = block.previous = before.previous
        if further is not None:
            further.next = block
    if after is not None and not after.allocated and after.mapped == mapped:
        _take_out(after)
        block.size += after.size
        further = block.next = after.next
        if further is not None:
            further.previous = block


def _take_out(block: Block) -> None:
    if block.mapped:
        block.pool.remove(block)
    else:
        block.pool.unmapped.remove(block)
