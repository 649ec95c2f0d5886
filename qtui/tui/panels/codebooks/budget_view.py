"""The bits per parameter of each scheme by part, and what another block size or double quantization
would change."""

from __future__ import annotations

import math
from dataclasses import replace

from qtui.engine.answers.codes import SchemeBudget, SweepRow
from qtui.report.numbers import format_decibels
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, right
from qtui.tui.panels.codebooks.levels_view import LevelsView
from qtui.tui.panels.codebooks.shown import CodebooksShown
from qtui.tui.panels.codebooks.view import CodebooksView
from qtui_core.quantities import format_bytes

LABELS = 18
#: The least lines for the levels below the tables.
LEVELS = 14
COLUMN = 15
PARTS = ("codes", "scales", "tensor scale", "zero points", "nested codes",
         "nested constants", "offset")  # fmt: skip
NOTHING = "–"


class BudgetView(CodebooksView):
    """The bits per parameter of each scheme by part, and of the first format by block size."""

    TITLE = "Budget"
    HELP = "**Budget**: where the bits go, and what block size and double quantization change.\n"

    def draw(self, shown: CodebooksShown, canvas: Canvas) -> list[TextLine]:
        """The parts of each scheme, then block sizes one below the other; on a tall screen the
        levels below them."""
        if not shown.budgets:
            return []
        table = _table(shown, canvas)
        room = canvas.height - len(table) - 2
        below = room - len(shown.sweep) - 2
        if below >= LEVELS:
            levels = self.panel.view_of(LevelsView).draw(shown, replace(canvas, height=below))
            rest: list[TextLine] = [[], *levels]
        else:
            rest = []
        blank: list[TextLine] = [[]] if room > len(shown.sweep) else []
        rows = _around(shown.sweep, shown.block, room - len(blank))
        return [
            *table,
            *blank,
            *_sweep_heading(shown),
            *(_sweep_row(row, shown, canvas) for row in rows),
            *rest,
        ]

    def meaning(self, shown: CodebooksShown) -> str:
        """What double quantization saves at this block size, and whether a smaller block with
        double quantization is more accurate at fewer bits."""
        row = next((row for row in shown.sweep if row.size == shown.block), None)
        if row is None or row.nested is None:
            return "[ and ] change the block size, { and } the nested block, d double quantization."
        plain, nested = row.plain, row.nested
        saved = plain.bits - nested.bits
        text = (
            f"Scales cost {plain.name} {plain.overhead:.3f} bits per parameter, with double "
            f"quantization {nested.overhead:.3f}"
        )
        if saved <= 0:
            return f"{text}: this tensor has too few blocks for it, so leave it off."
        entry = shown.entry
        stored = 8 * entry.nbytes / entry.elements if entry and entry.elements else math.inf
        if nested.bits >= stored:
            return f"{text}: even then it takes no fewer than the {stored:.4g} bits stored now."
        text += f": {100 * (1 - nested.budget.bytes / plain.budget.bytes):.1f}% of the bytes"
        if plain.gaussian_sqnr_db is None or nested.gaussian_sqnr_db is None:
            return f"{text} saved."
        cost = plain.gaussian_sqnr_db - nested.gaussian_sqnr_db
        text += " saved for next to nothing" if cost < 0.01 else f" saved for {cost:.2f} dB"
        better = [
            (each.nested.gaussian_sqnr_db or 0.0, each.nested)
            for each in shown.sweep
            if each.nested is not None
            and each.nested.bits <= plain.bits
            and each.nested.bits < stored
            and each.size < row.size
        ]
        gain, best = max(better, key=lambda found: found[0], default=(0.0, None))
        if best is None or gain <= plain.gaussian_sqnr_db:
            return f"{text}. Turn it on."
        return (
            f"{text}. Turn it on, or buy precision: {best.name} takes "
            f"{best.bits:.3f} bits, not {plain.bits:.3f}, and is "
            f"{gain - plain.gaussian_sqnr_db:.1f} dB better on a Gaussian."
        )


def _table(shown: CodebooksShown, canvas: Canvas) -> list[TextLine]:
    # Full names if all columns fit then; otherwise short names, so that more columns fit.
    width = max(COLUMN, 2 + max(len(each.name) for each in shown.budgets))
    if LABELS + width * len(shown.budgets) > canvas.width:
        width = COLUMN
    count = max(1, (canvas.width - LABELS) // width)
    first = max(0, min(shown.chosen - count + 1, len(shown.budgets) - count))
    budgets = shown.budgets[first : first + count]
    names = [part for part in PARTS if any(part in each.parts for each in budgets)]
    names += sorted({part for each in budgets for part in each.parts} - set(PARTS))

    def row(label: str, texts: list[str], tone: Tone = "value") -> list[Put]:
        puts = [Put(0, label, "label" if tone == "value" else tone)]
        for at, text in enumerate(texts):
            puts.append(right(LABELS + (at + 1) * width, text, tone))
        return puts

    headings = [shortened(each.name, width - 1, canvas.glyphs.ellipsis) for each in budgets]
    heading = row("bits per parameter", headings, "heading")
    lines = [heading]
    for name in names:
        lines.append(row(name, [_bits(each.parts.get(name)) for each in budgets]))
    lines.append(row("all", [_bits(each.bits) for each in budgets], "best"))
    lines.append(row("bytes", [format_bytes(each.budget.bytes) for each in budgets]))
    lines.append(row("Gaussian dB", [format_decibels(each.gaussian_sqnr_db) for each in budgets]))
    return [*lines]


def _bits(value: float | None) -> str:
    """Six decimal places: 32 bits for 64 x 256 elements are 0.001953."""
    return NOTHING if value is None else f"{value:.6f}"


def _around(sweep: tuple[SweepRow, ...], block: int, room: int) -> tuple[SweepRow, ...]:
    """As many rows as fit, including the current block size."""
    if room >= len(sweep):
        return sweep
    room = max(0, room)
    at = next((i for i, row in enumerate(sweep) if row.size >= block), len(sweep) - 1)
    first = max(0, min(at - room // 2, len(sweep) - room))
    return sweep[first : first + room]


_ENDS = (9, 20, 31, 40, 53, 64, 73)


def _sweep_heading(shown: CodebooksShown) -> list[TextLine]:
    if not shown.sweep:
        return []
    nested = f"dq{shown.nested_block} adds"
    name = shown.sweep[0].plain.budget.scheme.format
    titles = (f"{name} block", "scales add", "all", "dB", nested, "all", "dB")
    return [[right(end, title, "heading") for end, title in zip(_ENDS, titles, strict=True)]]


def _sweep_row(row: SweepRow, shown: CodebooksShown, canvas: Canvas) -> list[Put]:
    here = row.size == shown.block
    tone: Tone = "heading" if here else "value"
    cells = [f"{row.size:,}", *_cells(row.plain), *_cells(row.nested)]
    puts = [right(end, text, tone) for end, text in zip(_ENDS, cells, strict=True)]
    if here:
        puts.append(Put(0, canvas.glyphs.pointer, "heading"))
    return puts


def _cells(budget: SchemeBudget | None) -> tuple[str, str, str]:
    if budget is None:
        return NOTHING, NOTHING, NOTHING
    db = NOTHING if budget.gaussian_sqnr_db is None else f"{budget.gaussian_sqnr_db:.2f}"
    return f"{budget.overhead:.4f}", f"{budget.bits:.4f}", db
