"""The events of a run on a device: with the workspaces of cuBLAS, and as the allocator gets them,
with details that a step does not show.

The main detail is the order in which loading quantized weights allocates and frees memory, since
the gaps left between weights are what steps find. transformers reads tensors in the order of their
names. Since 5.4 it quantizes each before it reads the next (`has_on_the_fly_quantization` in
core_model_loading.py). From 5.0 to 5.3, four threads read ahead of the one that quantizes, each
with a tensor on the GPU that it fills. How far ahead they get varies; a typical case is modelled
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from qtui_core.memory.devices.device import Device, cublas_workspace, outside_torch, parse_version
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.replay.allocator import (
    AllocatorRun,
    AllocatorSettings,
    simulate,
    warm_up_bytes,
)
from qtui_core.memory.replay.folding import repeated_events
from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREE,
    HAND_BACK,
    HOLD_BACK,
    PHASE,
    Component,
    Event,
    Label,
    Phase,
    RepeatedEvents,
)
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.tape.blocks.losses import UPCAST
from qtui_core.memory.tape.blocks.weights import SOURCE

#: Versions of torch that were current with transformers 5.0 to 5.3 (January to March 2026).
_THREADED: Final = ((2, 10),)
#: The first torch version that is taken to run with peft 0.20 (July 2026) or later, whose
#: prepare_model_for_kbit_training empties the cache. 2.13 was current then; 2.11 with peft 0.21 is
#: what the rows of tests/gpu/measured had, and what who installs peft today gets.
_EMPTIES_SINCE: Final = (2, 11)

#: GLOBAL_WORKERS of core_model_loading.py.
_THREADS: Final = 4
#: How many times longer a thread takes to convert a tensor on the CPU than to copy it to the GPU,
#: where copies queue; and the bytes that are copied before the first tensor is quantized, while its
#: kernel is loaded. Calibrated with 29 runs on a T4 (fitcheck-t4-2026-09-15 and -16 with nf4,
#: without repeats): 4 to 6 times and 40 to 160 MiB give median errors of 0.9 to 1.6 %.
_CONVERTED: Final = 5
_FIRST: Final = 80 << 20
#: What tape and trace call the results of matrix products. The angles of a rotation (of which
#: "cos" is the first that lasts) were one until transformers 5.17, as in all measured runs.
_PRODUCTS: Final = frozenset(("mm", "bmm", "addmm", "baddbmm", "cos"))
WARM_UP: Final = Label("caching_allocator_warmup", Component.TEMPORARIES)


def with_workspaces(
    events: Sequence[Event], plan: RunPlan, device: Device | None = None, *, steady: bool = False
) -> RepeatedEvents:
    """Events with the workspaces of cuBLAS, which no operation returns: that of the program's
    thread from the first product of the first forward pass on, that of autograd's thread from the
    first of the first backward pass on, or if the step is `steady` of the forward pass, too.

    In a backward pass it lies where a gradient of the logits was, and that of the next step may
    need a segment of its own: on an H200, up to 17 % of what was reserved.
    """
    workspace = cublas_workspace(plan.torch, device, trains=plan.trains)
    found = repeated_events(events)
    if not workspace.kept:
        return found
    for phase in (Phase.FORWARD, Phase.BACKWARD)[: workspace.threads]:
        begun = next(_begins(found, Phase.FORWARD if steady else phase), None)
        if begun is not None:
            begun = next(_products(found, begun), begun)  # a model without any has no use for it
            label = Label(f"cuBLAS, {phase} thread", Component.WORKSPACES)
            found = found.inserted(*begun, workspace.each, label)
    return found


def _products(events: RepeatedEvents, begun: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """(call, step) of each allocation of a product from a place on."""
    for number, call in enumerate(events.calls[begun[0] :], begun[0]):
        for place, (kind, _, _, _, what) in enumerate(call.program.steps):
            if kind == ALLOCATE and what.what in _PRODUCTS and (number, place) > begun:
                yield number, place


def _begins(events: RepeatedEvents, phase: Phase) -> Iterator[tuple[int, int]]:
    """(call, step) of each beginning of a phase."""
    for number, call in enumerate(events.calls):
        for name, step, *_ in call.program.spans:
            if name == phase:
                yield number, step


def allocator_run(events: RepeatedEvents, plan: RunPlan, device: Device | None) -> AllocatorRun:
    """The allocator's run over the events from `for_allocator`. On a device it can reserve only
    what the context leaves; if that is not enough, it is replayed without a limit, to say what it
    would take."""
    if device is not None:
        capacity = device.capacity_bytes - outside_torch(device, plan.groups).bytes
        run = simulate(events, AllocatorSettings(plan.segments, capacity))
        if not run.out_of_memory:
            return run
    return simulate(events, AllocatorSettings(plan.segments))


def for_allocator(
    events: RepeatedEvents,
    plan: RunPlan,
    device: Device | None = None,
    shape: ModelShape | None = None,
) -> RepeatedEvents:
    """The events that the allocator gets, with quantized weights loaded as by the library versions
    that were current with the plan's torch: read ahead of quantization or one by one."""
    if plan.quantized and parse_version(plan.torch) in _THREADED:
        loaded = list(events)
        ends = next((i for i, e in enumerate(loaded) if i and e[0] == PHASE), len(loaded))
        loaded[1:ends] = read_ahead(loaded[1:ends])
        events = repeated_events(loaded)
    found = with_warm_up(events, plan, device)
    return with_logits_held_back(found) if holds_logits_back(shape, plan) else found


def holds_logits_back(shape: ModelShape | None, plan: RunPlan) -> bool:
    """Whether an in-place cross entropy keeps the memory of its float32 logits unavailable until
    the backward pass is over.

    This is calibrated, not explained. On an A100 the driver counted one such copy more than the
    blocks that these runs use at once, to within 8 MiB in six of fourteen runs with batches of 4 to
    16 (fms-a100_80gb 12, 14, 36, 38, 80, 82 and fms-a100_80gb_liger 96, 97, 104, 105, 106, 112,
    113, 114: torch 2.4, transformers 4.48 and 4.45), while max_memory_allocated left no room for
    one. So the copy is modelled as freed but not yet available; if the device is full it does
    become available (115). Llama-3-8B had the copy too (fms-a100_80gb_liger 8, 16, 17); PowerLM-3b,
    of the Granite class, did not (fms-a100_80gb_granite 4 to 26: transformers 4.45). Neither did
    Mistral-7B in earlier versions: 4-bit runs took 16,809 and 27,953 MiB with transformers 4.43 and
    torch 2.4.0, and with 4.44 and torch 2.4.1 18,809 and 31,953 MiB at the same allocated bytes.
    The differences, 2,000 and 4,000 MiB, are one copy each. The model code that makes logits was
    the same in both.
    """
    if not plan.loss.startswith("in-place"):
        return False
    return plan.loss != "in-place" or shape is None or shape.family != "granite"


def logits_copy_bytes(shape: ModelShape | None, plan: RunPlan) -> int:
    """Bytes of the copy that may or may not be held back, whichever is assumed; 0 with other
    losses."""
    if shape is None or not plan.loss.startswith("in-place") or not plan.trains:
        return 0
    return SIZES["fp32"] * plan.tokens * shape.vocabulary


def with_logits_held_back(events: RepeatedEvents) -> RepeatedEvents:
    """Events in which freed float32 logits become available only after the backward pass."""
    found: list[Event] = []
    upcast: set[object] = set()
    phase, held = "", False
    for event in events:
        kind = event[0]
        if kind == FREE and event[1] in upcast and phase != Phase.BACKWARD:
            found.append((HOLD_BACK, event[1]))
            held = True
            continue
        if kind == PHASE:
            if held and phase == Phase.BACKWARD:
                found.append((HAND_BACK,))
                held = False
            phase = event[1]
        elif kind == ALLOCATE and event[3] == UPCAST:
            upcast.add(event[1])
        found.append(event)
    return repeated_events(found)


def with_warm_up(
    events: RepeatedEvents, plan: RunPlan, device: Device | None = None
) -> RepeatedEvents:
    """Events with the single tensor of all weights that transformers allocates and frees before it
    loads them to a GPU, so that they share its segment; this matters to the allocator only.
    Quantized weights are always loaded so; others are assumed to be loaded to the CPU first."""
    if not plan.quantized:
        return events
    begun = next(_begins(events, Phase.LOAD), None)
    if begun is None:
        return events
    nbytes = warm_up_bytes(_loaded(events), None if device is None else device.capacity_bytes)
    return events.inserted(*begun, nbytes, WARM_UP, freed=True)


def _loaded(events: RepeatedEvents) -> int:
    """Bytes of weights, unrounded, that are allocated before the second phase begins."""
    loaded, phases = 0, 0
    for call in events.calls:
        for kind, _, _, nbytes, what in call.program.steps:
            if kind == PHASE:
                phases += 1
            elif kind == ALLOCATE and what.component is Component.WEIGHTS:
                loaded += nbytes
            if phases > 1:
                return loaded
    return loaded


class _Read(NamedTuple):
    """A tensor of the checkpoint: its allocation, and the events of what is then made of it."""

    put: Event
    made: list[Event]


def empties_cache(torch: str) -> bool:
    """Whether the peft version that was current with a torch version empties the cache after k-bit
    preparation."""
    return parse_version(torch) >= _EMPTIES_SINCE


def read_ahead(events: Sequence[Event]) -> list[Event]:
    """The events of a load, in the order in which four reading threads and one quantizing thread
    make them."""
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
    """What is put on the GPU, in order, each with the events up to the free of the tensor that is
    quantized. Events that neither allocate nor free are left out."""
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
    """For each tensor, when its memory is allocated and when it is filled, in units of bytes
    copied."""
    began, ended = [0.0] * len(sizes), [0.0] * len(sizes)
    waiting = iter(range(len(sizes)))
    # (time, order, tensor that is converted; None for a free thread)
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
