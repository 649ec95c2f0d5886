"""The sentences that say what an estimate means and what to do about it."""

from __future__ import annotations

from qtui.report.memory_data import MemoryReport
from qtui.report.memory_parts import grouped
from qtui.report.numbers import format_bytes
from qtui_core.memory.advice import Advice, keeps_training
from qtui_core.memory.fit import Fit


def conclude_memory(report: MemoryReport, *, by_group: bool = False) -> str:
    """What the run needs and where, whether it fits, and the change that is worth most. The
    largest component of the peak is named, or `by_group` the largest group of components, where
    groups are what is listed beside the sentence."""
    estimate = report.estimate
    need = (
        f"The run needs {format_bytes(estimate.process_bytes)} on the GPU; its peak of "
        f"{format_bytes(estimate.peak_allocated_bytes)} is in the {_phase(estimate.peak_phase)}"
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
    return sentence + _what_to_do(report, asked)


def _phase(name: str) -> str:
    return name if name.endswith("steps") else f"{name} phase"


def _verdict(fit: Fit, report: MemoryReport) -> str:
    gpu, left = fit.gpu, format_bytes(abs(fit.headroom_bytes))
    if fit.verdict == "fits":
        return f"It fits {gpu} with {left} to spare. "
    if fit.verdict == "tight" and fit.headroom_bytes >= 0:
        return f"It is tight on {gpu}: {left} to spare is less than the estimate may be off. "
    if fit.verdict == "tight":
        return (
            f"It is tight on {gpu}: {left} too much, which the allocator has to give back from "
            "its cache, step by step. "
        )
    return f"It does not fit {gpu}: {left} too much. "


def _smallest(report: MemoryReport) -> str:
    fitting = [fit for fit in report.fits if fit.verdict == "fits"]
    if not fitting:
        return "No GPU of the catalogue holds it. "
    small = min(fitting, key=lambda fit: fit.capacity_bytes)
    return f"The smallest GPU of the catalogue that holds it is {small.gpu}. "


def _what_to_do(report: MemoryReport, asked: Fit | None) -> str:
    plan = report.estimate.plan
    same = [advice for advice in report.advice if keeps_training(plan, advice.plan)]
    if asked is not None and asked.verdict != "fits":
        missing = max(0, -asked.headroom_bytes)
        enough = [advice for advice in same if advice.saves_bytes > missing]
        if enough:
            # The first is the one that saves most; all of these are enough.
            return f"`{enough[0].change}` would save {_saved(enough[0])} and make it fit."
        more = [advice for advice in report.advice if advice.saves_bytes > missing]
        if more:
            return (
                f"`{more[0].change}` would save {_saved(more[0])} and make it fit, "
                f"at the cost of {_lower(more[0].cost)}."
            )
        if report.advice:
            best = report.advice[0]
            return f"No single change makes it fit; `{best.change}` saves most, {_saved(best)}."
        return "No change of the plan makes it fit."
    if same:
        return f"`{same[0].change}` would save most of what trains the same: {_saved(same[0])}."
    if report.advice:
        return f"`{report.advice[0].change}` would save most: {_saved(report.advice[0])}."
    return "No single change of the plan would save much."


def _saved(advice: Advice) -> str:
    return format_bytes(advice.saves_bytes)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
