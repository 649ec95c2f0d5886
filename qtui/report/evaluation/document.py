"""The document of `qtui eval`: the candidates as rows, and their divergence against their bits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from qtui.report.document import Block, Column, Document, Facts, Plotted, Section, Table, Tone
from qtui.report.numbers import format_value
from qtui_core.codec import printed
from qtui_core.evaluation.figures import FIGURES, EvaluationFigure
from qtui_core.evaluation.results import Evaluation, EvaluationRecording, EvaluationRow
from qtui_core.lab.results import LabFrontier, Point
from qtui_core.quantities import format_bytes, plural


def evaluation_document(found: Evaluation, command: str) -> Document:
    """The report on an evaluation, finished or not. `command` is the command line."""
    sections = [Section("Text and model", (Facts(tuple(_facts(found))),))]
    if found.rows:
        blocks: list[Block] = [candidate_table(found.rows)]
        picture = frontier_picture(found.rows)
        blocks += [] if picture is None else [Plotted(picture)]
        sections.append(Section("Candidates", tuple(blocks)))
    if found.begun.notes:
        sections.append(Section("Notes", found.begun.notes))
    return Document(command, tuple(sections), found.conclusion, printed(found))


def evaluation_replay(recording: EvaluationRecording, command: str) -> Document:
    """The report on a recorded evaluation, which may have stopped early."""
    from qtui_core.evaluation.summary import summarize  # needs numpy, which no screen loads

    begun, parts = recording.begun, recording.parts
    ended = "done" if len(parts) >= begun.parts else "stopped"
    document = evaluation_document(summarize(begun, parts, ended), command)
    if not recording.complaint:
        return document
    above = Section("Recording", (recording.complaint,))
    return replace(document, sections=(above, *document.sections))


def _facts(found: Evaluation) -> Iterator[tuple[str, str]]:
    begun, text = found.begun, found.begun.text
    yield "model", f"{begun.model}, {begun.architecture}"
    yield "text", f"{text.origin}: {plural(text.available, 'token')}, {text.tokenizer}"
    read = plural(found.windows, "window")
    if found.windows < text.windows:
        read = f"{found.windows:,} of {plural(text.windows, 'window')}"
    spread = ", spread over the text" if found.windows > 1 else ""
    yield "read", f"{read} of {text.window:,} tokens{spread}"
    half = begun.settings.scored == "half"
    which = "the second half of each window" if half else "all but the first of each window"
    yield "scored", f"{plural(found.tokens, 'token')}: {which}"
    if begun.settings.keep:
        yield "kept as stored", ", ".join(begun.settings.keep)
    if begun.settings.assignment:
        yield "assignments", ", ".join(begun.settings.assignment)
    yield "computed on", begun.device
    seconds = sum(row.seconds for row in found.rows)
    if seconds:
        yield "took", f"{seconds:.1f} s, {seconds / len(found.rows):.1f} s a row"
    yield "versions", ", ".join(f"{name} {version}" for name, version in begun.versions.items())


def candidate_table(rows: Sequence[EvaluationRow]) -> Table:
    """The table of the rows, of which the first is the original."""
    most = max((row.kl_mean or 0.0 for row in rows), default=0.0)
    shown = [figure for figure in FIGURES if figure.title]
    return Table(
        columns=(
            Column("weights + inputs" if any(r.activations for r in rows) else "scheme", key=True),
            *(Column(figure.title, numeric=True) for figure in shown),
        ),
        rows=tuple((row.name, *(_cell(f, row, row is rows[0]) for f in shown)) for row in rows),
        tones=tuple(_tone(row) for row in rows),
        bars=tuple((row.kl_mean or 0.0) / most if most else 0.0 for row in rows),
        bar_title="KL",
        note=" ".join(figure.note for figure in shown if figure.note),
    )


def _cell(figure: EvaluationFigure, row: EvaluationRow, original: bool) -> str:
    value = getattr(row, figure.name)
    if value is None or (figure.differs and original):
        return "–"
    if figure.form.isdecimal():
        return format_value(value, int(figure.form))
    return format_bytes(value) if figure.form == "bytes" else format(value, figure.form)


def _tone(row: EvaluationRow) -> Tone:
    return "bad" if row.nonfinite else ""


def frontier(rows: Sequence[EvaluationRow]) -> tuple[EvaluationRow, ...]:
    """The candidates that no other beats in both bits and divergence, the smallest first. The first
    of the rows is the original."""
    found: list[EvaluationRow] = []
    known = [row for row in rows[1:] if row.kl_mean is not None]
    for row in sorted(known, key=lambda each: (each.nbytes, each.kl_mean or 0.0)):
        if not found or (row.kl_mean or 0.0) < (found[-1].kl_mean or 0.0):
            found.append(row)
    return tuple(found)


def frontier_picture(rows: Sequence[EvaluationRow]) -> LabFrontier | None:
    """The divergence of each candidate against its bits, and the line of the frontier; None for
    fewer than two that have a divergence."""
    best = frontier(rows)
    drawn = [(row, math.log10(row.kl_mean)) for row in rows[1:] if row.kl_mean and row.kl_mean > 0]
    if len(drawn) < 2:
        return None

    def place(row: EvaluationRow, height: float) -> Point:
        name = row.name if row in best else f"{row.name}, dominated"
        return Point(name, row.bits_per_parameter, height, faint=row not in best)

    line = sorted((row.bits_per_parameter, height) for row, height in drawn if row in best)
    return LabFrontier(
        "KL divergence against bits",
        "bits per parameter",
        "log10 of KL, nats a token",
        tuple(line),
        tuple(place(*each) for each in drawn),
    )
