"""The estimate: what a run needs, from its shape and plan, at four levels that are never mixed.

Live tensors are what a program holds, each rounded up to 512 bytes. Allocated bytes are those of
the allocator's blocks (max_memory_allocated), reserved bytes those of its segments
(max_memory_reserved). A process takes the context and the modules of CUDA besides (NVML).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.device import Device
from qtui_core.memory.devices.workspaces import (
    context_bytes,
    cublas_workspace,
    nccl_bytes,
    outside_torch,
)
from qtui_core.memory.formulas.size import letter
from qtui_core.memory.formulas.terms import Basis, Term, Terms, slack_term
from qtui_core.memory.plan.run_plan import RunPlan, plan_as_run, resolve_for
from qtui_core.memory.replay.allocator import AllocatorSettings, simulate
from qtui_core.memory.replay.calls import RepeatedEvents
from qtui_core.memory.replay.curve import Curve, Peaks, draw, read_peaks
from qtui_core.memory.replay.folding import Fold
from qtui_core.memory.replay.record import (
    ALLOCATE,
    PHASE,
    RESIDENT,
    Component,
    Event,
    Phase,
    Recording,
)
from qtui_core.memory.replay.stretching import peak_levels
from qtui_core.memory.replay.timeline import Timeline, read_timeline
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.collectives import record_on_one_gpu
from qtui_core.memory.step.on_device import (
    allocator_run,
    for_allocator,
    logits_copy_bytes,
    with_workspaces,
)
from qtui_core.memory.step.run import record_repeated, record_step

#: The term of what the allocator keeps.
CACHED: Final = "kept by the allocator"
#: The term of states that the driver may move to the host.
PAGED: Final = "paged optimizer states"
#: The term of what only the driver counts.
CONTEXT: Final = "context and modules of CUDA"

#: The term of what NCCL takes where GPUs talk to each other.
NCCL: Final = "communicators of NCCL"

#: Phases in which nothing is multiplied yet.
_BEFORE_STEPS: Final = frozenset((Phase.LOAD.value, Phase.PREPARE.value))
#: The weakest basis first.
_BASES: Final[tuple[Basis, ...]] = ("assumed", "calibrated", "derived", "exact")


@dataclass(frozen=True)
class PhaseBytes:
    """A phase of the run: the most bytes alive and allocated in it, in whichever step that was,
    and the operation at which the most were alive."""

    name: str
    live_bytes: int
    allocated_bytes: int
    operation: str

    PRINTED = ("name", "allocated_bytes", "live_bytes", "operation")


@dataclass(frozen=True)
class Estimate:
    """What a run needs. Bytes throughout.

    Attributes:
        shape, plan, device: what it was made from; nothing of the plan is left open. A trace needs
            no shape, and has none for a family that is not built in.
        resident_bytes: alive between two steps: weights, adapters, optimizer states, workspaces.
        peak_live_bytes, peak_allocated_bytes: the most at these levels.
        peak_reserved_bytes: of segments; None without the simulation of the allocator.
        process_bytes: reserved (else allocated) and what `beyond` adds. After retries it is what
            the run then goes on with that counts, which a look at the driver finds.
        peak_phase, peak_operation: where the most is allocated.
        beyond: what leads from peak_allocated_bytes to process_bytes.
        phases: in order.
        events: of the recording, with workspaces.
        replayed: the same as the allocator is given them; None without its simulation.
        timeline: of all events; `peak` is the one after which the most is alive.
        origin: "tape" or "trace".
        uncertainty_bytes: how far the process may be off for what was measured elsewhere.
        logits_copy_bytes: the part of it that is a copy of the logits in float32, which the
            allocator may keep besides.
        retries: times that the device had no more and the allocator gave back what no one used,
            which takes time; 0 where the run does not fit even so.
    """

    shape: ModelShape | None
    plan: RunPlan
    device: Device | None
    resident_bytes: int
    peak_live_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    process_bytes: int
    peak_phase: str
    peak_operation: str
    beyond: tuple[Term, ...]
    phases: tuple[PhaseBytes, ...]
    origin: str
    uncertainty_bytes: int
    logits_copy_bytes: int
    retries: int
    events: RepeatedEvents = field(repr=False, compare=False)
    replayed: RepeatedEvents | None = field(repr=False, compare=False)
    timeline: Timeline = field(repr=False, compare=False)
    peak: int = field(repr=False, compare=False)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """What is alive at the peak: each kind of buffer with its formula, and what blocks are
        larger than asked for. They sum to peak_allocated_bytes."""
        return (*self.alive.each, *self._slack)

    @cached_property
    def components(self) -> tuple[Term, ...]:
        """The terms by what they are for; they sum to peak_allocated_bytes."""
        return (*self.alive.components, *(replace(term, component="") for term in self._slack))

    @cached_property
    def curve(self) -> Curve:
        """Of the last step, to draw."""
        return draw(self.timeline, _last_step(self.timeline))

    @property
    def basis(self) -> Basis:
        """The weakest of the components'."""
        known = {term.basis for term in self.components}
        return next((basis for basis in _BASES if basis in known), "exact")

    @cached_property
    def alive(self) -> Terms:
        """The buffers that are alive at the peak."""
        return Terms(self.timeline.alive_at(self.peak), self.shape, self.plan.quantized)

    @cached_property
    def _slack(self) -> tuple[Term, ...]:
        alive = sum(held.bytes for held in self.alive.held)
        whole = self.peak_allocated_bytes
        return (slack_term(whole, alive),) if whole > alive else ()

    def reserved_with(self, settings: AllocatorSettings) -> int:
        """The peak of reserved bytes of the same run under other settings of the allocator, whose
        run was simulated."""
        assert self.replayed is not None
        return simulate(self.replayed, settings).peak.reserved

    def phase(self, name: str) -> int:
        """The most allocated in a phase, 0 where the run has none of that name."""
        return max((p.allocated_bytes for p in self.phases if p.name == name), default=0)


def estimate(
    shape: ModelShape, plan: RunPlan, device: Device | None = None, *, allocator: bool = True
) -> Estimate:
    """What a run of `plan` on a model of `shape` needs on one GPU, `device` if named. What is open
    in the plan is as usual for the method and the model.

    Without `allocator` its simulation is left out, which takes most of the time: allocated bytes
    are then those of tensors, and reserved bytes unknown.

    Raises UsageError for a plan that cannot be, or not on this model.
    """
    plan = plan_as_run(shape, resolve_for(shape, plan), device)
    return estimate_as_run(shape, plan, device, allocator=allocator)


def estimate_as_run(
    shape: ModelShape, plan: RunPlan, device: Device | None = None, *, allocator: bool = True
) -> Estimate:
    """The same of a plan as it runs on the device, of which nothing is open (`plan_as_run`)."""
    lettered = replace(  # whose sizes go by letters
        plan,
        batch=letter("B", plan.batch),
        sequence=letter("S", plan.sequence),
        generate=letter("g", plan.generate) if plan.generate else 0,
        lora_rank=letter("r", plan.lora_rank),
    )
    recording = record_on_one_gpu(shape, lettered, record_step)
    return estimate_recording(recording, shape, plan, device, allocator=allocator)


def estimate_recording(
    recording: Recording,
    shape: ModelShape | None,
    plan: RunPlan,
    device: Device | None = None,
    *,
    allocator: bool = True,
) -> Estimate:
    """The estimate of a run that was recorded, on a tape or in a trace. The plan leaves nothing
    open."""
    events = with_workspaces(recording.events, plan, device)
    logits_copy = logits_copy_bytes(shape, plan)
    timeline = read_timeline(events)
    tops = timeline.tops
    levels = [live for live, _ in tops]
    reserved, lasting, retries = None, None, 0
    replayed = for_allocator(events, plan, device, shape) if allocator else None
    if replayed is not None:
        run = allocator_run(replayed, plan, device)
        # Recordings begin with a phase, so that phases are spans.
        levels = [phase.peak.allocated for phase in run.phases]
        reserved, lasting, retries = run.peak.reserved, run.lasting_reserved, run.retries
    allocated = max(levels, default=0)
    fullest = levels.index(allocated)
    peak = tops[fullest][1]
    paged = recording.paged_bytes if plan.pages else None
    beyond = tuple(_beyond_allocated(allocated, lasting, paged, plan.groups, device))
    return Estimate(
        shape=shape,
        plan=plan,
        device=device,
        resident_bytes=_resident(timeline),
        peak_live_bytes=max((live for live, _ in tops), default=0),
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        process_bytes=allocated + sum(term.bytes for term in beyond),
        peak_phase=timeline.spans[fullest].name,
        peak_operation=timeline.operation_at(peak),
        beyond=beyond,
        phases=_phases(timeline, levels),
        origin=recording.origin,
        uncertainty_bytes=outside_torch(device, plan.groups).uncertainty + logits_copy,
        logits_copy_bytes=logits_copy,
        retries=retries,
        events=events,
        replayed=replayed,
        timeline=timeline,
        peak=peak,
    )


def _beyond_allocated(
    allocated: int,
    reserved: int | None,
    paged: int | None,
    groups: Sequence[int],
    device: Device | None,
) -> Iterator[Term]:
    """What comes on top of the peak of allocated bytes: `reserved` are those that last, `paged`
    those of an optimizer whose states are paged, `groups` the sizes of those of GPUs."""
    if reserved is not None:
        yield Term(
            CACHED,
            reserved - allocated,
            "reserved - allocated, each at its peak",
            "derived",
            "c10/cuda/CUDACachingAllocator.cpp, replayed over the run",
            numbers=f"{reserved:,} - {allocated:,}",
        )
    if paged is not None:
        yield Term(
            PAGED,
            paged,
            "cudaMallocManaged; on the GPU as long as there is room",
            "exact",
            "get_state_buffer of bitsandbytes",
            numbers=f"{paged:,}",
        )
    context = context_bytes(device)
    yield Term(
        CONTEXT,
        context.bytes,
        f"measured, {context.low:,} to {context.high:,}",
        "calibrated",
        context.source,
        numbers=f"{context.bytes:,}",
    )
    if groups:
        nccl = nccl_bytes(groups)
        yield Term(
            NCCL,
            nccl.bytes,
            f"measured, {nccl.low:,} to {nccl.high:,} for {len(groups)} "
            f"group{'s' if len(groups) > 1 else ''} of GPUs",
            "calibrated",
            nccl.source,
            numbers=f"{nccl.bytes:,}",
        )


def estimate_peaks(shape: ModelShape, plan: RunPlan, device: Device | None = None) -> Peaks:
    """The most alive in each phase, and no more: what plans are compared by, in a tenth of the
    time. Nothing of `plan` is open.

    Raises UsageError for a plan that cannot be on this model.
    """
    plan = plan_as_run(shape, plan, device)
    shape = shape.plain
    if plan.loop == "script":  # whose first step is like no other
        recording = record_on_one_gpu(shape, plan, record_step)
        return read_peaks(with_workspaces(recording.events, plan, device))
    levels: Iterable[tuple[str, int]]
    if plan.gpus > 1:  # whose shards are cut after the layers are copied
        levels = read_peaks(record_on_one_gpu(shape, plan, record_step).events).by_phase.items()
    else:
        levels = record_repeated(shape, plan, _peak_levels)
    workspaces = cublas_workspace(plan.torch, device, trains=plan.trains).bytes
    found: dict[str, int] = {}
    for phase, live in levels:
        held = 0 if phase in _BEFORE_STEPS else workspaces
        found[phase] = max(live + held, found.get(phase, 0))
    return Peaks(found)


def _peak_levels(events: Sequence[Event], folds: Sequence[Fold]) -> tuple[tuple[str, int], ...]:
    """peak_levels of a step that begins with the states of the optimizer: these are made after the
    first batch, and do not count as what the preparation takes."""
    first = next((i for i, e in enumerate(events) if e[0] == PHASE and e[1] == Phase.FORWARD), 0)
    batches = [
        i
        for i, event in enumerate(events[:first])
        if event[0] == ALLOCATE and event[3].component is Component.INPUTS
    ]
    if batches:
        events = [*events[: batches[-1] + 1], (PHASE, Phase.BETWEEN), *events[batches[-1] + 1 :]]
    return tuple(peak_levels(events, folds))


def process_on(found: Estimate, device: Device) -> int:
    """Bytes of the process on another device than the estimate's, whose context and workspaces
    are others."""
    plan = found.plan
    before = cublas_workspace(plan.torch, found.device, trains=plan.trains).bytes
    after = cublas_workspace(plan.torch, device, trains=plan.trains).bytes
    context = context_bytes(device).bytes - context_bytes(found.device).bytes
    return found.process_bytes + after - before + context


def _phases(timeline: Timeline, levels: Sequence[int]) -> tuple[PhaseBytes, ...]:
    """Phases by name, in the order in which they first appear, from the most that is allocated and
    alive in each span."""
    found: dict[str, PhaseBytes] = {}
    for span, allocated, (live, at) in zip(timeline.spans, levels, timeline.tops, strict=True):
        before = found.get(span.name)
        if before is None or allocated > before.allocated_bytes:
            operation = timeline.operation_at(at)
            found[span.name] = PhaseBytes(span.name, live, allocated, operation)
    return tuple(found.values())


def _resident(timeline: Timeline) -> int:
    """Bytes of what stays, when the last step is over."""
    over = [span.start for span in timeline.spans if span.name == Phase.BETWEEN]
    at = over[-1] if over else len(timeline.events) - 1
    return sum(a.copies * a.bytes for a in timeline.alive_at(at) if a.component in RESIDENT)


def _last_step(timeline: Timeline) -> int:
    """The event with which the last step begins."""
    starts = [span.start for span in timeline.spans]
    ends = [i for i, span in enumerate(timeline.spans) if span.name == Phase.BETWEEN]
    if len(ends) < 2:
        return next((s.start for s in timeline.spans if s.name == Phase.FORWARD), 0)
    return starts[ends[-2] + 1]


__all__ = [
    "CACHED",
    "CONTEXT",
    "NCCL",
    "PAGED",
    "Estimate",
    "PhaseBytes",
    "estimate",
    "estimate_as_run",
    "estimate_peaks",
    "estimate_recording",
    "process_on",
]
