"""The document of `qtui train` and `qtui replay`: a run compared with its estimate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from qtui.report.document import Block, Column, Document, Facts, Section, Table
from qtui.report.train.conclusion import conclude_train, within
from qtui.report.train.ranges import ranges_blocks
from qtui.report.train.tables import against_table, gap_table, steps_table
from qtui_core.live import compare
from qtui_core.live.compare import Level, RunBytes, by_component, levels_of, summary
from qtui_core.live.snapshot import AdaptersCompared, Fault, RecordingHeader
from qtui_core.live.state import Measured, RunState, measured
from qtui_core.quantities import format_bytes, format_count

#: The most lines of the log in a report: the last ones.
LOGGED = 12


def train_document(state: RunState, title: str, complaint: str = "") -> Document:
    """The report on a run, which must have its header; `complaint` says what is wrong with its
    recording, "" if nothing."""
    header = state.header
    assert header is not None
    found = measured(state)
    levels = levels_of(state, found)
    peak = None if found.peak is None else found.peak.phase
    sections = [
        Section("Run", (_run(header, state, found),)),
        Section("Estimate and measurement", (_levels(header, found), *_why_not(found, levels))),
        Section("By phase", (against_table("phase", compare.by_phase(state), peak),)),
    ]
    if peak is not None:
        rows = by_component(state, peak, peak=True)
        if rows:
            name = f"At the peak, {within(peak)}"
            sections.append(Section(name, (against_table("component", rows),)))
    if any(level.parts for level in levels):
        sections.append(Section("What the difference is", (gap_table(levels),)))
    if state.steps:
        heading = "Steps" if all(loss is None for loss in found.losses) else "Loss"
        sections.append(Section(heading, (steps_table(state.steps),)))
    if state.adapters is not None:
        sections.append(Section("What the adapters change", _adapters(state.adapters)))
    if state.ranges is not None:
        name = f"Where the numbers of step {state.ranges.step:,} lie"
        sections.append(Section(name, tuple(ranges_blocks(state.ranges))))
    if state.faults:
        sections.append(Section("What went wrong", tuple(_faults(state.faults))))
    if state.log:
        lines = tuple(said.text for said in state.log[-LOGGED:])
        sections.append(Section("What the run said", lines))
    notes = tuple(_notes(state, complaint))
    if notes:
        sections.append(Section("Notes", notes))
    return Document(
        title,
        tuple(sections),
        conclude_train(state, found, levels),
        summary(state),
    )


def _run(header: RecordingHeader, state: RunState, found: Measured) -> Facts:
    model = header.architecture
    if header.parameters is not None:
        model += f", {header.parameters:,} parameters ({format_count(header.parameters)})"
    device = header.device.name
    if header.device.capacity_bytes is not None:
        device += f", {format_bytes(header.device.capacity_bytes)}"
    steps = f"{len(state.steps):,}" + ("" if header.steps is None else f" of {header.steps:,}")
    pairs = [
        ("model", model),
        ("device", device),
        ("data", header.data),
        *compare.plan_of(header.plan).grouped(),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
        ("steps", f"{steps}, {state.status}"),
    ]
    if found.counted == "tensors" and found.process_bytes is not None:
        pairs.append(("resident set", f"{format_bytes(found.process_bytes)}, libraries and all"))
    if found.step_seconds is not None:
        pace = f"{found.step_seconds:.3g} s"
        if found.tokens_per_second:
            pace += f", {found.tokens_per_second:,.0f} tokens a second"
        pairs.append(("a step", pace))
    return Facts(tuple(pairs))


def _levels(header: RecordingHeader, found: Measured) -> Table:
    mine = header.predicted
    tensors = found.counted == "tensors"
    peak = "live tensors, peak" if tensors else "allocated, peak"
    rows = [
        RunBytes("between steps", mine.resident_bytes if mine else None, found.resident_bytes),
        RunBytes(peak, mine.peak_allocated_bytes if mine else None, found.peak_allocated_bytes),
    ]
    if not tensors:
        reserved = mine.peak_reserved_bytes if mine else None
        rows += [
            RunBytes("reserved, peak", reserved, found.peak_reserved_bytes),
            RunBytes("process", mine.process_bytes if mine else None, found.process_bytes),
            RunBytes("device, all processes", None, found.device_used_bytes),
        ]
    return against_table("level", rows, note=True)


def _why_not(found: Measured, levels: Sequence[Level]) -> tuple[str, ...]:
    """The reasons why levels were not measured, without duplicates."""
    if found.counted == "tensors":
        return ("Reserved bytes, a context and a device's memory do not exist on a CPU.",)
    return tuple(dict.fromkeys(level.why_not for level in levels if level.why_not))


def _adapters(compared: AdaptersCompared) -> tuple[Block, ...]:
    reference = compared.reference_difference
    base = (
        "What the base says without adapters was not compared."
        if reference is None
        else "The base is untouched: with the adapters off its logits are those from before."
        if reference == 0
        else f"With the adapters off logits differ from the base by up to {reference:.3g}."
    )
    said = f"Adapters change a logit by up to {compared.largest_difference:.3g}. {base}"
    if not math.isfinite(compared.largest_difference + (reference or 0.0)):
        said = "Some logits are no finite numbers, so adapters on and off cannot be compared."
    columns: list[Column] = []
    for side in ("with adapters", "without"):
        columns += [Column(side), Column("", numeric=True)]
    ranks = max(len(compared.on), len(compared.off))
    rows = tuple((*_token(compared.on, rank), *_token(compared.off, rank)) for rank in range(ranks))
    return (
        Table(columns=tuple(columns), rows=rows, note="The likeliest next tokens of the text."),
        said,
    )


def _token(tokens: Sequence[tuple[str, float]], rank: int) -> tuple[str, str]:
    if rank >= len(tokens):
        return "–", "–"
    token, probability = tokens[rank]
    return repr(token), f"{probability:.1%}"


def _faults(faults: Sequence[Fault]) -> Iterator[Block]:
    for fault in faults:
        yield f"{fault.kind}: {fault.text}"
        if fault.asked_bytes is not None:
            yield Facts((("asked for", format_bytes(fault.asked_bytes)),))
        for title, entries in (("held then", fault.largest), ("would save", fault.advice)):
            if entries:
                yield Table(
                    columns=(Column(title, key=True), Column("", numeric=True)),
                    rows=tuple((name, format_bytes(nbytes)) for name, nbytes in entries),
                )


def _notes(state: RunState, complaint: str) -> Iterator[str]:
    header = state.header
    if complaint:
        yield complaint
    if header is not None and header.predicted is None:
        yield f"There is no estimate: {header.why_not or 'none was made'}."
    if header is not None and header.predicted is not None and header.predicted.warning:
        yield header.predicted.warning
    if state.counted == "tensors":
        yield (
            "There was no GPU, so the bytes of live tensors were counted. On a GPU the same step "
            "has the same tensors, unless kernels of the CPU save others. The estimate is also "
            "that of live tensors, without workspaces."
        )
    if state.steps and compare.too_early(state):
        yield (
            "Fewer than two whole steps were measured. The optimizer makes its states at the end "
            "of the first step, but the estimate counts them in every phase."
        )
