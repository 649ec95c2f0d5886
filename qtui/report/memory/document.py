"""The document of `qtui memory`, and the section on memory of `qtui inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qtui.report.document import (
    Block,
    Column,
    Document,
    Facts,
    MadeWhenRead,
    Section,
    Table,
    Tone,
    figures,
)
from qtui.report.memory.explain import cache_section, explain_sections
from qtui_core.codec import printed
from qtui_core.memory.advice.fit import FRAGMENTATION, Advice, Cure, Fit, Largest, tries_segments
from qtui_core.memory.advice.report import MemoryReport, conclude_memory
from qtui_core.memory.compute import Compute
from qtui_core.memory.devices.device import DEVICES
from qtui_core.memory.estimate import Estimate
from qtui_core.quantities import format_bytes, format_count, plural, signed_bytes

_ORIGINS = {
    "tape": "a tape of the step",
    "trace": "a trace of the real classes",
    "bounds": "the nearest kind of decoder; activations are assumed",
}
_TONES: dict[str, Tone] = {"fits": "good", "tight": "warn", "no": "bad"}


def memory_document(report: MemoryReport, *, explain: bool, picture: bool = False) -> Document:
    """The report on a plan. `explain` adds every term with its formula, numbers and source;
    `picture` adds the curve for the HTML face."""
    estimate = report.estimate
    drawn: tuple[Block, ...] = ()
    if picture:
        from qtui.report.memory.picture import curve_picture

        drawn = (curve_picture(estimate.curve),)
    sections = [
        Section("Plan", (_plan(report),)),
        Section("At the peak", (_levels(estimate), _components(estimate))),
        Section("By phase", (_phases(estimate), *drawn)),
    ]
    if explain:
        sections += explain_sections(estimate)
        sections += cache_section(report)
    if report.largest is not None:
        sections.append(Section("The largest that fits", (_largest(report.largest, estimate),)))
    sections.append(Section("What it fits on", (_fits(report.fits, estimate),)))
    if report.compute is not None:
        sections.append(Section("Compute", (compute_facts(report, report.compute),)))
    sections.append(Section("What would save memory", tuple(_advice(report))))
    sections.append(Section("When memory runs out", (_cures(report),)))
    if report.notes:
        sections.append(Section("Notes", tuple(report.notes)))
    return Document(
        f"qtui memory {report.model}",
        tuple(sections),
        conclude_memory(report),
        printed(report),
    )


def with_memory(document: Document, report: MemoryReport) -> Document:
    """The report of an inspection with the memory of a plan added: plan, peak and phases."""
    estimate = report.estimate
    section = Section(
        "Memory of a run",
        (
            conclude_memory(report),
            _plan(report),
            _levels(estimate),
            _components(estimate),
            _phases(estimate),
        ),
    )
    return replace(
        document,
        sections=(*document.sections, section),
        data=MadeWhenRead(lambda: document.data, lambda: {"memory": printed(report)}),
    )


def without_memory(document: Document, reason: str) -> Document:
    """The report of an inspection with the reason why there is no estimate of memory."""
    section = Section("Memory of a run", (f"Not estimated: {reason}",))
    return replace(document, sections=(*document.sections, section))


def _plan(report: MemoryReport) -> Facts:
    estimate = report.estimate
    model, shape = report.architecture, estimate.shape
    if shape is not None:
        count = report.parameters or 0
        counted = f"about {format_count(count)} parameters"
        if shape.known != "assumed":
            counted = f"{count:,} parameters ({format_count(count)})"
        model += f", {counted}, {plural(len(shape.layers), 'layer')}"
    origin = ("estimated from", _ORIGINS[estimate.origin])
    return Facts((("model", model), *estimate.plan.grouped(), origin))


def _levels(estimate: Estimate) -> Facts:
    pairs = [
        ("resident", f"{both(estimate.resident_bytes)}, {_stays(estimate)}"),
        ("live tensors, peak", both(estimate.peak_live_bytes)),
        ("allocated, peak", both(estimate.peak_allocated_bytes)),
    ]
    if estimate.peak_reserved_bytes is not None:
        reserved = both(estimate.peak_reserved_bytes)
        if estimate.retries:
            times = plural(estimate.retries, "time")
            reserved += f"; out of memory {times}, the allocator gives back its cache and goes on"
        pairs.append(("reserved, peak", reserved))
    process = both(estimate.process_bytes)
    if estimate.uncertainty_bytes:
        process += f", give or take {format_bytes(estimate.uncertainty_bytes)}"
    where = estimate.peak_phase
    if estimate.peak_operation:
        where += f": {estimate.peak_operation}"
    return Facts((*pairs, ("process", process), ("the peak is in", where)))


def _stays(estimate: Estimate) -> str:
    """The words for what stays between steps. (The phase of that name also has the inputs, and at
    inference the cache.)"""
    turn = "step" if estimate.plan.trains else "prompt"
    return f"what stays from {turn} to {turn}"


def both(nbytes: int) -> str:
    """The exact bytes, and the same with a unit: "1,048,576 (1.00 MiB)"."""
    return f"{nbytes:,} ({format_bytes(nbytes)})"


def _components(estimate: Estimate) -> Table:
    peak = estimate.peak_allocated_bytes
    return Table(
        columns=(Column("component", key=True), *figures("bytes", "", "share"), Column("known")),
        rows=tuple(
            (
                term.name,
                f"{term.bytes:,}",
                format_bytes(term.bytes),
                f"{term.bytes / peak:.1%}" if peak else "–",
                term.basis,
            )
            for term in estimate.components
        ),
        bars=tuple(term.bytes / peak if peak else 0.0 for term in estimate.components),
        bar_title="of the peak",
    )


def _phases(estimate: Estimate) -> Table:
    peak = max((phase.allocated_bytes for phase in estimate.phases), default=0)
    return Table(
        columns=(Column("phase", key=True), *figures("bytes", ""), Column("most at")),
        rows=tuple(
            (
                phase.name,
                f"{phase.allocated_bytes:,}",
                format_bytes(phase.allocated_bytes),
                phase.operation or "–",
            )
            for phase in estimate.phases
        ),
        tones=tuple("warn" if p.name == estimate.peak_phase else "" for p in estimate.phases),
        bars=tuple(p.allocated_bytes / peak if peak else 0.0 for p in estimate.phases),
        bar_title="most allocated",
    )


def _fits(fits: Sequence[Fit], estimate: Estimate) -> Table:
    return Table(
        columns=(
            Column("GPU", key=True),
            Column("memory", numeric=True),
            Column("verdict"),
            Column("left", numeric=True),
        ),
        rows=tuple(
            (
                fit.gpu,
                format_bytes(fit.capacity_bytes),
                fit.verdict,
                signed_bytes(fit.headroom_bytes),
            )
            for fit in fits
        ),
        tones=tuple(_TONES[fit.verdict] for fit in fits),
        bars=tuple(
            min(1.0, (fit.capacity_bytes - fit.headroom_bytes) / fit.capacity_bytes) for fit in fits
        ),
        bar_title="used",
        note=(
            "tight: the tensors fit, but the allocator's unused memory or the uncertainty of "
            f"{format_bytes(estimate.uncertainty_bytes)} may not. The allocator's unused memory is "
            "computed for the GPU of --gpu, and assumed to be the same on others."
        ),
    )


def _largest(largest: Largest, estimate: Estimate) -> Facts:
    gpu = largest.gpu
    if largest.value is None:
        return Facts(((largest.option, f"not even {largest.step} fits on {gpu}"),))
    value = f"{largest.value:,} on {gpu}"
    shape = estimate.shape
    longest = None if shape is None else shape.max_positions
    if largest.option == "--seq" and shape is not None and longest is not None:
        if largest.value > longest:
            value += f"; the model was made for {longest:,} positions"
        elif largest.value + estimate.plan.generate == shape.learned_positions:
            value += f"; the model has learned no more than {longest:,} positions"
    return Facts(((largest.option, value), ("the process then takes", both(largest.process_bytes))))


def _advice(report: MemoryReport) -> list[Block]:
    if not report.weighed:
        return ["Not known: a trace covers one plan."]
    if not report.advice:
        return ["No single change of the plan would save much of the peak."]
    peak = report.estimate.peak_allocated_bytes
    return [
        Table(
            columns=(
                Column("change", key=True),
                Column("saves", numeric=True),
                Column("peak then in"),
                Column("costs"),
            ),
            rows=tuple(_advised(advice) for advice in report.advice),
            bars=tuple(advice.saves_bytes / peak for advice in report.advice),
            bar_title="of the peak",
            note="Each change alone, from an estimate of the changed plan.",
        )
    ]


def _advised(advice: Advice) -> tuple[str, ...]:
    return advice.change, format_bytes(advice.saves_bytes), advice.peak_phase, advice.cost


def _cures(report: MemoryReport) -> Table:
    return Table(
        columns=(
            Column("where", key=True),
            Column("needs", numeric=True),
            Column("cure"),
            Column("saves there", numeric=True),
            Column("how it shows"),
        ),
        rows=tuple(
            (cure.kind, format_bytes(cure.needs_bytes), *_cure(cure, report), cure.symptom)
            for cure in report.cures
        ),
        note="The change that saves most there and trains the same, if there is one.",
    )


def _cure(cure: Cure, report: MemoryReport) -> tuple[str, str]:
    """The change, and the bytes it saves. Expandable segments save at most what the allocator keeps
    unused; that is shown if they were not tried."""
    if cure.change:
        return cure.change, format_bytes(cure.saves_bytes)
    estimate = report.estimate
    native = estimate.plan.segments == "native"
    if cure.kind == FRAGMENTATION and native and not tries_segments(estimate):
        return "--segments expandable", f"at most {format_bytes(cure.needs_bytes)}"
    return "nothing in the plan" if report.weighed else "not known", "–"


#: The GPUs whose times are shown if no GPU was named.
_TIMED = ("RTX 4090", "A100 SXM4 80GB", "H100 SXM5 80GB")


def compute_facts(report: MemoryReport, compute: Compute) -> Facts:
    """The operations by the rule C = 6ND (Kaplan et al. 2020; 2ND without a backward pass), the
    operations of the plan, and their least time on a device."""
    plan = report.estimate.plan
    times, step = (6, "step") if plan.trains else (2, "prompt" if plan.generate else "pass")
    rule = times * compute.matrix_parameters * compute.tokens
    parts = f"{compute.total:.3g}: "
    if plan.trains:
        parts += (
            f"forward {compute.forward:.3g}, computed again {compute.recompute:.3g}, backward "
            f"{compute.backward:.3g}; "
        )
    parts += f"attention is {compute.attention:.3g} of it"
    if plan.generate:
        parts += "; the prompt alone, not what is generated after it"
    pairs = [
        (
            f"C = {times}ND",
            f"{times} x {compute.matrix_parameters:,} parameters in products x "
            f"{compute.tokens:,} tokens = {rule:.3g}",
        ),
        ("of this plan", parts),
    ]
    devices = [report.device] if report.device else [d for d in DEVICES if d.name in _TIMED]
    for device in devices:
        seconds = report.seconds_on(device)
        if seconds is not None:
            pairs.append(
                (
                    f"on {device.name}",
                    f"no less than {seconds:.3g} s a {step}: a bound, at the highest rate of "
                    f"{compute.dtype} that the vendor states; real ones take two to five times "
                    "as long",
                )
            )
        elif device.rates:
            known = ", ".join(device.rates)
            pairs.append(
                (
                    f"on {device.name}",
                    f"no bound: its vendor states no rate of {compute.dtype} but of {known}",
                )
            )
    return Facts(tuple(pairs))
