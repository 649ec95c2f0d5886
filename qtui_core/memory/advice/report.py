"""Everything that a memory report shows of an estimate, and the sentences that say what it means
and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import Any, Final

from qtui_core.codec import printed
from qtui_core.dataclass import dataclass
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
from qtui_core.memory.advice.notes import notes_of
from qtui_core.memory.cached import CacheKind, cache_of
from qtui_core.memory.compute import Compute, compute_of
from qtui_core.memory.devices.device import DEVICES, Device
from qtui_core.memory.estimate import Estimate, estimate, estimate_as_run, estimate_peaks
from qtui_core.memory.formulas.terms import Term
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.curve import Peaks, grouped
from qtui_core.memory.shape.description import ModelDescription
from qtui_core.memory.shape.model_shape import ModelShape, parameter_count
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
    ("parameters_in_products", "compute.matrix_parameters"),
    ("tokens", "compute.tokens"),
    ("six_n_d", lambda report: 6 * report.compute.matrix_parameters * report.compute.tokens),
    ("forward_operations", "compute.forward"),
    ("recompute_operations", "compute.recompute"),
    ("backward_operations", "compute.backward"),
    ("operations", "compute.total"),
    ("dtype", "compute.dtype"),
    ("gpu", lambda report: report.device and report.device.name),
    ("seconds_at_least", lambda report: report.seconds_on(report.device)),
)


def _range(found: Estimate) -> dict[str, Any]:
    """The least and the most of each figure, where activations are assumed."""
    below, above = found.spread
    figures = {
        "peak_live_bytes": found.peak_live_bytes,
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "process_bytes": found.process_bytes,
    }
    if not above:
        return {}
    return {
        "low": {name: nbytes - below for name, nbytes in figures.items()},
        "high": {name: nbytes + above for name, nbytes in figures.items()},
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

    PRINTED = (
        "model",
        "architecture",
        "parameters",
        *((name, f"estimate.{name}") for name in _FIGURES),
        ("", lambda report: _range(report.estimate)),
        ("components", "estimate.components"),
        ("terms", lambda report: [printed(term, _PART) for term in report.estimate.terms]),
        ("beyond_allocated", "estimate.beyond"),
        ("phases", "estimate.phases"),
        ("gpu", "asked"),
        "fits",
        "advice",
        "cures",
        ("compute", lambda report: report.compute and printed(report, _COMPUTE)),
        ("", lambda report: {"cache": report.cache} if report.cache else {}),
        "largest",
        "notes",
    )

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
    sentence = f"{need}. "
    if asked is not None:
        sentence += _verdict(asked, report)
    else:
        sentence += _smallest(report)
    if report.largest is not None:
        sentence += _at_most(report.largest)
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
        if report.estimate.plan.optimizer.startswith("paged"):
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


def _at_most(largest: Largest) -> str:
    if largest.value is None:
        return f"Not even {largest.option} {largest.step} fits. "
    return (
        f"The largest that fits is {largest.option} {largest.value}, which needs "
        f"{format_bytes(largest.process_bytes)}. "
    )


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
