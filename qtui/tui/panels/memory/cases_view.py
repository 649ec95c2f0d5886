"""Worked cases of well-known documents, and their figures beside qtui's."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.engine.estimator.answers import CaseFigures
from qtui.screen.picker.picking import PickerRow, Picking
from qtui.screen.plan.shown import Shown
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import (
    Canvas,
    Put,
    TextLine,
    Tone,
    headings,
    right,
    window,
    wrapped,
)
from qtui.tui.panels.memory.view import MemoryView
from qtui_core.memory.advice.cases import CASES, Figure
from qtui_core.quantities import plural

#: The group of the work that computes the figures.
FIGURES = "figures"
GB = 10**9
#: The column of the reasons, and the least number of listed cases.
REASONS, LISTED = 45, 2


class CasesView(MemoryView):
    """The list of cases, and the figures of the chosen one."""

    TITLE = "Cases"
    HELP = "**Cases**: figures of well-known documents beside ours, and why they differ.\n"
    CURSOR = True
    ENTERS = "Open"

    def draw(self, shown: Shown, canvas: Canvas) -> list[TextLine]:
        """As many cases as fit, with the figures of the chosen one below."""
        cases = shown.cases
        if not cases:
            return []
        at = shown.line_of(len(cases))
        case = cases[at]
        figures = shown.figures.get(case.key, ())
        below = [*_figures(figures, canvas, whole=True)]
        if len(below) + len(cases) + 2 > canvas.height:
            below = [*_figures(figures, canvas, whole=False)]
        room = max(LISTED, canvas.height - len(below) - 2)
        lines: list[TextLine] = [[Put(2, "worked cases (Enter opens one)", "heading")]]
        for index in window(len(cases), at, room):
            here, opened = index == at, cases[index].key == shown.case
            title = cases[index].title + (" (open)" if opened else "")
            tone: Tone = "cursor" if here else "value"
            lines.append(
                [
                    Put(0, canvas.glyphs.pointer if here else " ", "heading"),
                    Put(2, shortened(title, canvas.width - 3, canvas.glyphs.ellipsis), tone, index),
                ]
            )
        if len(lines) + 2 + len(below) <= canvas.height:
            lines.append([])
        source = shortened(case.source, canvas.width, canvas.glyphs.ellipsis)
        return [*lines, [Put(0, source, "label")], *below]

    def ready(self, shown: Shown) -> bool:
        return True

    def fill(self, shown: Shown) -> None:
        if not shown.cases:
            shown.cases = CASES
            self.panel.do(self._figures, FIGURES)

    async def _figures(self) -> None:
        await self.panel.feed.cases(self._take)

    def _take(self, found: CaseFigures) -> None:
        shown = self.panel.shown
        shown.figures = {**shown.figures, found.key: found.figures}
        if self.panel.view is self:
            self.panel.draw()

    def meaning(self, shown: Shown) -> str:
        case = shown.cases[shown.line_of(len(shown.cases))]
        figures = shown.figures.get(case.key, ())
        if not figures:
            return f"{case.title}: {case.source}. Our figures are being computed."
        near = [f for f in figures if abs(f.bytes - f.stated_bytes) <= 0.05 * f.stated_bytes]
        far = [f for f in figures if f not in near]
        if not far:
            figure = "its one figure agrees" if len(near) == 1 else f"all {len(near)} figures agree"
            return f"{case.title}: {figure} with ours within 5%."
        worst = max(
            far, key=lambda f: max(f.bytes / f.stated_bytes, f.stated_bytes / max(1, f.bytes))
        )
        times = worst.bytes / worst.stated_bytes
        words = f"{times:.1f} times" if times >= 1 else f"{times:.0%} of"
        agree = "agrees" if len(near) == 1 else "agree"
        of = plural(len(figures), "figure")
        same = f"{len(near)} of {of} {agree} within 5%" if near else "none agrees within 5%"
        return f"{case.title}: {same}; {worst.what}: ours is {words} the stated one. {worst.why}"

    def count(self, shown: Shown) -> int:
        return len(shown.cases)

    def enter(self, shown: Shown) -> None:
        """Opens the chosen case in place of the model."""
        if shown.cases:
            self.panel.open_case(shown.cases[shown.line_of(len(shown.cases))])


def case_picking(shown: Shown) -> Picking:
    """A worked case to open."""

    def row(at: int) -> PickerRow:
        case = CASES[at]
        opened = "open now" if case.key == shown.case else plural(len(case.claims), "figure")
        return PickerRow(opened, f"{case.title}: {case.source}.")

    return Picking(
        title="Worked case",
        names=[case.title for case in CASES],
        row=row,
        none="No worked case has these letters in this order.",
        at=next((at for at, case in enumerate(CASES) if case.key == shown.case), 0),
    )


def _figures(figures: Sequence[Figure], canvas: Canvas, *, whole: bool) -> Sequence[TextLine]:
    if not figures:
        return [[Put(0, "computing ours", "quiet")]]
    heading = headings((0, "GB"), (-34, "stated"), (-43, "ours"), (REASONS, "why"))
    return [heading, *(line for figure in figures for line in _figure(figure, canvas, whole))]


def _figure(figure: Figure, canvas: Canvas, whole: bool) -> Sequence[TextLine]:
    """A figure with the reason for its difference, which is cut to one line unless `whole`."""
    near = abs(figure.bytes - figure.stated_bytes) <= 0.05 * figure.stated_bytes
    ours: Tone = "best" if near else "expected"
    room = max(8, canvas.width - REASONS)
    why = wrapped(figure.why, max(16, room - 1))
    if not whole:
        why = [shortened(figure.why, room, canvas.glyphs.ellipsis)]
    first: list[Put] = [
        Put(0, shortened(figure.what, 25, canvas.glyphs.ellipsis), "label"),
        right(34, _gigabytes(figure.stated_bytes)),
        right(43, _gigabytes(figure.bytes), ours),
        Put(REASONS, why[0], "quiet"),
    ]
    return [first, *([Put(REASONS, text, "quiet")] for text in why[1:])]


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / GB:,.2f}" if nbytes < 10 * GB else f"{nbytes / GB:,.1f}"
