"""`qtui memory --explain`: every term as formula, numbers, basis and source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qtui.report.document import Block, Column, Facts, Section, Table
from qtui.report.numbers import format_bytes
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.formulas.terms import Symbols, Term

if TYPE_CHECKING:
    from qtui_core.memory.formulas.formula import Form
    from qtui_core.memory.plan.run_plan import RunPlan
    from qtui_core.memory.shape.model_shape import ModelShape

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
        *_in_closed_form(estimate),
    ]


def _in_closed_form(estimate: Estimate) -> list[Section]:
    """What can be written as a formula of a step, where the model is built as Llama is: what a
    layer saves, and the whole of what is alive when the loss is at its fullest."""
    from qtui_core.memory.formulas.closed_forms import loss_peak, saved_by_layer

    shape, plan = estimate.shape, estimate.plan
    if shape is None or not plan.trains or plan.gpus > 1:
        return []
    blocks: list[Block] = []
    saved = saved_by_layer(shape, plan)
    if saved is not None:
        again = "A layer saves, when it is computed again:" if plan.checkpointing else ""
        blocks += [again or "A layer saves for its backward pass:", _forms(saved)]
    fullest = loss_peak(shape, plan, estimate.resident_bytes)
    if fullest is not None:
        blocks += ["When the backward pass of the loss is at its fullest:", _forms(fullest)]
    if not blocks:
        return []
    forms = (*(saved or ()), *(fullest or ()))
    return [Section("In closed form", (*blocks, _letters(forms, shape, plan)))]


#: Letters of closed forms that the terms of buffers do not have.
_LETTERS = {
    "B": "sequences",
    "C": "tokens of a chunk of the loss",
    "L": "layers",
    "P": "weights of the linear layers of a layer",
    "Z": "sequence, rounded up to 32",
    "m": "inputs of all adapters of a layer",
    "n": "the same without the attention's output",
    "s": "inputs and outputs of all adapters of a layer",
    "t": "adapters in a layer",
    "u": "inputs of adapters, those that several share once",
    "x": "inputs of the adapters on queries, keys and values",
}


def _letters(forms: Sequence[Form], shape: ModelShape, plan: RunPlan) -> Facts:
    """What the letters stand for that are not among the symbols above."""
    from qtui_core.memory.formulas.formula import letters_of

    values = letters_of(shape, plan) or {}
    used = {letter for form in forms for letter in form.formula}
    return Facts(
        tuple(
            (letter, f"{values[letter]:,}  {meaning}")
            for letter, meaning in _LETTERS.items()
            if letter in used and letter in values
        )
    )


def _forms(forms: Sequence[Form]) -> Table:
    return Table(
        columns=(
            Column("what", key=True),
            Column("formula"),
            Column("bytes", numeric=True),
            Column("because"),
        ),
        rows=tuple((f.name, f.formula or "–", f"{f.bytes:,}", f.reason) for f in forms),
        note=f"They sum to {sum(form.bytes for form in forms):,} bytes.",
    )


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
