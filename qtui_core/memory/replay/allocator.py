"""Reserved bytes: a recording replayed through torch's caching allocator.

The requested bytes are fewer than the allocated ones (blocks are multiples of 512 bytes, and a
large block may keep up to 1 MiB more than requested), and these are fewer than the reserved ones
(segments that were taken from the device and not given back).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.allocator_expandable import ExpandableAllocator
from qtui_core.memory.replay.allocator_native import AllocatorSettings, CachingAllocator, DeviceFull
from qtui_core.memory.replay.program import Step
from qtui_core.memory.replay.record import EMPTY_CACHE, HAND_BACK, HOLD_BACK, PHASE, Event
from qtui_core.memory.replay.repeated_events import RepeatedEvents, repeated_events

#: Memory that caching_allocator_warmup of transformers leaves free at least.
_WARM_UP_MARGIN: Final = 1.2 * (1 << 30)


@dataclass(frozen=True)
class Levels:
    """Bytes at the levels of torch.cuda.memory_stats, and the number of segments.

    Attributes:
        allocated: in blocks that are in use (its peak is max_memory_allocated).
        reserved: in segments (its peak is max_memory_reserved).
        segments: taken with cudaMalloc; as in torch, expandable segments do not count.
    """

    allocated: int
    reserved: int
    segments: int


@dataclass(frozen=True)
class PhaseLevels:
    """A phase: its name, the peak of each level in it, and the levels at its end."""

    name: str
    peak: Levels
    end: Levels


@dataclass(frozen=True)
class OutOfMemory:
    """Where the run ended: the event that requested `bytes`, its phase, and the levels then."""

    event: int
    bytes: int
    phase: str
    levels: Levels


@dataclass(frozen=True)
class AllocatorRun:
    """The result of a replay.

    Attributes:
        phases: in order, one each time a phase begins; the events before the first are the phase
            "".
        retries: how often cudaMalloc failed and the whole cache was given back.
        out_of_memory: where the run ended for lack of memory, if it did.
    """

    phases: tuple[PhaseLevels, ...]
    retries: int
    out_of_memory: OutOfMemory | None = None

    @property
    def peak(self) -> Levels:
        """The peak of each level in the whole run."""
        return self.peak_since(0)

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

    def peak_since(self, phase: int) -> Levels:
        """The peak of each level from the phase with that index on. From the last step on, these
        are the levels that a longer run has; reserved bytes include what the load left."""
        peaks = [phase.peak for phase in self.phases[phase:]]
        return Levels(
            max(peak.allocated for peak in peaks),
            max(peak.reserved for peak in peaks),
            max(peak.segments for peak in peaks),
        )


def simulate(events: Sequence[Event], settings: AllocatorSettings | None = None) -> AllocatorRun:
    """Replays events (`qtui_core.memory.replay.record`) through the allocator.

    The peaks of each phase are what torch.cuda.max_memory_allocated, max_memory_reserved and so on
    give after torch.cuda.reset_peak_memory_stats() at its begin. As in torch, an allocation of no
    bytes takes none. Raises ValueError for a buffer that is freed before it is allocated.
    """
    settings = settings or AllocatorSettings()
    expandable = settings.segments == "expandable"
    allocator = ExpandableAllocator(settings) if expandable else CachingAllocator(settings)
    replay = _Replay(allocator)
    out_of_memory = replay.run(repeated_events(events))
    replay.end_phase()
    return AllocatorRun(tuple(replay.phases), allocator.retries, out_of_memory)


class _Replay:
    """Passes the calls to the allocator, one after the other."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.phases: list[PhaseLevels] = []
        self._allocator = allocator
        self._phase = ""
        # The blocks of each call, by ordinal.
        self._tables: list[list[Any]] = []

    def run(self, events: RepeatedEvents) -> OutOfMemory | None:
        """Replays all events, or up to the one for which the device had no memory."""
        malloc, free = self._allocator.malloc, self._allocator.free
        tables = self._tables
        for number, call in enumerate(events.calls):
            program = call.program
            own: list[Any] = [None] * program.allocations
            tables.append(own)
            owners = [tables[owner] for owner in call.owners]
            owners.append(own)  # own is the last, at index OWN
            for size, owner, ordinal in program.moves:
                if size > 0:
                    try:
                        own[ordinal] = malloc(size)
                    except DeviceFull:
                        return self._out_of_memory(events, number, ordinal)
                elif size == 0:
                    free(owners[owner][ordinal])
                else:
                    event = events.starts[number] + owner
                    self._other(event, program.steps[owner], owners)
        return None

    def end_phase(self) -> None:
        """Records the levels of the phase that has ended."""
        peak = Levels(*self._allocator.peaks())
        self.phases.append(PhaseLevels(self._phase, peak, Levels(*self._allocator.levels())))

    def _other(self, number: int, step: Step, owners: Sequence[Sequence[Any]]) -> None:
        """Handles an event, with its number, that is neither an allocation nor a free."""
        kind, owner, ordinal, _, event = step
        if kind == PHASE:
            if number:
                self.end_phase()
            self._phase = str(event[1])
            self._allocator.begin_peaks()
        elif kind == EMPTY_CACHE:
            self._allocator.empty_cache()
        elif kind == HOLD_BACK:
            self._allocator.hold_back(owners[owner][ordinal])
        elif kind == HAND_BACK:
            self._allocator.hand_back()

    def _out_of_memory(self, events: RepeatedEvents, call: int, ordinal: int) -> OutOfMemory:
        buffer = events.calls[call].program.buffers[ordinal]
        levels = Levels(*self._allocator.levels())
        return OutOfMemory(events.starts[call] + buffer.start, buffer.asked, self._phase, levels)


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
