"""The caching allocator with expandable segments: address space to which memory is mapped page by
page (expandable_segments:True; the rules are in c10/cuda/CUDACachingAllocator.cpp)."""

from __future__ import annotations

from itertools import islice
from typing import Final

from qtui_core.memory.replay.allocator_blocks import (
    FREE,
    IN_USE,
    MIN_BLOCK,
    UNMAPPED,
    Block,
    Pool,
    link,
    merge,
)
from qtui_core.memory.replay.allocator_native import CachingAllocator

#: The least number of pages of address space in a segment. Torch takes 9/8 of the device's memory;
#: any number that is never exhausted gives the same result.
_PAGES: Final = 1 << 22


class ExpandableAllocator(CachingAllocator):
    """A CachingAllocator whose segments are not from cudaMalloc and whose free pages can always be
    given back. As in torch, they do not count as `segments`."""

    grows = True
    least_rest = MIN_BLOCK
    #: Where the next segment may begin.
    _next_address = 0

    def empty_cache(self) -> None:
        """Gives back the whole pages of free blocks."""
        for pool in (self.large, self.small):
            for block in list(pool.free()):
                self._unmap(block)

    def _choose(self, pool: Pool, size: int) -> Block | None:
        # A block that can grow counts with the size that it can reach, so that it is used last.
        found = pool.first(size)
        if found is not None and found.next is not None and found.next.state == UNMAPPED:
            reach = found.reach
            for block in islice(pool.free(size), 1, None):
                if block.reach >= reach:
                    break
                found, reach = block, block.reach
        if found is None or self._spares(found, size):
            return None
        pool.remove(found)
        return found

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        return False

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
