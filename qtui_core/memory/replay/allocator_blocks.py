"""Segments of memory divided into blocks, and the pools of free blocks, as in torch's caching
allocator (c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.h)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

MIB: Final = 1 << 20
#: kMinBlockSize: sizes are rounded up to a multiple of it.
MIN_BLOCK: Final = 512
#: kSmallSize: requests up to this come from the pool of small blocks.
SMALL_SIZE: Final = MIB
#: kSmallBuffer: the size of segments, or pages, of the small pool.
SMALL_SEGMENT: Final = 2 * MIB
#: Default of large_segment_size: segments for 1 to 10 MiB, and pages of expandable segments.
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
        self.state = FREE
        self.previous = previous
        self.next = following

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
        small: whether it is the pool of blocks up to 1 MiB.
        page: the size in which its expandable segments grow.
        least_rest: a block is split if it is larger than requested by more than this.
        sizes: of the free blocks, each once, sorted.
        rows: the free blocks of each size, by falling address.
        unmapped: address space without memory, by address.
        absorbed: objects of blocks that were merged into others, to be reused: making new objects
            is a large part of the cost of a split.
    """

    __slots__ = ("absorbed", "least_rest", "page", "rows", "sizes", "small", "unmapped")

    def __init__(self, small: bool, page: int, least_rest: int) -> None:
        self.small = small
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
        after = block.next
        left = block.size - size
        if self.absorbed:
            rest = self.absorbed.pop()
            rest.address = block.address + size
            rest.size = left
            rest.state = FREE
            rest.previous = block
            rest.next = after
        else:
            rest = Block(self, block.address + size, left, block, after)
        block.size = size
        block.next = rest
        if after is not None:
            after.previous = rest
        if left in self.rows:
            self.add(rest)
        else:
            self.rows[left] = [rest]
            insort(self.sizes, left)


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
