"""What each change of a plan would save, found by estimating the changed plan; and the cure for
each way to run out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from qtui_core.codec import or_null
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.dtypes import FLOATING
from qtui_core.memory.plan.options import RunPlan, options_of
from qtui_core.memory.plan.run_plan import resolve_for
from qtui_core.memory.replay.allocator import AllocatorSettings
from qtui_core.memory.replay.curve import Peaks
from qtui_core.memory.replay.record import Phase
from qtui_core.memory.shape.model_shape import ModelShape

if TYPE_CHECKING:
    from qtui_core.memory.estimate import Estimate

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
        found.append(
            Cure(
                phase.name,
                symptom,
                phase.allocated_bytes,
                best.change if best else "",
                best.saves_by_phase[phase.name] if best else 0,
            )
        )
    if estimate.peak_reserved_bytes is not None:
        found.append(_of_fragmentation(estimate, estimate.peak_reserved_bytes))
    return tuple(found)


def _of_fragmentation(estimate: Estimate, reserved: int) -> Cure:
    """What the allocator caches beyond the allocated bytes, and how much of it expandable segments
    would save, if they are tried."""
    kept, saved = reserved - estimate.peak_allocated_bytes, 0
    if estimate.plan.segments == "native" and tries_segments(estimate):
        saved = max(0, reserved - estimate.reserved_with(AllocatorSettings("expandable")))
    change = "--segments expandable" if saved else ""
    return Cure(FRAGMENTATION, _FRAGMENTED, kept, change, saved)


def tries_segments(estimate: Estimate) -> bool:
    """Whether the run is replayed with expandable segments, to say what they would save."""
    reserved = estimate.peak_reserved_bytes or 0
    much = (reserved - estimate.peak_allocated_bytes) * _KEPT_WORTH > reserved
    return much or len(estimate.events) <= _FEW_EVENTS


def _best(plan: RunPlan, advice: Sequence[Advice], phase: str, needs: int) -> Advice | None:
    helping = [a for a in advice if a.saves_by_phase.get(phase, 0) * _WORTH >= needs]
    same = [a for a in helping if plan.trains_like(a.plan)]
    return max(same or helping, key=lambda a: a.saves_by_phase[phase], default=None)
