"""The sentence under a table of formats, computed from its rows. NaN, infinities and zeros are
here, other numbers in `summary_number`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from qtui_core.formats.decimals import format_exact
from qtui_core.formats.scalar import is_finite, is_negative
from qtui_core.formats.summary_number import conclude_number
from qtui_core.formats.summary_words import all_kept, everywhere, names, shown_value, verb
from qtui_core.formats.table import FormatOutcome, FormatRow


def summarize(rows: Sequence[FormatRow]) -> str:
    """What the table says about its value and what to do about it; "" for no rows.

    `rows` are those of one value, as describe_value gives them. What is said of a list of formats
    is true of each of them and of no other format in the table.
    """
    if not rows:
        return ""
    asked = rows[0].asked
    if isinstance(asked, float) and math.isnan(asked):
        return _conclude_nan(rows)
    if isinstance(asked, float) and math.isinf(asked):
        return _conclude_infinity(asked, rows)
    # A format without a sign or a zero is a scale format. Numbers that it was not made for get a
    # sentence of their own.
    aside = [r for r in rows if _lacks(r) is not None]
    others = [r for r in rows if r not in aside]
    notes = " ".join(f"{_about(r)} has no {_lacks(r)} and gives {shown_value(r)}." for r in aside)
    if not others:
        return f"{format_exact(asked, 8)}: {notes}"
    if isinstance(asked, float):
        sentence = _conclude_negative_zero(others, aside)
    else:
        sentence = conclude_number(Fraction(asked), others, aside)
    return f"{sentence} {notes}".rstrip()


def _lacks(row: FormatRow) -> str | None:
    """What the format of this row lacks to represent the number: a zero or a sign; None if
    nothing."""
    if row.asked == 0:
        return None if row.format.has_zero else "zero"
    return "sign" if row.asked < 0 and not row.format.signed else None


def _about(row: FormatRow) -> str:
    return f"{row.format.title}{'' if row.format.has_zero else ', a scale format,'}"


def _conclude_nan(rows: Sequence[FormatRow]) -> str:
    without = [r for r in rows if r.outcome is FormatOutcome.NOT_REPRESENTABLE]
    if not without:
        return (
            f"NaN stays NaN in {everywhere(rows)}, and in every sum it enters: find its first "
            f"source."
        )
    return (
        f"{names(without, rows)} {verb(without, 'has', 'have')} no code for NaN: find the "
        f"operation it came from, or replace it, before casting there."
    )


def _conclude_infinity(asked: float, rows: Sequence[FormatRow]) -> str:
    shown = format_exact(asked)
    kept = [r for r in rows if r.value == asked]
    cut = [r for r in rows if r.value is not None and is_finite(r.value)]
    lost = [r for r in rows if r.kind is not None and r not in kept and r not in cut]
    without = [r for r in rows if r.kind is None]
    parts = []
    if kept:
        parts.append(f"{shown} survives in {names(kept, rows)}")
    if cut:
        end = "largest" if asked > 0 else "lowest"
        first = f"{cut[0].format.title}: " if len(cut) > 1 else ""
        parts.append(
            f"{names(cut, rows)} {verb(cut, 'cuts', 'cut')} it to the {end} number "
            f"({first}{shown_value(cut[0])})"
        )
    if lost:
        parts.append(f"{names(lost, rows)} {verb(lost, 'turns', 'turn')} it into NaN")
    if without:
        parts.append(f"{names(without, rows)} {verb(without, 'has', 'have')} no code for it")
    begin = "" if kept else f"{shown}: "
    advice = (
        "A cut hides the overflow, so look for it before casting"
        if cut
        else "Look for the overflow it came from"
    )
    return f"{begin}{'; '.join(parts)}. {advice}."


def _conclude_negative_zero(rows: Sequence[FormatRow], aside: Sequence[FormatRow]) -> str:
    plain = [r for r in rows if r.value is None or not is_negative(r.value)]
    kept = [r for r in rows if r not in plain]
    if not plain:
        return f"-0 is exact in {everywhere(rows, aside)}{all_kept(aside)}"
    lose = f"{names(plain, rows)} {verb(plain, 'has', 'have')} one zero and"
    if not kept:
        return f"-0: {lose} {verb(plain, 'drops', 'drop')} its sign."
    return f"-0 keeps its sign in {names(kept, rows)}; {lose} {verb(plain, 'drops', 'drop')} it."
