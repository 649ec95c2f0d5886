"""The estimate: what a run needs, from its shape and plan, at four levels that are never mixed.

Live bytes are those of the tensors that a program holds, each rounded up to 512 bytes. Allocated
bytes are those of the allocator's blocks (max_memory_allocated), reserved bytes those of its
segments (max_memory_reserved). A process also takes the CUDA context and modules, which only the
driver counts (NVML).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.device import (
    Device,
    context_bytes,
    cublas_workspace,
    nccl_bytes,
    outside_torch,
)
from qtui_core.memory.formulas.size import letter
from qtui_core.memory.formulas.terms import Basis, Term, Terms, slack_term
from qtui_core.memory.plan.run_plan import RunPlan, plan_as_run, resolve_for
from qtui_core.memory.replay.allocator import AllocatorSettings, simulate
from qtui_core.memory.replay.folding import peak_levels
from qtui_core.memory.replay.record import RESIDENT, Phase, Recording, RepeatedEvents
from qtui_core.memory.replay.timeline import Curve, Peaks, Timeline, draw
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.device_events import (
    allocator_run,
    for_allocator,
    logits_copy_bytes,
    with_workspaces,
)
from qtui_core.memory.step.run import read_step, record_step
from qtui_core.memory.step.sharding import record_on_one_gpu

#: Terms: what the allocator caches, optimizer states that the driver may move to the host, what
#: only the driver counts, and what NCCL takes if GPUs communicate.
CACHED: Final = "kept by the allocator"
PAGED: Final = "paged optimizer states"
CONTEXT: Final = "context and modules of CUDA"
NCCL: Final = "communicators of NCCL"

#: What a step of a family takes beside what stays, as shares of what the nearest kind of decoder
#: does. Of 48 steps of models of 2025 and 2026 whose classes were traced, 44 are within; eager
#: attention (an inference of gpt-oss, 4.7), and adapters over experts that peft finds under names
#: that config.json does not tell (a LoRA of Kimi K2.5, 29), are beyond.
ASSUMED_RANGE: Final = (0.35, 2.15)

_ORDER: Final = {phase.value: place for place, phase in enumerate(Phase)}
#: From the weakest basis to the strongest.
_BASES: Final[tuple[Basis, ...]] = ("assumed", "calibrated", "derived", "exact")


@dataclass(frozen=True)
class PhaseBytes:
    """A phase of the run: the most bytes alive and allocated in it, over all steps, and the
    operation at which the most bytes were alive."""

    name: str
    live_bytes: int
    allocated_bytes: int
    operation: str

    PRINTED = ("name", "allocated_bytes", "live_bytes", "operation")


@dataclass(frozen=True)
class Estimate:
    """What a run needs. All figures are bytes.

    Attributes:
        shape, plan, device: what it was made from; every option of the plan has a value. An
            estimate from a trace needs no shape, and has none for a family that is not built in.
        peak_live_bytes, peak_allocated_bytes: the peaks at these levels.
        peak_reserved_bytes: of segments; None if the allocator was not simulated.
        process_bytes: reserved (else allocated) bytes and the terms of `beyond`. After retries, the
            reserved bytes with which the run then goes on count, as the driver would report them.
        peak_phase, peak_operation: where the most is allocated.
        beyond: the terms between peak_allocated_bytes and process_bytes.
        phases: in order.
        events: of the recording, with workspaces.
        replayed: the same events as passed to the allocator; None if it was not simulated.
        timeline: of all events; `peak` is the event after which the most is alive.
        origin: "tape", "trace", or "bounds" if the nearest kind of decoder stands in for a family.
        logits_copy_bytes: the part of the uncertainty that is a float32 copy of the logits, which
            the allocator may cache in addition.
        retries: how often the device was full and the allocator gave back its cache, which takes
            time; 0 if the run does not fit even then.
    """

    shape: ModelShape | None
    plan: RunPlan
    device: Device | None
    peak_live_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    process_bytes: int
    peak_phase: str
    peak_operation: str
    beyond: tuple[Term, ...]
    phases: tuple[PhaseBytes, ...]
    origin: str
    logits_copy_bytes: int
    retries: int
    events: RepeatedEvents = field(repr=False, compare=False)
    replayed: RepeatedEvents | None = field(repr=False, compare=False)
    timeline: Timeline = field(repr=False, compare=False)
    peak: int = field(repr=False, compare=False)

    @cached_property
    def resident_bytes(self) -> int:
        """Alive between two steps: weights, adapters, optimizer states, workspaces."""
        between = [span.start for span in self.timeline.spans if span.name == Phase.BETWEEN]
        alive = self.timeline.alive_at(between[-1] if between else len(self.events))
        return sum(held.copies * held.bytes for held in alive if held.component in RESIDENT)

    @property
    def resident_allocated_bytes(self) -> int:
        """`resident_bytes` in blocks of the allocator, as torch counts them."""
        slack = (p.allocated_bytes - p.live_bytes for p in self.phases if p.name == Phase.BETWEEN)
        return self.resident_bytes + sum(slack)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """What is alive at the peak: a term with a formula for each kind of buffer, and one for the
        rounding of blocks. Their sum is peak_allocated_bytes."""
        return (*self.alive.each, *self._slack)

    @cached_property
    def components(self) -> tuple[Term, ...]:
        """The terms by component; their sum is peak_allocated_bytes."""
        return (*self.alive.components, *(replace(term, component="") for term in self._slack))

    @cached_property
    def peaks(self) -> Peaks:
        """The most live bytes in each phase."""
        found: dict[str, int] = {}
        for span, (live, _) in zip(self.timeline.spans, self.timeline.tops, strict=True):
            found[span.name] = max(live, found.get(span.name, 0))
        return Peaks(found)

    @cached_property
    def curve(self) -> Curve:
        """The curve of the last step, to draw."""
        spans = self.timeline.spans
        ends = [number for number, span in enumerate(spans, 1) if span.name == Phase.BETWEEN]
        last = spans[ends[-2] :] if len(ends) > 1 else spans
        begun = next((span.start for span in last if span.name == Phase.FORWARD), 0)
        return draw(self.timeline, begun)

    @property
    def basis(self) -> Basis:
        """The weakest basis among the components."""
        known = {term.basis for term in self.components}
        return next((basis for basis in _BASES if basis in known), "exact")

    @property
    def spread(self) -> tuple[int, int]:
        """How many bytes less and more than expected the run may take, as its activations are those
        of a stand-in; zeros if they are its own."""
        assumed = self.peak_allocated_bytes - self.resident_bytes if self.origin == "bounds" else 0
        low, high = ASSUMED_RANGE
        return round(max(0, assumed) * (1 - low)), round(max(0, assumed) * (high - 1))

    @property
    def uncertainty_bytes(self) -> int:
        """How far the process may be off because of figures that were measured on other machines,
        or because activations are assumed."""
        measured = outside_torch(self.device, self.plan.groups).uncertainty
        return measured + self.logits_copy_bytes + self.spread[1]

    @cached_property
    def alive(self) -> Terms:
        """The buffers that are alive at the peak."""
        return Terms(self.timeline.alive_at(self.peak), self.shape, self.plan.quant)

    @cached_property
    def _slack(self) -> tuple[Term, ...]:
        alive = sum(held.bytes for held in self.alive.held)
        whole = self.peak_allocated_bytes
        return (slack_term(whole, alive),) if whole > alive else ()

    def reserved_with(self, settings: AllocatorSettings) -> int:
        """The peak of reserved bytes of the same run with other settings of the allocator. Only for
        a run that was simulated."""
        assert self.replayed is not None
        return simulate(self.replayed, settings).peak.reserved


def estimate(
    shape: ModelShape, plan: RunPlan, device: Device | None = None, *, allocator: bool = True
) -> Estimate:
    """What a run of `plan` on a model of `shape` needs on one GPU, of the kind `device` if given.
    Options that the plan leaves open get the usual values for the method and the model.

    Without `allocator`, the allocator is not simulated, which saves most of the time: allocated
    bytes are then those of tensors, and reserved bytes are unknown.

    Raises UsageError for a plan that is impossible, in itself or for this model.
    """
    plan = plan_as_run(shape, resolve_for(shape, plan), device)
    return estimate_as_run(shape, plan, device, allocator=allocator)


def estimate_as_run(
    shape: ModelShape, plan: RunPlan, device: Device | None = None, *, allocator: bool = True
) -> Estimate:
    """The same for a plan from `plan_as_run`, in which every option has a value."""
    lettered = replace(  # its sizes have letters for formulas
        plan,
        batch=letter("B", plan.batch),
        sequence=letter("S", plan.sequence),
        generate=letter("g", plan.generate) if plan.generate else 0,
        lora_rank=letter("r", plan.lora_rank),
    )
    record = record_on_one_gpu if plan.gpus > 1 or plan.pages else record_step
    recording = record(shape, lettered)
    return estimate_recording(recording, shape, plan, device, allocator=allocator)


def estimate_recording(
    recording: Recording,
    shape: ModelShape | None,
    plan: RunPlan,
    device: Device | None = None,
    *,
    allocator: bool = True,
) -> Estimate:
    """The estimate of a run that was recorded, on a tape or in a trace. Every option of the plan
    has a value."""
    events = with_workspaces(recording.events, plan, device, steady=recording.steady)
    timeline = Timeline(events)
    tops = timeline.tops
    levels = [live for live, _ in tops]
    reserved, lasting, retries = None, None, 0
    replayed = for_allocator(events, plan, device, shape) if allocator else None
    if replayed is not None:
        run = allocator_run(replayed, plan, device)
        # Recordings begin with a phase, so that spans are phases.
        levels = [phase.peak.allocated for phase in run.phases]
        reserved, lasting, retries = run.peak.reserved, run.lasting_reserved, run.retries
    allocated = max(levels, default=0)
    fullest = levels.index(allocated)
    peak = tops[fullest][1]
    paged = recording.paged_bytes if plan.pages else None
    stands_in = shape is not None and shape.known == "assumed"
    beyond = tuple(_beyond_allocated(allocated, lasting, paged, plan.groups, device))
    return Estimate(
        shape=shape,
        plan=plan,
        device=device,
        peak_live_bytes=timeline.most,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        process_bytes=allocated + sum(term.bytes for term in beyond),
        peak_phase=timeline.spans[fullest].name,
        peak_operation=timeline.operation_at(peak),
        beyond=beyond,
        phases=_phases(timeline, levels),
        origin="bounds" if stands_in else recording.origin,
        logits_copy_bytes=logits_copy_bytes(shape, plan),
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
    """The terms above the peak of allocated bytes: `reserved` bytes that the run goes on with,
    `paged` bytes of an optimizer with paged states, `groups` the sizes of the groups of GPUs."""
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
    measured = [(CONTEXT, context_bytes(device), "")]
    if groups:
        of = f" for {len(groups)} group{'s' if len(groups) > 1 else ''} of GPUs"
        measured.append((NCCL, nccl_bytes(groups), of))
    for name, found, of in measured:
        formula = f"measured, {found.low:,} to {found.high:,}{of}"
        numbers = f"{found.bytes:,}"
        yield Term(name, found.bytes, formula, "calibrated", found.source, numbers=numbers)


def quick_estimate(shape: ModelShape, plan: RunPlan, device: Device | None = None) -> Estimate:
    """The estimate of a step after the first, without the allocator, paged states, and letters in
    formulas: a sixth of the time, for a setting that is being changed interactively. Every option
    of `plan` has a value.

    Raises UsageError for a plan that is impossible for this model.
    """
    plan = plan_as_run(shape, plan, device)
    if plan.gpus > 1:  # what is kept of what GPUs send each other is made in the first step
        recording = record_on_one_gpu(shape.plain, plan)
    else:
        recording = record_step(shape.plain, plan, 1, steady=True)
    return estimate_recording(recording, shape, plan, device, allocator=False)


def estimate_peaks(shape: ModelShape, plan: RunPlan, device: Device | None = None) -> Peaks:
    """Only the peak of live bytes in each phase of a `quick_estimate`: used to compare plans."""
    plan = plan_as_run(shape, plan, device)
    if plan.gpus > 1:  # shards are cut from the events of all layers
        return quick_estimate(shape, plan, device).peaks
    held, found = 0, dict[str, int]()
    for phase, live in read_step(peak_levels, shape.plain, plan, 1, steady=True):
        if phase == Phase.FORWARD:  # as `with_workspaces`
            held = cublas_workspace(plan.torch, device, trains=plan.trains).bytes
        found[phase] = max(live + held, found.get(phase, 0))
    return Peaks(found)


def process_on(found: Estimate, device: Device) -> int:
    """Bytes of the process on another device than the estimate's, with the context and workspaces
    of that device."""
    plan = found.plan
    before = cublas_workspace(plan.torch, found.device, trains=plan.trains).bytes
    after = cublas_workspace(plan.torch, device, trains=plan.trains).bytes
    context = context_bytes(device).bytes - context_bytes(found.device).bytes
    return found.process_bytes + after - before + context


def _phases(timeline: Timeline, levels: Sequence[int]) -> tuple[PhaseBytes, ...]:
    """Phases by name, in their order, each with the most bytes allocated and alive in any of its
    spans."""
    found: dict[str, PhaseBytes] = {}
    for span, allocated, (live, at) in zip(timeline.spans, levels, timeline.tops, strict=True):
        before = found.get(span.name)
        if before is None or allocated > before.allocated_bytes:
            operation = timeline.operation_at(at)
            found[span.name] = PhaseBytes(span.name, live, allocated, operation)
    return tuple(sorted(found.values(), key=lambda phase: _ORDER.get(phase.name, 0)))
