"""Everything that a memory report shows of an estimate: the sentences that say what it means and
what to do about it; and notes on how it was made, among them how the run is divided over several
GPUs: which library's method is estimated, and what other methods would add."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from math import prod
from typing import Any, Final

from qtui_core.codec import printed
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.advice.fit import (
    Advice,
    Cure,
    Fit,
    Knob,
    Largest,
    OnDevice,
    advise,
    cures,
    fit_on,
    fits,
    largest,
    remedy,
    smallest_again,
    worthwhile,
)
from qtui_core.memory.cached import CacheKind, cache_of
from qtui_core.memory.compute import Compute, compute_of
from qtui_core.memory.devices.device import DEVICES, Calibration, Device, parse_version
from qtui_core.memory.dtypes import FLOATING
from qtui_core.memory.estimate import Estimate, estimate, estimate_as_run, estimate_peaks
from qtui_core.memory.formulas.terms import Term
from qtui_core.memory.plan.run_plan import RunPlan, adapters_of, has_flash
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.replay.timeline import Peaks, grouped
from qtui_core.memory.shape.config_reader import Config, stored_dtype
from qtui_core.memory.shape.description import ModelDescription
from qtui_core.memory.shape.model_shape import ModelShape, Moe, named_modules, parameter_count
from qtui_core.memory.shape.packed import EXPERTS_UNKNOWN
from qtui_core.memory.shape.packings import STORED
from qtui_core.memory.shape.weights import tensors_of
from qtui_core.memory.step.device_events import holds_logits_back
from qtui_core.memory.step.sharding import is_sharded, stages_of
from qtui_core.memory.tape.blocks.losses import LOGITS
from qtui_core.models.tensors import DESCRIBED_IN
from qtui_core.quantities import format_bytes

#: Figures of the estimate.
_FIGURES: Final = (
    "origin", "plan", "resident_bytes", "peak_live_bytes", "peak_allocated_bytes", "peak_phase",
    "peak_operation", "peak_reserved_bytes", "process_bytes", "uncertainty_bytes", "retries",
)  # fmt: skip
#: A term of the peak, and the component that it is part of.
_PART = ("component", *Term.PRINTED)
#: The operations of a step, and the bound on its time on the requested GPU.
_COMPUTE = (
    ("parameters_in_products", "compute.matrix_parameters"), ("tokens", "compute.tokens"),
    ("six_n_d", lambda report: 6 * report.compute.matrix_parameters * report.compute.tokens),
    ("forward_operations", "compute.forward"), ("recompute_operations", "compute.recompute"),
    ("backward_operations", "compute.backward"), ("operations", "compute.total"),
    ("dtype", "compute.dtype"), ("gpu", lambda report: report.device and report.device.name),
    ("seconds_at_least", lambda report: report.seconds_on(report.device)),
)  # fmt: skip


def _range(found: Estimate) -> dict[str, Any]:
    """The least and the most of each figure, where activations are assumed."""
    below, above = found.spread
    figures = ("peak_live_bytes", "peak_allocated_bytes", "process_bytes")
    ends = {"low": -below, "high": above} if above else {}
    return {
        end: {name: getattr(found, name) + more for name in figures} for end, more in ends.items()
    }


@dataclass(frozen=True)
class MemoryReport:
    """Everything that a memory report shows.

    Attributes:
        model: as it was typed; location: where it was found; architecture: its class.
        estimate: the bytes.
        fits: on each GPU. If a GPU was requested, it comes first and `asked` is its name.
        device: the requested GPU, if any.
        advice: changes that save memory, best first.
        cures: for each way to run out of memory.
        compute: None if the model has no shape.
        cache: what an inference keeps of its tokens, by kind of layer.
        largest: the largest batch or sequence, if requested.
        remedy: the change that makes the run fit the requested GPU; None if it fits or none was
            found.
        notes: on how the estimate was made.
        weighed: whether changes of the plan were estimated; not possible if the model is known from
            a trace only.
    """

    model: str
    location: str
    architecture: str
    estimate: Estimate
    fits: tuple[Fit, ...]
    asked: str | None
    device: Device | None
    advice: tuple[Advice, ...]
    cures: tuple[Cure, ...]
    compute: Compute | None
    cache: tuple[CacheKind, ...] = ()
    largest: Largest | None = None
    remedy: Advice | None = None
    notes: tuple[str, ...] = ()
    weighed: bool = True

    # fmt: off
    PRINTED = (
        "model", "architecture", "parameters",
        *((name, f"estimate.{name}") for name in _FIGURES),
        ("", lambda report: _range(report.estimate)),
        ("components", "estimate.components"),
        ("terms", lambda report: [printed(term, _PART) for term in report.estimate.terms]),
        ("beyond_allocated", "estimate.beyond"),
        ("phases", "estimate.phases"), ("gpu", "asked"), "fits", "advice", "cures",
        ("compute", lambda report: report.compute and printed(report, _COMPUTE)),
        ("", lambda report: {"cache": report.cache} if report.cache else {}), "largest", "notes",
    )
    # fmt: on

    @cached_property
    def parameters(self) -> int | None:
        """Parameters of the model; None if it has no shape."""
        shape = self.estimate.shape
        return None if shape is None else parameter_count(shape)

    def seconds_on(self, device: Device | None) -> float | None:
        """The lower bound on a step's time, seconds; None without a device, or if it has no units
        for the dtype."""
        if device is None or self.compute is None or self.compute.dtype not in device.rates:
            return None
        return self.compute.seconds_on(device)


def report_of(
    model: ModelDescription,
    found: Estimate,
    peaks: Callable[[RunPlan], Peaks] | None,
    *,
    here: Sequence[Device] = (),
    largest: Largest | None = None,
    asked: RunPlan | None = None,
    wanted: RunPlan | None = None,
    again: OnDevice | None = None,
    why: str = "",
) -> MemoryReport:
    """The report on an estimate of a model, on its device if it has one.

    Args:
        peaks: estimates the peaks of changed plans; None if they cannot be estimated, as after a
            trace of a family without a shape.
        here: GPUs of this machine, listed before those of the catalogue.
        asked: the plan as it was typed, if known.
        wanted: the same with a value for every option, before the device changed anything.
        again: makes a whole estimate of a plan on a device, which takes longer. With it, the remedy
            and the smallest suitable GPU are checked before they are reported.
        why: why a trace was made, if its family is not built in.
    """
    advice: tuple[Advice, ...] = () if peaks is None else advise(found, peaks)
    cured = cures(found, advice)
    near = [] if found.device is None else [found.device]
    near += [device for device in here if device.name not in {each.name for each in near}]
    named = {device.name for device in near}
    rows = fits(found, DEVICES, peaks, wanted=wanted)
    verdicts = (
        *(fit_on(found, device) for device in near),
        *(fit for fit in rows if fit.gpu not in named),
    )
    remedied = None
    if again is not None and found.device is None:
        verdicts = smallest_again(found, verdicts, again)
    elif again is not None and verdicts[0].verdict != "fits":
        remedied = remedy(found, verdicts[0], advice, again)
    return MemoryReport(
        model=model.name,
        location=model.location,
        architecture=model.architecture,
        estimate=found,
        fits=verdicts,
        asked=None if found.device is None else found.device.name,
        device=found.device,
        advice=worthwhile(advice, found.peak_allocated_bytes),
        cures=cured,
        compute=None if found.shape is None else compute_of(found.shape, found.plan),
        cache=() if found.plan.trains else cache_of(found.shape or model.read_shape(), found.plan),
        largest=largest,
        remedy=remedied,
        notes=tuple(notes_of(model, found, asked, weighed=peaks is not None, why=why)),
        weighed=peaks is not None,
    )


def report_of_plan(
    model: ModelDescription,
    shape: ModelShape,
    plan: RunPlan,
    device: Device | None = None,
    knob: Knob | None = None,
    *,
    asked: RunPlan,
    wanted: RunPlan,
) -> MemoryReport:
    """The report on a plan as it runs on a device, if there is one (`plan_as_run`); with a `knob`,
    also the largest value of it that fits. `asked` and `wanted` are as in `report_of`."""
    found = estimate_as_run(shape, plan, device)
    others = peaks_on(shape, device)
    most = None
    if knob is not None and device is not None:
        most = largest(shape, wanted, knob, device)
    return report_of(
        model,
        found,
        lambda changed: found.peaks if changed == plan else others(changed),
        largest=most,
        asked=asked,
        wanted=wanted,
        again=partial(estimate, shape),
    )


def peaks_on(shape: ModelShape, device: Device | None) -> Callable[[RunPlan], Peaks]:
    """The peaks of changed plans; each plan is estimated once."""
    return cache(partial(estimate_peaks, shape, device=device))


def conclude_memory(report: MemoryReport, *, by_group: bool = False) -> str:
    """What the run needs and where, whether it fits, and the most valuable change. Names the
    largest component of the peak, or with `by_group` the largest group of components, if the report
    beside the sentence lists groups."""
    estimate = report.estimate
    peak, phase = format_bytes(estimate.peak_allocated_bytes), estimate.peak_phase
    below, above = estimate.spread
    low, high = estimate.process_bytes - below, estimate.process_bytes + above
    between = f" ({format_bytes(low)} to {format_bytes(high)}: assumed)" if above else ""
    need = (
        f"The run needs {format_bytes(estimate.process_bytes)}{between} on {_gpu(estimate)}; its "
        f"peak of {peak} is in the {phase if phase.endswith('steps') else f'{phase} phase'}"
    )
    parts = [(term.name, term.bytes) for term in estimate.components]
    if by_group:
        parts = [(group.name, nbytes) for group, nbytes in grouped(parts)]
    if parts and estimate.peak_allocated_bytes:
        name, nbytes = max(parts, key=lambda part: part[1])
        need += f", {nbytes / estimate.peak_allocated_bytes:.0%} of it {name}"
    asked = next((fit for fit in report.fits if fit.gpu == report.asked), None)
    sentence = f"{need}. " + (_smallest(report) if asked is None else _verdict(asked, report))
    most = report.largest
    if most is not None and most.value is None:
        sentence += f"Not even {most.option} {most.step} fits. "
    elif most is not None:
        needs = format_bytes(most.process_bytes)
        sentence += f"The largest that fits is {most.option} {most.value}, which needs {needs}. "
    return sentence + _what_to_do(report, asked)


def _gpu(estimate: Estimate) -> str:
    plan = estimate.plan
    if plan.gpus == 1:
        return "the GPU"
    # The stages of a pipeline differ; the estimate is of the fullest stage.
    return f"{'the fullest' if plan.pipeline_parallel > 1 else 'each'} of {plan.gpus:,} GPUs"


def _verdict(fit: Fit, report: MemoryReport) -> str:
    gpu, left = fit.gpu, format_bytes(abs(fit.headroom_bytes))
    if fit.verdict == "fits":
        return f"It fits {gpu} with {left} to spare. "
    if fit.verdict == "tight" and report.estimate.retries:
        return (
            f"It is tight on {gpu}: memory runs out there until the allocator frees its cache, "
            "which takes time. "
        )
    if fit.verdict == "tight" and fit.headroom_bytes >= 0:
        return f"It is tight on {gpu}: {left} to spare is less than the estimate may be off. "
    if fit.verdict == "tight":
        what = "with what the allocator keeps"
        if report.estimate.plan.pages:
            what += " and the paged states"
        return f"It is tight on {gpu}: its tensors fit, and {what} it is {left} too much. "
    return f"It does not fit {gpu}: {left} too much. "


def _smallest(report: MemoryReport) -> str:
    fitting = [fit for fit in report.fits if fit.verdict == "fits"]
    tight = [fit for fit in report.fits if fit.verdict == "tight"]
    if not fitting and not tight:
        return "No GPU of the catalogue holds it. "
    small = min(fitting or tight, key=lambda fit: fit.capacity_bytes)
    if not fitting:
        return f"No GPU of the catalogue surely holds it; {small.gpu} is the smallest that may. "
    of = "of the catalogue" if small.gpu in {device.name for device in DEVICES} else "known here"
    return f"The smallest GPU {of} that holds it is {small.gpu}. "


def _what_to_do(report: MemoryReport, asked: Fit | None) -> str:
    plan = report.estimate.plan
    if not report.weighed:
        return "What changes would save is not known: a trace covers one plan."
    if asked is not None and asked.verdict != "fits":
        return _towards(report, asked)
    if not report.advice:
        return "No single change of the plan would save much."
    same = [advice for advice in report.advice if plan.trains_like(advice.plan)]
    if same and plan.trains:
        saved = format_bytes(same[0].saves_bytes)
        return f"`{same[0].change}` would save most of what trains the same: {saved}."
    best = report.advice[0]
    return f"`{best.change}` would save most, {format_bytes(best.saves_bytes)}{_cost(best, plan)}."


def _towards(report: MemoryReport, asked: Fit) -> str:
    """Which change would make a run fit that does not, or how far the best change goes."""
    plan, change = report.estimate.plan, report.remedy
    if change is not None:
        saves = f"save {format_bytes(change.saves_bytes)} and " if change.saves_bytes else ""
        return f"`{change.change}` would {saves}make it fit{_cost(change, plan)}."
    if not report.advice:
        return "No single change of the plan would save much."
    best = report.advice[0]
    most = f"`{best.change}` saves most, {format_bytes(best.saves_bytes)}{_cost(best, plan)}"
    if best.saves_bytes < -asked.headroom_bytes:
        return f"No single change saves that; {most}."
    if best.saves_bytes < report.estimate.uncertainty_bytes - asked.headroom_bytes:
        return f"No single change is surely enough; {most}."
    return f"{most}."


def _cost(advice: Advice, plan: RunPlan) -> str:
    """What a change costs, in parentheses; nothing if it trains the same."""
    return "" if plan.trains and plan.trains_like(advice.plan) else f" ({advice.cost})"


def notes_of(
    model: ModelDescription, found: Estimate, asked: RunPlan | None, *, weighed: bool, why: str
) -> Iterator[str]:
    """The notes on an estimate. `asked` is the plan as it was typed, if known; `weighed` is whether
    changes of it were estimated; `why` says why it was traced."""
    shape, plan = found.shape, found.plan
    if why and found.origin == "trace":
        yield f"{why} The class of the installed transformers ran on tensors without values."
    if not weighed:
        yield "Changes are not weighed: a trace covers one plan."
    if shape is not None and shape.known == "assumed":
        low, high = found.process_bytes - found.spread[0], found.process_bytes + found.spread[1]
        yield (
            f"{shape.why} The nearest kind of decoder stands in for it: weights are counted from "
            f"{'the headers' if model.parameters else 'config.json'}, and activations are assumed, "
            f"so the process takes {format_bytes(low)} to {format_bytes(high)}."
        )
    if shape is not None:
        yield from _of_storage(shape, plan)
        longest = shape.max_positions
        if longest is not None and plan.sequence + plan.generate > longest:
            yield f"The sequence is longer than the {longest:,} positions the model was made for."
    stated = stored_dtype(Config(model.config)) if shape is None else shape.dtype
    if asked is not None and asked.dtype is None and not stated:
        yield (
            f"{model.config.get(DESCRIBED_IN, 'config.json')} does not say which type "
            f"the weights are of, and {plan.dtype} is taken; of many older models they are "
            "float32: --dtype fp32 is then what loads."
        )
    if shape is not None:
        yield from _unquantized_experts(shape, plan)
        yield from _idle_targets(shape, plan)
    if asked is not None:
        for option in asked.without_effect(plan):
            written = option.written(getattr(asked, option.name))
            yield f"{written} changes nothing: {option.idle}."
    yield from _logits_copy(found)
    yield from parallel_notes(found)
    if model.config.get("auto_map"):
        yield (
            "The model brings code of its own, which is never executed; the estimate is of the "
            f"class of transformers for {model.config.get('model_type')!r}."
        )
    if model.quantization and (shape is None or shape.packing is None):
        yield (
            "The checkpoint is quantized already; the estimate is of its unquantized original, "
            "stored as the plan says."
        )
    known = None if found.device is None else found.device.calibration
    if known is not None and found.device is not None:
        yield (
            f"{found.device.name} is calibrated: context and workspaces were measured here on "
            f"{known.made}. {_since(known, plan)}".rstrip()
        )
    if plan.attention == "efficient" and not has_flash(found.device):
        name = "This GPU" if found.device is None else found.device.name
        yield f"{name} has no flash attention: sdpa takes the efficient kernel there."


def _of_storage(shape: ModelShape, plan: RunPlan) -> Iterator[str]:
    """The notes of a shape; those on packed weights only if the plan keeps them."""
    packing = shape.packing
    if packing is None or shape.packing_under(plan.quant):
        yield from shape.notes
        return
    yield from (note for note in shape.notes if note not in (packing.note, EXPERTS_UNKNOWN))
    yield f"The checkpoint is stored as {packing.title}" + (
        f", over which --method {plan.method} trains nothing: the estimate is of its weights "
        "unpacked, as before it was quantized."
        if plan.trains
        else ": the estimate is of its weights unpacked."
    )


def _logits_copy(found: Estimate) -> Iterator[str]:
    """A note on the copy of the logits that an in-place cross entropy may leave in the allocator's
    cache."""
    plan, nbytes = found.plan, found.logits_copy_bytes
    if not nbytes:
        return
    counted = "is counted" if holds_logits_back(found.shape, plan) else "is not counted"
    yield (
        f"With --loss {plan.loss} the allocator may keep one float32 copy of the logits, "
        f"{nbytes:,} bytes, that the step does not use. It {counted} here, and is part of the "
        "range of the process either way: runs of Mistral-7B and Llama-3-8B on an A100 with "
        "transformers 4.44 to 4.48 kept it; Mistral-7B with 4.43 and PowerLM-3b (Granite) with "
        "4.45 did not. What decides is not known."
    )


def _unquantized_experts(shape: ModelShape, plan: RunPlan) -> Iterator[str]:
    """A note on experts that are not quantized, though one would expect it
    (`WeightStorage.is_quantized`)."""
    stacked = sum(
        prod(parameter.shape)
        for layer in shape.layers
        if isinstance(layer.mlp, Moe)
        for parameter in layer.mlp.stacked
    )
    if plan.quantized and plan.quant != STORED and stacked:
        yield (
            f"The experts, {stacked / parameter_count(shape):.0%} of the parameters, are not "
            "quantized: the classes keep those of a layer stacked in one tensor, and bitsandbytes "
            "packs linear layers."
        )


def _idle_targets(shape: ModelShape, plan: RunPlan) -> Iterator[str]:
    """A note on target names that match no module: peft ignores them silently if others match."""
    if not plan.adapts or len(plan.lora_targets) < 2:
        return
    modules = [*named_modules(shape)]
    if shape.head is not None:
        modules.append((shape.head.name, shape.head))
    names = {name for name, _ in modules}

    def ranks(targets: tuple[str, ...]) -> list[int]:
        changed = replace(plan, lora_targets=targets)
        adapters = adapters_of(shape, changed)
        return [adapters.rank_on(name, module) for name, module in modules]

    for target in plan.lora_targets:
        if any(name == target or name.endswith(f".{target}") for name in names):
            continue
        others = tuple(each for each in plan.lora_targets if each != target)
        try:
            idle = ranks(others) == ranks(plan.lora_targets)
        except UsageError:  # another target requires this name: it is the name of experts
            continue
        if idle:
            yield f"No module is named {target}: it gets no adapter, and peft would not say so."


def _since(known: Calibration, plan: RunPlan) -> str:
    """Which parts of a calibration do not apply to a plan."""
    if known.torch != parse_version(plan.torch):
        version = ".".join(map(str, known.torch))
        return f"Workspaces are those of torch {plan.torch}: it was measured with {version}."
    if known.context is None:
        return "The driver did not tell the context, which is a published figure."
    return ""


#: Elements of a bucket of DeepSpeed (runtime/zero/config.py: reduce_bucket_size,
#: allgather_bucket_size), and bytes of its own float32 copy of a 16-bit weight (stage_1_and_2.py:
#: single_partition_of_fp32_groups).
_DEEPSPEED_BUCKET: Final = 500_000_000
_DEEPSPEED_MASTER: Final = 4

_ZERO: Final = {
    0: "DistributedDataParallel of torch, whose buckets of 25 MiB are a second copy of all "
    "gradients (gradient_as_bucket_view=False).",
    1: "DistributedDataParallel with ZeroRedundancyOptimizer of torch: weights, gradients and "
    "their buckets are whole on every GPU.",
    2: "whole weights, and gradients that are reduced to shards layer by layer, as fully_shard of "
    "torch does it. fully_shard(reshard_after_forward=False) itself has only shards of the weights "
    "between steps, and the whole ones besides from the forward pass on.",
    3: "fully_shard of torch (FSDP2), each layer a unit and what is outside of layers one more.",
}


def parallel_notes(found: Estimate) -> Iterator[str]:
    """A sentence for each way in which an estimate divides its run over GPUs; none for one GPU."""
    plan = found.plan
    if plan.data_parallel > 1 and (plan.trains or plan.zero):
        yield f"Data parallel is taken to be {_ZERO[plan.zero]}"
    if plan.zero:
        master = plan.data_parallel
        yield (
            f"DeepSpeed is not counted: it also keeps a float32 copy of 16-bit weights "
            f"({_DEEPSPEED_MASTER} bytes for each trained parameter, over {master} GPUs), flat "
            f"copies, and buckets of {_DEEPSPEED_BUCKET:,} elements."
        )
    if plan.zero == 3 and plan.four_bits and found.shape is not None:
        yield _four_bits(found.shape, plan)
    if plan.tensor_parallel > 1:
        yield (
            "Tensor parallel is the plan of the class in transformers (tp_plan): heads, the MLP, "
            "and the vocabulary of embedding and output layer are divided, norms are whole. "
            "Families without such a plan keep embedding and output layer whole. Logits are "
            "gathered on every GPU; what GPUs add up inside of layers is not counted, one tensor "
            "of hidden states."
        )
    if plan.pipeline_parallel > 1 and found.shape is not None:
        yield from _pipeline(found, found.shape)


def _four_bits(shape: ModelShape, plan: RunPlan) -> str:
    """Which bytes of 4-bit weights ZeRO-3 does not shard, and why."""
    whole: dict[Component, int] = {}
    for tensor in tensors_of(shape, plan):
        if not is_sharded(tensor, plan):
            whole[tensor.component] = whole.get(tensor.component, 0) + tensor.bytes
    if plan.quant_storage not in FLOATING:
        return (
            f"4-bit weights are not sharded: of the model's {whole[Component.WEIGHTS]:,} bytes of "
            "them each GPU has those of its layers whole. bitsandbytes packs them into uint8 "
            "(bnb_4bit_quant_storage), which accelerate leaves out of FSDP2 and FSDP1 refuses; "
            "--quant-storage bf16 shards them."
        )
    return (
        f"4-bit weights are packed into {plan.quant_storage}, and so sharded. Their block maxima "
        f"and tables, {whole[Component.QUANTIZATION]:,} bytes in the model, are no parameters: "
        "each GPU has those of its layers whole."
    )


def _pipeline(found: Estimate, shape: ModelShape) -> Iterator[str]:
    plan = found.plan
    last = any(term.name == LOGITS.what for term in found.terms)
    if plan.trains:
        last = any(phase.name == Phase.LOSS for phase in found.phases)
    flying = min(plan.pipeline_parallel, plan.accumulation)
    longest = -(-len(shape.layers) // plan.pipeline_parallel)
    which, other = ("last stage, which has the logits", "first")
    if not last:
        which, other = "first stage", "last"
        if plan.trains and flying > 1:
            which += f", which has {flying} micro batches in flight"
    shown = f"The estimate is of its {which}: it holds more than the {other}."
    if last and stages_of(shape, plan)[-1].embeddings:
        shown += " It is assumed to have the embeddings as well."
    yield (
        f"The pipeline is torch.distributed.pipelining with stages of {longest} layers at most. "
        f"{shown}"
    )
    if not plan.trains:
        return
    plural = "es" if plan.accumulation > 1 else ""
    yield (
        f"Its schedule is Schedule1F1B, of {plan.accumulation} micro batch{plural} "
        "(--accumulation), with return_outputs=False: else the last stage keeps the logits of all."
    )
    if plan.accumulation < plan.pipeline_parallel:
        yield (
            "torch refuses fewer micro batches than stages: --accumulation "
            f"{plan.pipeline_parallel} or more."
        )
    # Activations when the first backward pass begins, of each micro batch in flight.
    begun = next((s.start for s in found.timeline.spans if s.name == Phase.BACKWARD), None)
    waiting = {} if begun is None else found.timeline.held(begun)
    each = waiting.get(Component.ACTIVATIONS, 0) // flying
    if not last and plan.accumulation > flying and each:
        more = (plan.accumulation - flying) * each
        yield (
            f"Under GPipe all {plan.accumulation} wait at once on the first stage: about {more:,} "
            f"bytes more, {each:,} for each."
        )
