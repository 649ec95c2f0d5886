"""The sections of `qtui memory --explain`: every term with formula, numbers, basis and source."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.report.document import Block, Column, Facts, Section, Table, figures
from qtui_core.memory.advice.report import MemoryReport
from qtui_core.memory.cached import explained
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.formulas.size import MEANINGS
from qtui_core.memory.formulas.terms import SLACK, Term, Terms
from qtui_core.memory.replay.record import RESIDENT, Phase
from qtui_core.quantities import format_bytes

#: The most terms that a table lists, unless more of them are a thousandth or more of the bytes.
LISTED = 40


def explain_sections(estimate: Estimate) -> list[Section]:
    """The symbols, the terms that sum to the peak, and the terms from there to the process."""
    values = estimate.alive.letters
    letters = Facts(
        tuple(
            (letter, f"{values[letter]:,}  {meaning}")
            for letter, meaning in MEANINGS.items()
            if letter in values
        )
    )
    return [
        Section("Symbols", (letters,)),
        Section(
            "Terms of the peak",
            (
                _terms(_rows(estimate), estimate.peak_allocated_bytes),
                "r512(x) is x rounded up to 512 bytes, as the allocator does.",
            ),
        ),
        Section("From the peak to the process", (_terms(estimate.beyond, estimate.process_bytes),)),
        *_in_closed_form(estimate),
    ]


def cache_section(report: MemoryReport) -> list[Section]:
    """What each kind of layer keeps of the tokens, and what they sum to."""
    if not report.cache:
        return []
    total = sum(kind.bytes for kind in report.cache)
    names = Column("formula of a layer"), Column("numbers"), Column("known")
    note, *sentences = explained(report.cache, report.estimate.plan)
    table = Table(
        columns=(
            Column("kind of layer", key=True),
            *figures("layers", "bytes", "tokens", "each, all layers"),
            *names,
        ),
        rows=tuple(
            (
                kind.kind,
                str(kind.layers),
                f"{kind.bytes:,}",
                "–" if kind.tokens is None else f"{kind.tokens:,}",
                f"{kind.bytes_each:,} B a {kind.each}" if kind.numbers else "–",
                kind.formula,
                kind.numbers or "–",
                kind.basis,
            )
            for kind in report.cache
        ),
        bars=tuple(kind.bytes / total if total else 0.0 for kind in report.cache),
        bar_title="share",
        note=note,
    )
    return [Section("Cache by kind of layer", (table, *sentences))]


def _in_closed_form(estimate: Estimate) -> list[Section]:
    """Formulas for the saved tensors of a layer, and for the tensors at the peaks of phases."""
    shape, plan, timeline = estimate.shape, estimate.plan, estimate.timeline
    if shape is None or not plan.trains:
        return []
    blocks: list[Block] = []
    layer = len(shape.layers) // 2
    kept = next((s.start - 1 for s in timeline.spans if s.name == Phase.BACKWARD), None)
    fullest = timeline.fullest_of(layer)
    for number, what in (
        (kept, "A layer saves for its backward pass:"),
        (fullest, "A layer holds, when its backward pass is at its fullest:"),
    ):
        alive = [] if number is None else timeline.alive_at(number, layer)
        held = [each for each in alive if each.component not in RESIDENT]
        if held:
            blocks += [what, _forms(Terms(held, shape, plan.quant).by_expression)]
    tops: dict[str, tuple[int, int]] = {}
    for span, top in zip(timeline.spans, timeline.tops, strict=True):
        tops[span.name] = max(top, tops.get(span.name, top))
    for phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER):
        if phase in tops and phase != estimate.peak_phase:
            alive = timeline.alive_at(tops[phase][1])
            blocks += [
                f"When the phase {phase} is at its fullest:",
                _forms(Terms(alive, shape, plan.quant).components),
            ]
    return [Section("In closed form", tuple(blocks))] if blocks else []


def _rows(estimate: Estimate) -> tuple[Term, ...]:
    """The terms of the peak; equal terms of a component are merged."""
    slack = (term for term in estimate.terms if term.name == SLACK)
    return (*estimate.alive.by_expression, *slack)


def _forms(terms: Sequence[Term]) -> Table:
    return Table(
        columns=(Column("what", key=True), Column("bytes", numeric=True), Column("formula")),
        rows=tuple((term.name, f"{term.bytes:,}", term.formula) for term in terms),
        note=f"They sum to {sum(term.bytes for term in terms):,} bytes.",
    )


def _terms(terms: Sequence[Term], whole: int) -> Table:
    shown = list(terms)
    note = f"They sum to {sum(t.bytes for t in terms):,} bytes."
    if len(shown) > LISTED:
        shown.sort(key=lambda term: -term.bytes)
        rest = sum(term.bytes for term in shown[LISTED:])
        listed = LISTED
        while rest > whole / 1000:
            rest -= shown[listed].bytes
            listed += 1
        shown = shown[:listed]
        note = (
            f"The largest {listed} of {len(terms)}; the others are {format_bytes(rest)}, and "
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
                term.name,
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
