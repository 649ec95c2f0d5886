"""`qtui memory --explain`: every term as formula, numbers, basis and source."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.report.document import Column, Facts, Section, Table
from qtui.report.numbers import format_bytes
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.terms import Symbols, Term
from qtui_core.models.quoting import printable

#: Terms that a table lists before the rest is summed up.
LISTED = 40


def explain_sections(estimate: Estimate) -> list[Section]:
    """The symbols, the terms that sum to the peak, and those that lead on to the process."""
    symbols = Symbols(estimate.shape, estimate.plan)
    letters = Facts(
        tuple(
            (letter, f"{symbols.values[letter]:,}  {meaning}")
            for letter, meaning in symbols.means.items()
        )
    )
    return [
        Section("Symbols", (letters,)),
        Section(
            "Terms of the peak",
            (
                _terms(estimate.terms, estimate.peak_allocated_bytes),
                "r512(x) is x rounded up to 512 bytes, as the allocator does.",
            ),
        ),
        Section("From the peak to the process", (_terms(estimate.beyond, estimate.process_bytes),)),
    ]


def _terms(terms: Sequence[Term], whole: int) -> Table:
    shown = list(terms)
    note = f"They sum to {sum(t.bytes for t in terms):,} bytes."
    if len(shown) > LISTED:
        shown = sorted(shown, key=lambda term: -term.bytes)[:LISTED]
        rest = sum(term.bytes for term in terms) - sum(term.bytes for term in shown)
        note = (
            f"The largest {LISTED} of {len(terms)}; the others are {format_bytes(rest)}, and "
            f"--json lists all. {note}"
        )
    return Table(
        columns=(
            Column("term", key=True),
            Column("of"),
            Column("bytes", numeric=True),
            Column("formula"),
            Column("numbers"),
            Column("basis"),
            Column("source"),
        ),
        rows=tuple(
            (
                printable(term.name),
                term.component or "–",
                f"{term.bytes:,}",
                term.formula,
                term.numbers or "–",
                term.basis,
                term.source,
            )
            for term in shown
        ),
        bars=tuple(term.bytes / whole if whole else 0.0 for term in shown),
        bar_title="share",
        note=note,
    )
