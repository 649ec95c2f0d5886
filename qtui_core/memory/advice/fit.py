"""Whether an estimate fits a GPU, the largest batch or sequence that does, the smallest GPU that it
fits, and what each change of the plan would save, found by estimating the changed plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from qtui_core.codec import or_null
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import DEVICES, Device, cublas_workspace
from qtui_core.memory.dtypes import FLOATING
from qtui_core.memory.estimate import CACHED, PAGED, Estimate, estimate, estimate_peaks, process_on
from qtui_core.memory.plan.options import options_of
from qtui_core.memory.plan.run_plan import RunPlan, has_flash, plan_on, resolve_for
from qtui_core.memory.replay.allocator import AllocatorSettings
from qtui_core.memory.replay.record import Phase
from qtui_core.memory.replay.timeline import Peaks
from qtui_core.memory.shape.model_shape import ModelShape

#: Estimates the peaks of a plan for the model in question.
Estimator = Callable[[RunPlan], Peaks]

#: A change is listed if it saves at least one part in this many of the peak.
_WORTH: Final = 500

#: Replaying a long run with expandable segments takes longer than all other changes together. It is
#: done if the allocator caches at least one part in this many of what it reserves, and for runs
#: with few events.
_KEPT_WORTH: Final = 10
_FEW_EVENTS: Final = 45_000


@dataclass(frozen=True)
class Advice:
    """A change and its effect.

    Attributes:
        change: what to type.
        plan: the changed plan.
        saves_bytes: of the peak of allocated bytes; of reserved bytes for `--segments`.
        cost: what it costs.
        peak_phase: the phase of the peak after the change.
        saves_by_phase: how much the peak of each phase falls, in allocated bytes.
    """

    change: str
    plan: RunPlan
    saves_bytes: int
    cost: str
    peak_phase: str
    saves_by_phase: Mapping[str, int]

    PRINTED = ("change", "saves_bytes", "cost", "peak_phase")


@dataclass(frozen=True)
class Cure:
    """A way to run out of memory.

    Attributes:
        kind: a phase, or FRAGMENTATION.
        symptom: how it shows.
        needs_bytes: what is needed there.
        change: what helps most, as it is typed; empty if no option of the plan helps.
        saves_bytes: how much less is then needed.
    """

    kind: str
    symptom: str
    needs_bytes: int
    change: str
    saves_bytes: int

    PRINTED = ("kind", "symptom", "needs_bytes", ("change", or_null("change")), "saves_bytes")


def advise(estimate: Estimate, estimator: Estimator) -> tuple[Advice, ...]:
    """All possible changes, those that save most first; none for a model without a shape."""
    if estimate.shape is None:
        return ()
    base = estimator(estimate.plan)
    found = []
    for changes, cost in [*candidates(estimate.shape, estimate.plan)]:
        try:
            plan = resolve_for(estimate.shape, replace(estimate.plan, **changes))
            changed = estimator(plan)
        except UsageError:
            continue  # impossible on this model, or together with the rest of the plan
        by_phase = {
            name: most - changed.by_phase.get(name, 0) for name, most in base.by_phase.items()
        }
        words = estimate.plan.change_to(plan)
        saved = base.bytes - changed.bytes
        found.append(Advice(words, plan, saved, cost, changed.phase, by_phase))
    found.sort(key=lambda advice: -advice.saves_bytes)
    return tuple(found)


def worthwhile(advice: Sequence[Advice], peak: int) -> tuple[Advice, ...]:
    """The changes that save enough of the peak to be listed."""
    return tuple(a for a in advice if a.saves_bytes * _WORTH >= peak)


def candidates(shape: ModelShape, plan: RunPlan) -> Iterator[tuple[dict[str, Any], str]]:
    """(options to change, the cost) for all changes that might save memory: from the rows of the
    options, and those that depend on the model or change several options."""
    for option in options_of(type(plan)):
        if not option.counts(plan) or (option.name == "loss" and shape.is_encoder):
            continue
        value = getattr(plan, option.name)
        for cheaper in option.cheaper:
            if value != cheaper.value and cheaper.where(plan):
                yield {option.name: cheaper.value}, cheaper.cost
    yield from ((changes, cost) for holds, changes, cost in _rows(shape, plan) if holds)


def _rows(shape: ModelShape, plan: RunPlan) -> Iterator[tuple[object, dict[str, Any], str]]:
    """(whether it is a change of this plan, options to change, the cost)."""
    trains, packing, half = plan.trains, shape.packing, plan.batch // 2
    whole = plan.method in ("full", "lora")  # weights that are not quantized, mostly
    stored = whole and packing is not None and not packing.untrained
    plain = shape.packing_under(plan.quant) is None
    reenters = plan.checkpointing and plan.reentrant
    left = "embeddings, head, " if plan.kbit_prep == "all" else ""
    eager = any(getattr(layer.attention, "eager", False) for layer in shape.layers[:2])
    gathers = "weights are gathered for every layer, forward and backward"
    shards = plan.data_parallel > 1
    unsharded = shards and plan.four_bits and plan.quant_storage not in FLOATING
    # fmt: off
    if trains:
        yield (plan.dtype == "fp32" and not plan.autocast, {"autocast": True},
               "products in 16 bits")
        yield (plan.method == "full", {"method": "lora"},
               "trains low-rank adapters and not the weights")
        yield (stored, {"method": "qlora", "quant": shape.packed_as, "kbit_prep": None},
               "trains adapters over the weights as the checkpoint stores them")
        yield (whole and not stored,
               {"method": "qlora", "quant": "nf4-dq", "kbit_prep": "all", "autocast": True,
                "checkpointing": True},
               "trains adapters over 4-bit weights")
        yield (plan.quant in ("nf4", "fp4") and plain, {"quant": f"{plan.quant}-dq"},
               "hardly any accuracy")
        yield (plan.quant == "int8" and plain, {"quant": "nf4-dq"}, "accuracy of 4-bit weights")
        # MatMul8bitLt keeps its input on `ctx` itself, where the hooks of the newer way of
        # checkpointing do not see it; the older way runs it without a graph.
        yield (plan.quant == "int8" and not reenters, {"checkpointing": True, "reentrant": True},
               "the older way of checkpointing"
               + ", a third more compute" * (not plan.checkpointing))
        yield (plan.kbit_prep == "all", {"kbit_prep": "norms"},
               "embeddings and head stay in 16 bits")
        yield (plan.kbit_prep in ("all", "norms"), {"kbit_prep": "none"},
               f"{left}norms and residual stream stay in 16 bits")
    else:
        # A quantized checkpoint cannot be quantized in another way, only be kept as it is.
        yield (packing is not None and not plan.quantized, {"quant": shape.packed_as},
               "nothing that the checkpoint has not already cost")
        bare = packing is None and plan.quant is None
        yield (bare, {"quant": "nf4-dq"}, "accuracy of 4-bit weights; dequantizing takes time")
        yield (bare, {"quant": "int8"}, "accuracy of 8-bit weights; slower products")
        yield (plan.generate, {"generate": plan.generate // 2}, "half the answer")
        yield (plan.batch > 1, {"batch": half}, "half as many at once")
    yield (trains and half and plan.batch % 2 == 0,
           {"batch": half, "accumulation": plan.accumulation * 2},
           "nothing in the result; smaller products are a little slower")
    yield (trains and plan.batch > 2,
           {"batch": 1, "accumulation": plan.accumulation * plan.batch},
           "nothing in the result; small products are slower")
    yield plan.sequence > 256, {"sequence": plan.sequence // 2}, "half the context"
    yield (plan.attention == "eager" and not eager, {"attention": "sdpa"},
           "nothing: the same result, and faster")
    yield (plan.attention in ("eager", "efficient") and plan.padding_mask,
           {"attention": "sdpa", "padding_mask": False}, "packed sequences instead of padded")
    yield (plan.attention == "sdpa" and plan.padding_mask, {"padding_mask": False},
           "packed sequences instead of padded ones")
    yield (plan.dtype == "fp32" and not plan.adapts, {"dtype": "bf16", "autocast": False},
           "precision of bfloat16 throughout")
    yield unsharded, {"zero": 3, "quant_storage": "bf16"}, gathers
    yield shards and not unsharded and plan.zero < 3, {"zero": 3}, gathers
    yield (shards and trains and plan.zero < 2, {"zero": 2},
           "gradients are scattered to their owners")
    # fmt: on


#: Where memory runs out -> how that shows.
_SYMPTOMS: Final = {
    Phase.LOAD: "torch.OutOfMemoryError in from_pretrained",
    Phase.PREPARE: "torch.OutOfMemoryError in prepare_model_for_kbit_training or get_peft_model",
    Phase.FORWARD: "torch.OutOfMemoryError inside a layer, in the first forward pass",
    Phase.LOSS: "torch.OutOfMemoryError in cross_entropy, or in the first steps of backward()",
    Phase.BACKWARD: "torch.OutOfMemoryError in backward(), inside a layer",
    Phase.OPTIMIZER: "torch.OutOfMemoryError in optimizer.step(), most often in the first step",
}
FRAGMENTATION: Final = "fragmentation"
_FRAGMENTED: Final = (
    'torch.OutOfMemoryError that says "reserved by PyTorch but unallocated" is large, after steps '
    "that went well"
)


def cures(estimate: Estimate, advice: Sequence[Advice]) -> tuple[Cure, ...]:
    """For each phase in which a run can run out of memory, the change that saves most there: among
    those that train the same if one helps, else among all."""
    found = []
    for phase in estimate.phases:
        symptom = _SYMPTOMS.get(Phase(phase.name))
        if symptom is None:
            continue
        best = _best(estimate.plan, advice, phase.name, phase.allocated_bytes)
        change, saves = (best.change, best.saves_by_phase[phase.name]) if best else ("", 0)
        found.append(Cure(phase.name, symptom, phase.allocated_bytes, change, saves))
    reserved = estimate.peak_reserved_bytes
    if reserved is not None:
        # What the allocator caches beyond the allocated bytes, and how much of it expandable
        # segments would save, if they are tried.
        kept, saved = reserved - estimate.peak_allocated_bytes, 0
        if estimate.plan.segments == "native" and tries_segments(estimate):
            saved = max(0, reserved - estimate.reserved_with(AllocatorSettings("expandable")))
        change = "--segments expandable" if saved else ""
        found.append(Cure(FRAGMENTATION, _FRAGMENTED, kept, change, saved))
    return tuple(found)


def tries_segments(estimate: Estimate) -> bool:
    """Whether the run is replayed with expandable segments, to say what they would save."""
    reserved = estimate.peak_reserved_bytes or 0
    much = (reserved - estimate.peak_allocated_bytes) * _KEPT_WORTH > reserved
    return much or len(estimate.events) <= _FEW_EVENTS


def _best(plan: RunPlan, advice: Sequence[Advice], phase: str, needs: int) -> Advice | None:
    helping = [a for a in advice if a.saves_by_phase.get(phase, 0) * _WORTH >= needs]
    same = [a for a in helping if plan.trains_like(a.plan)]
    return max(same or helping, key=lambda a: a.saves_by_phase[phase], default=None)


Verdict = Literal["fits", "tight", "no"]
Knob = Literal["batch", "seq"]

#: Knob -> its field in a plan, the step in which it is tried, and the most. Sequences are tried in
#: steps of an attention tile, for which kernels are fast.
_KNOBS: Final = {"batch": ("batch", 1, 1 << 20), "seq": ("sequence", 64, 1 << 24)}


@dataclass(frozen=True)
class Fit:
    """Whether a run fits a device.

    Attributes:
        gpu: name of the device.
        capacity_bytes: how much of its memory processes can have.
        verdict: "fits" if the process fits with the uncertainty of the estimate; "tight" if the
            tensors fit, but perhaps not the allocator's cache, paged states or the uncertainty;
            "no" if the tensors do not fit.
        headroom_bytes: capacity less the process; negative if the device is too small.
    """

    gpu: str
    capacity_bytes: int
    verdict: Verdict
    headroom_bytes: int


def fit_on(found: Estimate, device: Device, more: int = 0) -> Fit:
    """The verdict on one device, with its context and workspaces instead of those of the estimate's
    device. `more` is how many bytes more the plan takes there.

    A run is tight if it can go on only because the allocator gives back its cache, or because paged
    states leave the GPU.
    """
    headroom = device.capacity_bytes - process_on(found, device) - more
    gives_back = found.retries > 0 and device is found.device
    if headroom >= found.uncertainty_bytes and not gives_back:
        verdict: Verdict = "fits"
    elif headroom + sum(t.bytes for t in found.beyond if t.name in (CACHED, PAGED)) >= 0:
        verdict = "tight"
    else:
        verdict = "no"
    return Fit(device.name, device.capacity_bytes, verdict, headroom)


def fits(
    found: Estimate,
    devices: Iterable[Device],
    peaks: Estimator | None = None,
    *,
    wanted: RunPlan | None = None,
) -> tuple[Fit, ...]:
    """The verdicts on devices, the smallest first. The allocator is not simulated again for each:
    its cache is taken to be the same as on the estimate's device.

    `peaks` estimates a plan on the estimate's device. If another device runs the plan differently
    (`plan_on`), the difference of the peaks is added. `wanted` is the plan with a value for every
    option, before the estimate's device changed what it cannot run.
    """
    plan, shape = found.plan, found.shape
    if wanted is not None:
        plan = replace(plan, attention=wanted.attention, method=wanted.method, quant=wanted.quant)
    known = {found.plan: 0}

    def more(device: Device) -> int:
        runs = plan_on(plan, device, shape)
        if peaks is None or shape is None:
            return 0
        if runs not in known:
            weigh = peaks
            if plan_on(runs, found.device, shape) != runs:
                # Both plans are estimated without a device, as the estimate's device would change
                # this one again.
                weigh = partial(estimate_peaks, shape)
            known[runs] = weigh(runs).bytes - weigh(found.plan).bytes
        return known[runs]

    given_back = _given_back(found)
    return tuple(
        fit_on(found, device, more(device) + given_back)
        for device in sorted(devices, key=lambda device: device.capacity_bytes)
    )


def _given_back(found: Estimate) -> int:
    """Bytes of the cache that the allocator gave back because the estimate's device was full, and
    would keep on a larger device."""
    if not found.retries:
        return 0
    lasting = found.peak_allocated_bytes + sum(t.bytes for t in found.beyond if t.name == CACHED)
    return max(0, found.reserved_with(AllocatorSettings(found.plan.segments)) - lasting)


@dataclass(frozen=True)
class Largest:
    """The largest value of an option that fits.

    Attributes:
        option: "--batch" or "--seq".
        value: a multiple of `step`; None if not even `step` fits.
        gpu: the device that it fits.
        process_bytes: what the run takes with this value, or with `step` if nothing fits.
    """

    option: str
    value: int | None
    gpu: str
    process_bytes: int
    step: int

    PRINTED = ("option", "value", "gpu", "process_bytes")


def largest(shape: ModelShape, plan: RunPlan, knob: Knob, device: Device) -> Largest:
    """The largest batch or sequence whose verdict on a device is "fits".

    Raises UsageError if the plan is impossible even with the smallest value.
    """
    field, step, most = _KNOBS[knob]
    taken: dict[int, int] = {}

    def room(value: int) -> int | None:
        """Bytes to spare beyond the uncertainty; None if the plan is impossible."""
        try:
            changes: dict[str, Any] = {field: value * step}
            found = estimate(shape, replace(plan, **changes), device)
        except UsageError:
            if value == 1:
                raise
            return None
        taken[value] = found.process_bytes
        room = device.capacity_bytes - found.process_bytes - found.uncertainty_bytes
        # With retries it is tight, however much room they leave.
        return min(-1, room - _given_back(found)) if found.retries else room

    value = last_that_fits(room, most // step)
    return Largest(
        f"--{knob}", None if value is None else value * step, device.name, taken[value or 1], step
    )


def last_that_fits(room: Callable[[int], int | None], most: int) -> int | None:
    """The last of 1, 2, ... `most` with a room of at least 0; room falls as numbers grow. None if 1
    has less. Memory grows almost linearly, so each guess is on the line through two known points;
    every third guess halves the interval."""
    spare = room(1)
    if spare is None or spare < 0:
        return None
    if most == 1:
        return 1
    low, low_room = 1, spare
    high, high_room = 2, room(2)
    while high_room is not None and high_room >= 0 and high < most:
        slope = (low_room - high_room) / (high - low)
        ahead = int(high_room / slope) if slope > 0 else most
        low, low_room = high, high_room
        high = min(most, low + max(1, min(ahead + 1, 31 * low)))
        high_room = room(high)
    if high_room is not None and high_room >= 0:
        return high
    turn = 0
    while high - low > 1:
        turn += 1
        middle = (low + high) // 2
        if high_room is not None and turn % 3:
            share = low_room / (low_room - high_room)
            middle = min(high - 1, max(low + 1, low + int(share * (high - low))))
        spare = room(middle)
        if spare is not None and spare >= 0:
            low, low_room = middle, spare
        else:
            high, high_room = middle, spare
    return low


#: Makes a whole estimate of a plan on a device.
OnDevice = Callable[[RunPlan, Device], Estimate]

#: How many changes that train the same are tried, and how many others.
_TRIED_SAME: Final = 2
_TRIED_OTHERS: Final = 1
#: A GPU is checked again if the run leaves less than one part in this many of what it takes: with
#: the kernels of a T4 the allocator cached at most 1.4 % of it more, in 18 runs.
_NARROW: Final = 50


def remedy(found: Estimate, fit: Fit, advice: Sequence[Advice], again: OnDevice) -> Advice | None:
    """The first good change with which the run fits the estimate's device; None if no single change
    is enough. `again` estimates a changed plan.

    Expandable segments come first if only the allocator's cache is in the way.
    """
    device = found.device
    if device is None:
        return None
    for one in _worth_trying(found, fit, advice):
        try:
            changed = again(one.plan, device)
        except UsageError:
            continue  # possible in itself, but not on this device
        if fit_on(changed, device).verdict == "fits":
            if one.saves_bytes:
                return one
            return replace(one, saves_bytes=max(0, found.process_bytes - changed.process_bytes))
    return None


def _worth_trying(found: Estimate, fit: Fit, advice: Sequence[Advice]) -> Iterator[Advice]:
    plan = found.plan
    if fit.verdict == "tight" and plan.segments == "native":
        grown = replace(plan, segments="expandable")
        cost = "nothing in the result: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        yield Advice(plan.change_to(grown), grown, 0, cost, found.peak_phase, {})
    needed = found.uncertainty_bytes - fit.headroom_bytes
    enough = [one for one in advice if one.saves_bytes >= needed]
    same = [one for one in enough if plan.trains_like(one.plan)]
    yield from same[:_TRIED_SAME]
    yield from [one for one in enough if one not in same][:_TRIED_OTHERS]


def smallest_again(found: Estimate, verdicts: Sequence[Fit], again: OnDevice) -> tuple[Fit, ...]:
    """The verdicts up to the smallest device that the run fits. If it fits narrowly and the
    workspaces or kernels of that device differ from the estimate's, the verdict comes from an
    estimate on the device itself. Later verdicts are unchanged."""
    known, plan = {device.name: device for device in DEVICES}, found.plan
    judged = list(verdicts)
    for number, fit in enumerate(judged):
        device = known.get(fit.gpu)
        if fit.verdict != "fits" or device is None:
            continue
        spare = fit.headroom_bytes - found.uncertainty_bytes
        here, there = (
            (cublas_workspace(plan.torch, each, trains=plan.trains).each, has_flash(each))
            for each in (found.device, device)
        )
        if spare * _NARROW < found.process_bytes and here != there:
            judged[number] = fit_on(again(plan, device), device)
        if judged[number].verdict == "fits":
            break
    return tuple(judged)
