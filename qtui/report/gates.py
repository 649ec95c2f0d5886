"""What became of the gates of a command, in its report."""

from __future__ import annotations

from dataclasses import replace

from qtui.report.document import Block, Column, Document, Facts, Section, Table
from qtui_core.codec import printed
from qtui_core.gates import GateVerdict
from qtui_core.quantities import plural

#: The most fallen rows that a table lists; the JSON has all.
TABLE_ROWS = 60


def with_gates(document: Document, verdict: GateVerdict) -> Document:
    """The report with a section on its gates, and with the rows that failed in its JSON: `gates`,
    and `baseline` with the rows that only one of the two reports has."""
    fallen = verdict.fallen
    result = verdict.count if fallen else "all passed"
    pairs = [(gate, f"checked on {plural(count, 'row')}") for gate, count in verdict.checked]
    blocks: list[Block] = [Facts((*pairs, ("result", result)))]
    if fallen:
        more = len(fallen) - TABLE_ROWS
        blocks.append(
            Table(
                columns=(Column("gate", key=True), Column("row"), Column("why it failed")),
                rows=tuple((r.expression, r.row or "–", r.sentence) for r in fallen[:TABLE_ROWS]),
                tones=tuple("bad" for _ in fallen[:TABLE_ROWS]),
                note=f"{plural(more, 'more row')} failed: --json lists all." if more > 0 else "",
            )
        )
    data = {**document.data, "gates": printed(fallen)}
    if verdict.missing is not None:
        data["baseline"] = {"missing": list(verdict.missing), "new": list(verdict.new or ())}
    return replace(
        document,
        sections=(*document.sections, Section("Gates", (*blocks, *verdict.notes))),
        data=data,
    )
