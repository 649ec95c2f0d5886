"""The documents of `qtui lab`: the report on an experiment, and the list of experiments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qtui.report.document import Column, Document, Facts, Plotted, Section, Table, Tone
from qtui.report.numbers import format_value
from qtui_core.codec import printed
from qtui_core.errors import UsageError
from qtui_core.lab.catalog import EXPERIMENTS, Experiment, cost_text
from qtui_core.lab.recording import LabRecording
from qtui_core.lab.results import Cell, Findings, LabColumn, LabResult, Unit
from qtui_core.lab.settings import Setting, Value
from qtui_core.quantities import format_bytes, plural

#: Judgement in a table -> its tone.
_TONES: Mapping[str, Tone] = {"dead": "bad", "stuck": "bad", "biased": "warn", "off": "dim"}


def lab_document(result: LabResult, command: str) -> Document:
    """The report on an experiment: question, settings, findings and conclusion. `command` is the
    command line that runs it."""
    found = result.findings
    sections = [Section(result.question, (Facts(tuple(_facts(result))),))]
    if found.rows:
        sections.append(Section("Found", (findings_table(found),)))
    if found.pictures:
        title = "Picture" if len(found.pictures) == 1 else "Pictures"
        sections.append(Section(title, tuple(map(Plotted, found.pictures))))
    if found.notes:
        sections.append(Section("Notes", tuple(found.notes)))
    return Document(command, tuple(sections), conclusion_of(result), printed(result))


def lab_replay(recording: LabRecording, command: str) -> Document:
    """The report on a recorded experiment, which may have stopped early. Raises UsageError if no
    part of it was done."""
    result = recording.result
    if result is None:
        raise UsageError("The recording stops before the first part of the experiment was done.")
    document = lab_document(result, command)
    if not recording.complaint:
        return document
    return replace(
        document, sections=(Section("Recording", (recording.complaint,)), *document.sections)
    )


def conclusion_of(result: LabResult, hint: str = "") -> str:
    """The sentence of an experiment. If the experiment stopped early or failed, the sentence begins
    with that and the `hint`."""
    verdict = result.findings.verdict
    if result.ended == "stopped":
        part = f"Stopped after {result.done} of {plural(result.jobs, 'part')}."
        nothing = "That is not enough to say anything."
        return f"{part}{hint} {verdict}" if verdict else f"{part} {nothing}{hint}"
    if result.ended == "failed":
        part = f"The experiment failed: {result.fault}{hint}"
        return f"{part} {verdict}".strip()
    if verdict and (failed := result.jobs - result.done) > 0 and result.ended:
        return f"{failed} of {plural(result.jobs, 'part')} failed, as the notes say. {verdict}"
    return verdict or "Nothing was found that can be said: see the notes."


def _facts(result: LabResult) -> Iterable[tuple[str, str]]:
    experiment = next((e for e in EXPERIMENTS if e.name == result.experiment), None)
    yield "model", result.model
    rows = {row.name: row for row in experiment.settings} if experiment else {}
    for name, value in result.settings.items():
        yield name, setting_text(rows.get(name), value)
    if result.findings.floor is not None:
        yield (
            "floor",
            f"{format_value(result.findings.floor, 2)}: a difference below three times that may "
            "be noise",
        )
    done = f"{result.done} of {plural(result.jobs, 'part')}"
    if result.ended != "done" or result.done < result.jobs:
        yield "done", done
    yield "took", f"{format_value(result.seconds, 3)} s"
    yield "versions", ", ".join(f"{name} {version}" for name, version in result.versions.items())


def setting_text(setting: Setting | None, value: Value) -> str:
    """The text of a setting's value."""
    if value is None:
        return "the text inside" if setting is not None and setting.name == "text" else "none"
    if isinstance(value, tuple | list):
        return ", ".join(setting_text(None, each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def findings_table(found: Findings) -> Table:
    """The table as text with units; a dash is a value that is not known."""
    key = found.columns[0].key if found.columns else ""
    return Table(
        columns=tuple(
            Column(_title(c), numeric=_is_numeric(found, c), key=c.key == key)
            for c in found.columns
        ),
        rows=tuple(
            tuple(cell_text(row.get(c.key), c.unit) for c in found.columns) for row in found.rows
        ),
        tones=tuple(_TONES.get(str(row.get("judged", "")), "") for row in found.rows),
    )


def _title(column: LabColumn) -> str:
    unit = {"nats": "nats", "loss": "nats", "log2": "log2"}.get(column.unit)
    return column.title if unit is None else f"{column.title}, {unit}"


def _is_numeric(found: Findings, column: LabColumn) -> bool:
    known = [row[column.key] for row in found.rows if row.get(column.key) is not None]
    return bool(known) and not any(isinstance(cell, str) for cell in known)


def cell_text(cell: Cell, unit: Unit) -> str:
    """The text of a cell in its unit."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if unit == "bytes" and math.isfinite(cell):
        return format_bytes(round(cell))
    if unit == "share":
        return f"{cell:.1%}" if abs(cell) >= 0.0005 or not cell else f"{100 * cell:.2g}%"
    if unit == "seconds":
        return f"{format_value(cell, 3)} s"
    if unit == "nats":
        return f"{round(cell, 4) + 0.0:+.4f}"  # no minus before a zero
    if unit == "loss":
        return f"{cell:.4f}"
    return f"{cell:,}" if isinstance(cell, int) else format_value(cell, 3)


def findings_csv(found: Findings) -> Iterable[Sequence[object]]:
    """The table in raw numbers: a header and rows; an empty cell is a value that is not known."""
    yield tuple(f"{c.key}_{c.unit}" if c.unit else c.key for c in found.columns)
    for row in found.rows:
        yield tuple("" if row.get(c.key) is None else row[c.key] for c in found.columns)


def catalog_document() -> Document:
    """The list of experiments: the question of each, and what a run costs."""
    rows = tuple((each.name, each.question, cost_text(each.seconds)) for each in EXPERIMENTS)
    return Document(
        "qtui lab",
        (
            Section(
                "Experiments",
                (
                    Table(
                        (
                            Column("name", key=True),
                            Column("question"),
                            Column("takes", numeric=True),
                        ),
                        rows,
                        note="Times are of a default run, from two idle cores to two busy ones.",
                    ),
                ),
            ),
        ),
        "qtui lab NAME runs one; qtui lab NAME MODEL runs it on your model.",
        {"experiments": [_row(each) for each in EXPERIMENTS]},
    )


def _row(each: Experiment) -> dict[str, Any]:
    return {
        "name": each.name,
        "question": each.question,
        "seconds": each.seconds,
        "settings": [printed(row) for row in each.settings],
    }
