"""In which order a load of quantized weights takes and gives back memory: a matter of the allocator
alone, for what is left between weights is what steps find.

transformers reads tensors in the order of their names. Since 5.4 it quantizes each before it reads
the next (`has_on_the_fly_quantization` in core_model_loading.py). From 5.0 to 5.3 four threads read
ahead of the one that quantizes, each with a tensor on the GPU that it fills; how far they get is a
race, of which the middle is told here.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from qtui_core.memory.devices.workspaces import parse_version
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.replay.calls import RepeatedEvents, repeated_events
from qtui_core.memory.replay.record import ALLOCATE, EMPTY_CACHE, FREE, PHASE, Event
from qtui_core.memory.tape.blocks.linear.weights import SOURCE

#: Versions of torch that were current with transformers 5.0 to 5.3 (January to March 2026).
_THREADED: Final = ((2, 10),)
#: First torch that was current with peft 0.20 (July 2026), whose prepare_model_for_kbit_training
#: empties the cache.
_EMPTIES_SINCE: Final = (2, 13)

#: GLOBAL_WORKERS of core_model_loading.py.
_THREADS: Final = 4
#: Times as long a thread converts a tensor to its type on the CPU as it then copies it to the GPU,
#: where copies queue; and bytes that are copied meanwhile before the first tensor is quantized,
#: whose kernel is loaded then. Calibrated with 29 runs on a T4 (fitcheck-t4-2026-09-15 and -16 with
#: nf4, without repeats): 4 to 6 times and 40 to 160 MiB give medians of 0.9 to 1.6 %.
_CONVERTED: Final = 5
_FIRST: Final = 80 << 20


class _Read(NamedTuple):
    """A tensor of the checkpoint: where it is put, and what is made of it then."""

    put: Event
    made: list[Event]


def as_loaded(events: RepeatedEvents, plan: RunPlan) -> RepeatedEvents:
    """Events with the load of quantized weights as the libraries did it that were current with the
    plan's torch: read ahead of what quantizes, or one by one; the cache emptied in the preparation,
    or not."""
    ahead, emptied = reads_ahead(plan.torch), empties_cache(plan.torch)
    if not plan.quantized or (emptied and not ahead):
        return events
    if ahead:
        found = list(events)
        ends = next((i for i, e in enumerate(found) if i and e[0] == PHASE), len(found))
        found[1:ends] = read_ahead(found[1:ends])
        events = repeated_events(found)
    return events if emptied else events.without(EMPTY_CACHE)


def reads_ahead(torch: str) -> bool:
    """Whether weights that are quantized are read by threads, with the transformers that was
    current with a version of torch."""
    return parse_version(torch) in _THREADED


def empties_cache(torch: str) -> bool:
    """Whether the peft that was current with a version of torch empties the cache after k-bit
    preparation."""
    return parse_version(torch) >= _EMPTIES_SINCE


def read_ahead(events: Sequence[Event]) -> list[Event]:
    """The events of a load, in the order that four threads and the one that quantizes give them."""
    reads = _reads(events)
    began, ended = _times([read.put[2] for read in reads])
    order: list[tuple[float, int, int, list[Event]]] = []
    now = 0.0
    loaded = False
    for number, read in enumerate(reads):
        order.append((began[number], 0, number, [read.put]))
        now = max(now, ended[number])
        if read.made:
            now += 0 if loaded else _FIRST
            loaded = True
            order.append((now, 1, number, read.made))
    order.sort(key=lambda entry: entry[:3])
    return [event for entry in order for event in entry[3]]


def _reads(events: Sequence[Event]) -> list[_Read]:
    """What is put on the GPU, in order, each with the events up to the free of what is quantized.
    Events that are neither allocations nor frees are left out."""
    found: list[_Read] = []
    source: object = None
    for event in events:
        if event[0] not in (ALLOCATE, FREE):
            continue
        if source is None and event[0] == ALLOCATE:
            found.append(_Read(event, []))
            if event[3] == SOURCE:
                source = event[1]
            continue
        found[-1].made.append(event)
        if event[1] == source:
            source = None
    return found


def _times(sizes: Sequence[int]) -> tuple[list[float], list[float]]:
    """When the memory of each tensor is taken, and when it is filled, in bytes copied."""
    began, ended = [0.0] * len(sizes), [0.0] * len(sizes)
    waiting = iter(range(len(sizes)))
    # (time, order, tensor that is converted; None for a thread that is free)
    queue: list[tuple[float, int, int | None]] = [(0.0, n, None) for n in range(_THREADS)]
    heapify(queue)
    order, copied = _THREADS, 0.0
    while queue:
        now, _, tensor = heappop(queue)
        if tensor is None:
            tensor = next(waiting, None)
            if tensor is not None:
                began[tensor] = now
                heappush(queue, (now + _CONVERTED * sizes[tensor], order, tensor))
        else:
            copied = ended[tensor] = max(copied, now) + sizes[tensor]
            heappush(queue, (copied, order, None))
        order += 1
    return began, ended
