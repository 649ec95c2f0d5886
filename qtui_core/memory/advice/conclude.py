"""The sentences that say what an estimate means and what to do about it."""

from __future__ import annotations

from qtui_core.memory.advice.capacity import Fit, Largest
from qtui_core.memory.advice.changes import Advice
from qtui_core.memory.advice.report import MemoryReport
from qtui_core.memory.devices.finding import DEVICES
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.replay.groups import grouped
from qtui_core.quantities import format_bytes


def conclude_memory(report: MemoryReport, *, by_group: bool = False) -> str:
    """What the run needs and where, whether it fits, and the most valuable change. Names the
    largest component of the peak, or with `by_group` the largest group of components, if the report
    beside the sentence lists groups."""
    estimate = report.estimate
    peak = format_bytes(estimate.peak_allocated_bytes)
    need = (
        f"The run needs {format_bytes(estimate.process_bytes)} on {_gpu(estimate)}; its peak "
        f"of {peak} is in the {_phase(estimate.peak_phase)}"
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


def _phase(name: str) -> str:
    return name if name.endswith("steps") else f"{name} phase"


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
    same = [advice for advice in report.advice if plan.trains_like(advice.plan)]
    best = next(iter(same or report.advice), None)
    if asked is not None and asked.verdict != "fits":
        return _towards(report, asked)
    if best is None:
        return "No single change of the plan would save much."
    most = "most of what trains the same" if same and plan.trains else "most"
    return f"`{best.change}` would save {most}: {_saved(best)}."


def _towards(report: MemoryReport, asked: Fit) -> str:
    """Which change would make a run fit that does not, or how far the best change goes."""
    plan, change = report.estimate.plan, report.remedy
    if change is not None:
        if plan.trains_like(change.plan):
            return f"`{change.change}` would save {_saved(change)} and make it fit."
        return f"`{change.change}` would save {_saved(change)} and make it fit ({change.cost})."
    if not report.advice:
        return "No single change of the plan would save much."
    best = report.advice[0]
    most = f"`{best.change}` saves most, {_saved(best)}"
    if best.saves_bytes < -asked.headroom_bytes:
        return f"No single change saves that; {most}."
    if best.saves_bytes < report.estimate.uncertainty_bytes - asked.headroom_bytes:
        return f"No single change is surely enough; {most}."
    return f"{most}."


def _saved(advice: Advice) -> str:
    return format_bytes(advice.saves_bytes)
