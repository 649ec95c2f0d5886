"""The document of `qtui train` and `qtui replay`: a run against its estimate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from qtui.report.document import Block, Column, Document, Facts, Section, Table, Tone
from qtui.report.numbers import format_bytes, format_count, format_value
from qtui.report.train_words import conclude_train, within
from qtui_core.live.compare import ComponentRow, PhaseRow, by_component, by_phase, first_step_only
from qtui_core.live.gap import Level
from qtui_core.live.header import Header
from qtui_core.live.measured import Measured, measured
from qtui_core.live.snapshot import AdaptersCompared, Fault, StepTaken
from qtui_core.live.state import RunState
from qtui_core.live.summary import levels_of, summary
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.plan_text import grouped
from qtui_core.models.quoting import printable

#: Steps whose losses are listed before some are left out.
LISTED = 12
#: An estimate that is off by more of what was measured is worth a colour.
_OFF = 0.05


def train_document(state: RunState, title: str, complaint: str = "") -> Document:
    """A run that told at least its header; `complaint` is what is wrong with its recording."""
    header = state.header
    assert header is not None
    found = measured(state)
    levels = levels_of(state, found)
    sections = [
        Section("Run", (_run(header, state, found),)),
        Section("Estimate and measurement", (_levels(header, found), *_why_not(found, levels))),
        Section("By phase", (_phases(by_phase(state), found),)),
    ]
    if found.peak is not None:
        rows = by_component(state, found.peak.phase, peak=True)
        if rows:
            name = f"At the peak, {within(found.peak.phase)}"
            sections.append(Section(name, (_components(rows),)))
    if any(level.parts for level in levels):
        sections.append(Section("What the difference is", (_gap(levels),)))
    if state.steps:
        sections.append(Section("Loss", (_losses(state.steps),)))
    if state.adapters is not None:
        sections.append(Section("What the adapters change", _adapters(state.adapters)))
    if state.faults:
        sections.append(Section("What went wrong", tuple(_faults(state.faults))))
    notes = tuple(printable(note) for note in _notes(state, complaint))
    if notes:
        sections.append(Section("Notes", notes))
    return Document(
        title,
        tuple(sections),
        printable(conclude_train(state, found, levels)),
        summary(state),
    )


def _run(header: Header, state: RunState, found: Measured) -> Facts:
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
        *plan_pairs(header),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
        ("steps", f"{steps}, {state.status}"),
    ]
    if found.step_seconds is not None:
        pace = f"{found.step_seconds:.3g} s"
        if found.tokens_per_second:
            pace += f", {found.tokens_per_second:,.0f} tokens a second"
        pairs.append(("a step", pace))
    return Facts(tuple((name, printable(text)) for name, text in pairs))


def plan_pairs(header: Header) -> list[tuple[str, str]]:
    """(group, its options) of the plan, as far as this version knows them."""
    known = {field.name for field in fields(RunPlan)}
    given: dict[str, Any] = {name: value for name, value in header.plan.items() if name in known}
    if "lora_targets" in given:
        given["lora_targets"] = tuple(given["lora_targets"])
    return grouped(RunPlan(**given))


def _levels(header: Header, found: Measured) -> Table:
    mine = header.predicted
    tensors = found.counted == "tensors"
    peak = "live tensors, peak" if tensors else "allocated, peak"
    rows = [
        PhaseRow("between steps", mine.resident_bytes if mine else None, found.resident_bytes),
        PhaseRow(peak, mine.peak_allocated_bytes if mine else None, found.peak_allocated_bytes),
    ]
    if tensors:
        rows.append(PhaseRow("resident set of the process", None, found.process_bytes))
    else:
        reserved = mine.peak_reserved_bytes if mine else None
        rows += [
            PhaseRow("reserved, peak", reserved, found.peak_reserved_bytes),
            PhaseRow("process", mine.process_bytes if mine else None, found.process_bytes),
            PhaseRow("device, all processes", None, found.device_used_bytes),
        ]
    return _against("level", rows)


def _why_not(found: Measured, levels: Sequence[Level]) -> tuple[str, ...]:
    """Each reason why a level was not measured, once."""
    if found.counted == "tensors":
        return ("Reserved bytes, a context and a device's memory do not exist on a CPU.",)
    return tuple(dict.fromkeys(printable(level.why_not) for level in levels if level.why_not))


def _phases(rows: Sequence[PhaseRow], found: Measured) -> Table:
    return _against("phase", rows, None if found.peak is None else found.peak.phase)


def _components(rows: Sequence[ComponentRow]) -> Table:
    return _against("component", rows)


def _against(
    title: str, rows: Sequence[PhaseRow] | Sequence[ComponentRow], peak: str | None = None
) -> Table:
    """Estimated and measured side by side, with the error of the estimate."""
    most = max((row.measured or 0 for row in rows), default=0)
    return Table(
        columns=(
            Column(title, key=True),
            Column("estimate", numeric=True),
            Column("", numeric=True),
            Column("measured", numeric=True),
            Column("", numeric=True),
            Column("error", numeric=True),
        ),
        rows=tuple(
            (
                printable(row.name),
                *_bytes(row.estimated),
                *_bytes(row.measured),
                percent(row.error),
            )
            for row in rows
        ),
        tones=tuple(_tone(row, peak) for row in rows),
        bars=tuple(max(0.0, (row.measured or 0) / most) if most else 0.0 for row in rows),
        bar_title="measured",
    )


def _tone(row: PhaseRow | ComponentRow, peak: str | None) -> Tone:
    if row.error is not None and abs(row.error) > _OFF:
        return "bad"
    return "warn" if row.name == peak else ""


def _bytes(count: int | None) -> tuple[str, str]:
    if count is None:
        return "–", "–"
    return f"{count:,}".replace("-", "−"), signed(count)


def signed(count: int) -> str:
    """Bytes as people read them, with a minus where they are less than none."""
    return f"{'−' if count < 0 else ''}{format_bytes(abs(count))}"


def percent(error: float | None) -> str:
    """The error of an estimate: `+0.12 %` is that much too high."""
    if error is None:
        return "–"
    text = f"{error * 100:+.2f}" if abs(error) < 0.1 else f"{error * 100:+.1f}"
    return f"{text.replace('-', '−')} %"


def _gap(levels: Sequence[Level]) -> Table:
    parts = [(level, part) for level in levels for part in level.parts]
    return Table(
        columns=(
            Column("level", key=True),
            Column("part", key=True),
            Column("bytes", numeric=True),
            Column("", numeric=True),
        ),
        rows=tuple(
            (level.name, printable(part.name), f"{part.bytes:+,}".replace("-", "−"), _plus(part))
            for level, part in parts
        ),
        tones=tuple("dim" if part.whole else "" for _, part in parts),
        note=(
            "Measured less estimated. The parts of a level sum to its difference; one that is "
            "called a gap is the difference of the level before."
        ),
    )


def _plus(part: Any) -> str:
    return ("+" if part.bytes > 0 else "") + signed(part.bytes)


def _losses(steps: Sequence[StepTaken]) -> Table:
    count = len(steps)
    chosen = sorted({round(i * (count - 1) / (LISTED - 1)) for i in range(LISTED)})
    shown = [steps[i] for i in chosen] if count > LISTED else list(steps)
    known = [step.loss for step in steps if step.loss is not None and math.isfinite(step.loss)]
    most = max(known, default=0.0)
    return Table(
        columns=(
            Column("step", numeric=True, key=True),
            Column("loss", numeric=True),
            Column("seconds", numeric=True),
            Column("tokens", numeric=True),
        ),
        rows=tuple(
            (
                f"{step.step:,}",
                "NaN" if step.loss != step.loss else format_value(step.loss),
                f"{step.step_seconds:.3g}",
                f"{step.tokens:,}",
            )
            for step in shown
        ),
        tones=tuple("bad" if step.loss != step.loss else "" for step in shown),
        bars=tuple(_share(step.loss, most) for step in shown),
        bar_title="loss",
        note=f"{len(shown)} of {count:,} steps; --json has all." if count > LISTED else "",
    )


def _share(loss: float | None, most: float) -> float:
    if loss is None or not math.isfinite(loss) or most <= 0:
        return 0.0
    return max(0.0, loss / most)


def _adapters(compared: AdaptersCompared) -> tuple[Block, ...]:
    reference = compared.reference_difference
    base = (
        "What the base says without adapters was not compared."
        if reference is None
        else "The base is untouched: with the adapters off its logits are those from before."
        if reference == 0
        else f"With the adapters off logits differ from the base by up to {reference:.3g}."
    )
    columns: list[Column] = []
    for side in ("with adapters", "without"):
        columns += [Column(side), Column("", numeric=True)]
    ranks = max(len(compared.on), len(compared.off))
    rows = tuple((*_token(compared.on, rank), *_token(compared.off, rank)) for rank in range(ranks))
    return (
        Table(columns=tuple(columns), rows=rows, note="The likeliest next tokens of the text."),
        f"Adapters change a logit by up to {compared.largest_difference:.3g}. {base}",
    )


def _token(tokens: Sequence[tuple[str, float]], rank: int) -> tuple[str, str]:
    if rank >= len(tokens):
        return "–", "–"
    token, probability = tokens[rank]
    return printable(repr(token)), f"{probability:.1%}"


def _faults(faults: Sequence[Fault]) -> Iterator[Block]:
    for fault in faults:
        yield f"{printable(fault.kind)}: {printable(fault.text)}"
        if fault.asked_bytes is not None:
            yield Facts((("asked for", format_bytes(fault.asked_bytes)),))
        for title, entries in (("held then", fault.largest), ("would save", fault.advice)):
            if entries:
                yield Table(
                    columns=(Column(title, key=True), Column("", numeric=True)),
                    rows=tuple((printable(name), format_bytes(nbytes)) for name, nbytes in entries),
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
            "There was no GPU: bytes are those of live tensors, which the same step has on a GPU "
            "too as far as the kernels of the CPU hold the same. The estimate beside them is that "
            "of live tensors, without workspaces."
        )
    if first_step_only(state):
        yield (
            "One step alone was measured: an optimizer makes its states at the end of the first, "
            "and the estimate counts them in every phase. Two steps or more are like all others."
        )
