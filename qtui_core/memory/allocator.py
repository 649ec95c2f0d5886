"""Reserved bytes: a recording replayed through the caching allocator of torch.

What is asked for is less than what is allocated (blocks are whole multiples of 512 bytes, and a
large one may keep up to 1 MiB that is not worth cutting off), and that is less than what is
reserved (segments that have been taken from the device and are not given back).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.allocator_blocks import LARGE_SEGMENT, MIB, Block
from qtui_core.memory.allocator_expandable import ExpandableAllocator
from qtui_core.memory.allocator_native import CachingAllocator, DeviceFull
from qtui_core.memory.record import ALLOCATE, EMPTY_CACHE, FREE, OPERATION, PHASE, Event

#: Events that only the allocator is given, besides those of a recording: (HOLD_BACK, id) counts a
#: buffer as freed, whose memory no one else gets until (HAND_BACK,) or until the device is full.
HOLD_BACK: Final = 6
HAND_BACK: Final = 7

#: Memory that caching_allocator_warmup of transformers leaves to others, at least.
_WARM_UP_MARGIN: Final = 1.2 * (1 << 30)


@dataclass(frozen=True)
class AllocatorSettings:
    """Of PYTORCH_CUDA_ALLOC_CONF, and of the device. Bytes.

    Attributes:
        segments: "native" takes each segment by cudaMalloc, "expandable" grows one by pages
            (expandable_segments:True).
        capacity: what the device can give to the allocator: its memory without context, modules
            and other processes. None never fails.
        max_split: max_split_size_mb; blocks of this size and larger are not split. None splits all.
        max_non_split_rounding: max_non_split_rounding_mb, how much larger than asked for such a
            block may be.
        large_segment: large_segment_size_mb, of the segments for 1 to 10 MiB, and of the pages of
            expandable segments.

    Raises UsageError for a max_split that torch refuses: it must be larger than large_segment.
    """

    segments: Literal["native", "expandable"] = "native"
    capacity: int | None = None
    max_split: int | None = None
    max_non_split_rounding: int = LARGE_SEGMENT
    large_segment: int = LARGE_SEGMENT

    def __post_init__(self) -> None:
        if self.max_split is not None and self.max_split <= self.large_segment:
            raise UsageError(
                f"max_split_size of {self.max_split / MIB:g} MiB is too small: torch takes no less "
                f"than its large segments, which are {self.large_segment / MIB:g} MiB."
            )


@dataclass(frozen=True)
class Levels:
    """Bytes at the levels of torch.cuda.memory_stats, and the number of segments.

    Attributes:
        requested: asked for.
        allocated: of the blocks that hold it (max_memory_allocated is its peak).
        reserved: of segments (max_memory_reserved).
        inactive_split: free bytes in segments that are partly in use, which cannot be given back.
        segments: taken by cudaMalloc; expandable segments are counted in neither of the last two,
            as in torch.
    """

    requested: int
    allocated: int
    reserved: int
    inactive_split: int
    segments: int


@dataclass(frozen=True)
class PhaseLevels:
    """A phase: its name, the peak of each level in it, reset at its begin, and what was left."""

    name: str
    peak: Levels
    end: Levels


@dataclass(frozen=True)
class OutOfMemory:
    """Where the run ended: the event that asked for `bytes`, in which phase, and how it stood."""

    event: int
    bytes: int
    phase: str
    levels: Levels


@dataclass(frozen=True)
class AllocatorRun:
    """What a replay found.

    Attributes:
        phases: in order, each time one begins; what comes before the first is the phase "".
        reserved_curve: (index of the event, reserved bytes from it on) at each change.
        retries: times that cudaMalloc failed and all that was cached was given back.
        out_of_memory: where the run ended for lack of memory, if it did.
    """

    phases: tuple[PhaseLevels, ...]
    reserved_curve: tuple[tuple[int, int], ...]
    retries: int
    out_of_memory: OutOfMemory | None = None

    @property
    def peak(self) -> Levels:
        """The most of each level in the whole run."""
        return self.peak_since(0)

    @property
    def end(self) -> Levels:
        """The levels after the last event."""
        return self.phases[-1].end

    @property
    def lasting_reserved(self) -> int:
        """Reserved bytes that a run goes on with: where the device was full for a moment and all
        that was cached was given back, those at the end, or what the next step will need again;
        else the most."""
        return max(self.end.reserved, self.peak.allocated) if self.retries else self.peak.reserved

    def peak_since(self, phase: int) -> Levels:
        """The most of each level from the phase of that index on; those of the last step say what
        a run holds that goes on, where reserved bytes include what its load left."""
        peaks = [phase.peak for phase in self.phases[phase:]]
        return Levels(
            max(peak.requested for peak in peaks),
            max(peak.allocated for peak in peaks),
            max(peak.reserved for peak in peaks),
            max(peak.inactive_split for peak in peaks),
            max(peak.segments for peak in peaks),
        )


def simulate(events: Iterable[Event], settings: AllocatorSettings | None = None) -> AllocatorRun:
    """Replays events (`qtui_core.memory.record`, HOLD_BACK and HAND_BACK) through the allocator.

    The peaks of each phase are what torch.cuda.max_memory_allocated, max_memory_reserved and so on
    give after torch.cuda.reset_peak_memory_stats() at its begin. An allocation of no bytes takes
    none, as in torch.
    """
    settings = settings or AllocatorSettings()
    kind = ExpandableAllocator if settings.segments == "expandable" else CachingAllocator
    allocator = kind(
        capacity=settings.capacity,
        max_split=settings.max_split,
        max_non_split_rounding=settings.max_non_split_rounding,
        large_segment=settings.large_segment,
    )
    malloc, free = allocator.malloc, allocator.free
    blocks: dict[int, Block] = {}
    phases: list[PhaseLevels] = []
    curve: list[tuple[int, int]] = []
    name = ""
    requested = allocated = reserved = segments = last_reserved = 0
    out_of_memory = None
    for index, event in enumerate(events):
        kind = event[0]
        if kind == ALLOCATE:
            nbytes = event[2]
            if not nbytes:
                continue
            try:
                blocks[event[1]] = malloc(nbytes)
            except DeviceFull:
                out_of_memory = OutOfMemory(index, nbytes, name, _levels(allocator))
                break
            if allocator.requested > requested:
                requested = allocator.requested
            if allocator.allocated > allocated:
                allocated = allocator.allocated
        elif kind == FREE:
            block = blocks.pop(event[1], None)
            if block is not None:
                free(block)
            continue
        elif kind == OPERATION:  # the most of what is left
            continue
        elif kind == EMPTY_CACHE:
            allocator.empty_cache()
        elif kind == HOLD_BACK:
            allocator.hold_back(blocks.pop(event[1]))
            continue
        elif kind == HAND_BACK:
            allocator.hand_back()
            continue
        elif kind == PHASE:
            if index:
                peak = Levels(
                    requested, allocated, reserved, allocator.peak_inactive_split, segments
                )
                phases.append(PhaseLevels(name, peak, _levels(allocator)))
            name = str(event[1])
            requested, allocated = allocator.requested, allocator.allocated
            reserved, segments = allocator.reserved, allocator.segments
            allocator.peak_inactive_split = allocator.inactive_split
            continue
        else:
            continue
        if allocator.reserved != last_reserved:
            last_reserved = allocator.reserved
            reserved = max(reserved, last_reserved)
            segments = max(segments, allocator.segments)
            curve.append((index, last_reserved))
    peak = Levels(requested, allocated, reserved, allocator.peak_inactive_split, segments)
    phases.append(PhaseLevels(name, peak, _levels(allocator)))
    return AllocatorRun(tuple(phases), tuple(curve), allocator.retries, out_of_memory)


def _levels(allocator: CachingAllocator) -> Levels:
    return Levels(
        allocator.requested,
        allocator.allocated,
        allocator.reserved,
        allocator.inactive_split,
        allocator.segments,
    )


def warm_up_bytes(weight_bytes: int, device_bytes: int | None = None) -> int:
    """Bytes of the one tensor that `from_pretrained` of transformers allocates and lets go of
    before it loads weights of `weight_bytes`, unrounded and summed, to a device.

    The weights are then cut from its segment. Source: caching_allocator_warmup in
    transformers/modeling_utils.py (5.x) for a process that has nothing reserved before; it takes
    float16 elements, and leaves 1.2 GiB of the device free. Write it to a recording as an
    allocation and its free, at the begin of the load.
    """
    most = weight_bytes if device_bytes is None else device_bytes - _WARM_UP_MARGIN
    return max(0, int(min(weight_bytes, most) // 2) * 2)
