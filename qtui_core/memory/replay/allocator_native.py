"""The caching allocator of torch on one device and stream, with segments from cudaMalloc.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.8 to 2.13). Not modelled: other
streams, private pools of CUDA graphs, garbage_collection_threshold, roundup_power2_divisions.

cudaMalloc is taken to give falling addresses, which decides between free blocks of equal size. With
them the reserved bytes of all 20 plans measured on a T4 whose weights are not quantized come out to
14 MiB, of 14 to the byte; with rising ones 8 are 46 to 512 MiB off.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from qtui_core.memory.replay.allocator_blocks import (
    FREE,
    IN_USE,
    LARGE_SEGMENT,
    MIN_BLOCK,
    MIN_LARGE,
    ROUND_LARGE,
    SHIFT,
    SMALL_SEGMENT,
    SMALL_SIZE,
    Block,
    Pool,
    merge,
)

#: Above the address of the first segment.
_TOP: Final = 1 << (SHIFT - 1)


class DeviceFull(Exception):
    """cudaMalloc failed, and again after all that was cached had been given back."""


class CachingAllocator:
    """The allocator of one device. Bytes throughout; the arguments are those of
    `qtui_core.memory.replay.allocator.AllocatorSettings`.

    Attributes:
        allocated, reserved, segments: as torch.cuda.memory_stats counts them now, in
            "allocated_bytes", "reserved_bytes" and "segment".
        retries: times that cudaMalloc failed and everything cached was given back.
    """

    #: Whether segments grow by pages.
    grows = False
    #: The least that is cut off a block for more than 1 MiB.
    least_rest = SMALL_SIZE + 1

    def __init__(
        self,
        *,
        capacity: int | None = None,
        max_split: int | None = None,
        max_non_split_rounding: int = LARGE_SEGMENT,
        large_segment: int = LARGE_SEGMENT,
    ) -> None:
        self.capacity = capacity
        self.max_split = max_split
        self.max_non_split_rounding = max_non_split_rounding
        self.large_segment = large_segment
        # Of a large block the rest is cut off only where it is worth keeping.
        self.small = Pool(True, SMALL_SEGMENT, MIN_BLOCK)
        self.large = Pool(False, large_segment, self.least_rest)
        limit = None if self.grows else max_split
        self.chooses = self.grows or limit is not None
        #: Bytes from which on nothing is cut off.
        self.whole_from = _TOP if limit is None else limit
        self.allocated = 0
        self.reserved = 0
        self.segments = 0
        self.retries = 0
        self._most_allocated = self._most_reserved = self._most_segments = 0
        self._lowest = _TOP
        self._held: list[Block] = []

    def malloc(self, size: int) -> Block:
        """A block of at least `size` bytes, which are whole multiples of 512 and more than none.
        Raises DeviceFull where the device has no more."""
        pool = self.small if size <= SMALL_SIZE else self.large
        keys = pool.keys
        index = bisect_left(keys, size << SHIFT)
        if self.chooses and index < len(keys):
            index = self._choose(pool, size, index)
        if index < len(keys):
            del keys[index]
            block = pool.blocks.pop(index)
        else:
            block = self._new(pool, size)
        if block.size - size >= pool.least_rest and size < self.whole_from:
            pool.cut(block, size)
        block.state = IN_USE
        self.allocated += block.size
        if self.allocated > self._most_allocated:
            self._most_allocated = self.allocated
        return block

    def free(self, block: Block) -> None:
        """Puts a block back into its pool, in one with its free neighbours."""
        self.allocated -= block.size
        block.state = FREE
        merge(block)
        block.pool.add(block)

    def levels(self) -> tuple[int, int, int]:
        """(allocated, reserved, segments) now."""
        return self.allocated, self.reserved, self.segments

    def peaks(self) -> tuple[int, int, int]:
        """The most of each of `levels` since `begin_peaks`."""
        return self._most_allocated, self._most_reserved, self._most_segments

    def begin_peaks(self) -> None:
        """torch.cuda.reset_peak_memory_stats()."""
        self._most_allocated, self._most_reserved, self._most_segments = self.levels()

    def hold_back(self, block: Block) -> None:
        """Counts a block as freed whose memory is not to be had yet, as a tensor's that another
        stream may still read (`Tensor.record_stream`)."""
        self.allocated -= block.size
        self._held.append(block)

    def hand_back(self) -> None:
        """Frees what was held back (process_events)."""
        for block in self._held:
            self.allocated += block.size
            self.free(block)
        self._held.clear()

    def empty_cache(self) -> None:
        """Gives back what is cached and whole: free segments."""
        for pool in (self.large, self.small):
            for block in pool.free():
                if block.previous is None and block.next is None:
                    self._release(block)

    def _choose(self, pool: Pool, size: int, index: int) -> int:
        """The index of the free block to use, given that of the first that is large enough; one
        past the end where there is none."""
        if self.max_split is None:
            return index
        found = pool.blocks[index].size
        if size < self.max_split <= found:
            return len(pool.keys)
        if size >= self.max_split and found >= size + self.max_non_split_rounding:
            return len(pool.keys)
        return index

    def _new(self, pool: Pool, size: int) -> Block:
        """A block from the device: at once, after giving back oversize blocks, or after all."""
        block = self._from_device(pool, size)
        if block is None and self._release_oversize(pool, size):
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
        """A free block that is in no pool; None where the device has no more."""
        nbytes = self._segment_size(size)
        if not self._fits(nbytes):
            return None
        self.segments += 1
        self._reserve(nbytes)
        self._lowest -= nbytes
        return Block(pool, self._lowest, nbytes)

    def _reserve(self, nbytes: int) -> None:
        self.reserved += nbytes
        self._most_reserved = max(self._most_reserved, self.reserved)
        self._most_segments = max(self._most_segments, self.segments)

    def _segment_size(self, size: int) -> int:
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT
        if size < MIN_LARGE:
            return self.large_segment
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def _fits(self, nbytes: int) -> bool:
        return self.capacity is None or self.reserved + nbytes <= self.capacity

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
        index = bisect_left(pool.keys, wanted << SHIFT)
        if index < len(pool.keys):
            self._release(pool.blocks[index])
            return True
        released = 0
        for block in reversed(pool.free()):
            if released >= wanted or block.size < self.max_split:
                break
            released += block.size
            self._release(block)
        return released >= wanted
