"""The section of `qtui inspect --sensitivity` on what the model itself says of the assignment."""

from __future__ import annotations

import math
from dataclasses import replace

from qtui.report.document import Block, Column, Document, Facts, Section, Table, Tone, figures
from qtui.report.numbers import format_value
from qtui_core.codec import printed
from qtui_core.evaluation.sensitivity.judgement import JudgedRow, Judgement
from qtui_core.quantities import format_bytes, plural

_TITLE = "Held against the model"


def with_judgement(document: Document, found: Judgement, rule: str, *, exports: bool) -> Document:
    """The report on an assignment with its judgement, whose sentence becomes the conclusion; that
    of the assignment moves into the section before. `rule` says what the simple rule means here.
    `exports`: recipes of the assignment are written, which the conclusion says if something else is
    better."""
    text = found.begun.text
    half = ", its second half" if found.begun.settings.second_half else ""
    facts = [
        ("text", f"{text.origin}{half}: {text.tokenizer}"),
        (
            "read",
            f"{plural(found.windows, 'window')} of {text.window:,} tokens, of which the last "
            f"{text.scored:,} are scored: text that chose nothing",
        ),
        ("simple rule", rule),
        ("computed on", found.begun.device),
    ]
    blocks: list[Block] = [Facts(tuple(facts))]
    if found.rows:
        blocks.append(_table(found))
    blocks += found.begun.notes
    conclusion = found.conclusion
    if exports and found.other:
        conclusion += f" The recipes are of the assignment, not of {found.other}."
    return _with(document, blocks, conclusion, judged=printed(found), not_judged_because=None)


def without_judgement(document: Document, reason: str, command: str) -> Document:
    """The report if nothing held the assignment against the model: `reason` says why, and `command`
    is the one that does, "" if none can. Without a reason nothing is said."""
    said = f" Nothing held this against the model ({reason.removesuffix('.')})"
    said += f": `{command}` does" if command else ""
    said += ", with FILE as --json -o FILE writes it." if " FILE" in command else "."
    conclusion = document.conclusion + (said if reason else "")
    return _with(document, [], conclusion, judged=None, not_judged_because=reason or None)


def _with(document: Document, blocks: list[Block], conclusion: str, **judged: object) -> Document:
    sections = document.sections
    if blocks:
        *others, last = sections
        above = replace(last, blocks=(*last.blocks, document.conclusion))
        sections = (*others, above, Section(_TITLE, tuple(blocks)))
    sensitivity = {**document.data["sensitivity"], **judged}
    data = {**document.data, "sensitivity": sensitivity}
    return replace(document, sections=sections, conclusion=conclusion, data=data)


def _table(found: Judgement) -> Table:
    counts = "no difference counts, as there is one window"
    if math.isfinite(found.limit):
        counts = (
            f"{found.limit:.1f} of them count as a difference, which chance makes in less than 1 "
            f"of 100 cases"
        )
    return Table(
        columns=(
            Column("weights", key=True),
            *figures("bits/param", "bytes", "KL", "±", "difference", "±", "errors"),
        ),
        rows=tuple(_cells(row) for row in found.rows),
        tones=tuple(_tone(row, found) for row in found.rows),
        note=(
            "KL divergence from the original, nats a token, with its standard error over windows; "
            "its difference from the assignment's, where plus is worse, with the standard error of "
            f"the paired difference; and how many of these it is: {counts}."
        ),
    )


def _cells(row: JudgedRow) -> tuple[str, ...]:
    found = row.difference
    own = row.row
    difference = ("–", "–", "–")
    if found is not None:
        errors = "–" if found.stderr is None else "over 100"
        if found.stderr is not None and found.errors < 100:
            errors = f"{found.errors:.1f}"
        difference = (f"{found.difference:+.2g}", format_value(found.stderr, 2), errors)
    return (
        own.name,
        f"{own.bits_per_parameter:.3f}",
        format_bytes(own.nbytes),
        format_value(own.kl_mean, 3),
        format_value(own.kl_stderr, 2),
        *difference,
    )


def _tone(row: JudgedRow, found: Judgement) -> Tone:
    if row.row.nonfinite:
        return "bad"
    return "good" if row.row.name == found.recommended else ""
