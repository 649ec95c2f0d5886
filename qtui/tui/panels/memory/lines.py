"""Texts about an answer: its levels, what it is made of, what would save most, what it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtui.report.memory.parts import Group, grouped
from qtui.report.numbers import format_bytes
from qtui.tui.panels.codebooks.drawn_text import Canvas, Put, TextLine, Tone, right
from qtui.tui.panels.memory.data import Answer, Around, FitLine
from qtui.tui.panels.memory.parts import PARTS
from qtui.tui.panels.memory.shown import Shown
from qtui.tui.widgets.line import shortened

#: Verdict -> how it is said, and its tone.
VERDICTS: Final[dict[str, tuple[str, Tone]]] = {
    "fits": ("fits", "best"),
    "tight": ("tight", "expected"),
    "no": ("no", "warning"),
}
SIZE = 10
#: Below this width the reserved bytes are left to the parts.
NARROW = 70


def signed(nbytes: int, minus: str) -> str:
    """ "+3.1 GiB"; "no change" is for who writes the sentence."""
    return f"{minus if nbytes < 0 else '+'}{format_bytes(abs(nbytes))}"


def level_lines(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """The peak and where it is; the levels above it and the verdict; the last change."""
    answer = shown.answer
    if answer is None:
        return []
    ellipsis = canvas.glyphs.ellipsis
    about = "tensors " if answer.stage == "first" else ""
    about = "traced " if answer.origin == "trace" else about
    place = f" in {answer.peak_phase}"
    if answer.peak_operation:
        place += f": {answer.peak_operation}"
    peak = f"{about}peak {format_bytes(answer.peak_allocated_bytes)}"
    lines: list[TextLine] = [
        [
            Put(0, peak, "heading"),
            Put(len(peak), shortened(place, canvas.width - len(peak), ellipsis), "label"),
        ],
        _levels(shown, answer, canvas),
        [Put(0, shortened(change_text(shown, canvas.glyphs.minus), canvas.width, ellipsis),
             "expected")],
    ]  # fmt: skip
    return lines[: canvas.height]


def _levels(shown: Shown, answer: Answer, canvas: Canvas) -> list[Put]:
    bar = f" {canvas.glyphs.vertical} "
    text = f"process {format_bytes(answer.process_bytes)}"
    if canvas.width >= NARROW:
        reserved = answer.peak_reserved_bytes
        known = "not yet known" if reserved is None else format_bytes(reserved)
        text = f"reserved {known}{bar}{text}"
    puts = [Put(0, text, "value")]
    found = _verdict_words(shown, answer)
    room = canvas.width - len(text) - len(bar)
    if found is not None and room > 7:
        words, tone = found
        cut = shortened(words, room, canvas.glyphs.ellipsis)
        puts += [Put(len(text), bar, "quiet"), Put(len(text) + len(bar), cut, tone)]
    return puts


def _verdict_words(shown: Shown, answer: Answer) -> tuple[str, Tone] | None:
    if answer.fit is not None:
        _, tone = VERDICTS[answer.fit.verdict]
        left = answer.fit.headroom_bytes
        more = "to spare" if left >= 0 else "too much"
        word = {"fits": "fits", "tight": "tight on", "no": "does not fit"}[answer.fit.verdict]
        return f"{word} {answer.fit.gpu}: {format_bytes(abs(left))} {more}", tone
    if shown.gpu is None and shown.around is not None and shown.current:
        holding = [fit.gpu for fit in shown.around.fits if fit.verdict == "fits"]
        if not holding:
            return "fits no GPU of the catalogue", "warning"
        return f"fits {', '.join(holding)}", "best"
    return None


def change_text(shown: Shown, minus: str) -> str:
    """What the last change did to the peak, at the level that both are known at."""
    before, after = shown.before, shown.answer
    if before is None or after is None or not shown.change:
        return ""
    whole = before.stage == after.stage == "full"
    old = before.peak_allocated_bytes if whole else before.peak_live_bytes
    new = after.peak_allocated_bytes if whole else after.peak_live_bytes
    if old == new:
        return f"{shown.change}: nothing changes at the peak"
    level = "at the peak" if whole else "of tensors at the peak"
    ends = list(dict.fromkeys((format_bytes(old), format_bytes(new))))
    text = f"{shown.change}: {signed(new - old, minus)} {level} ({' → '.join(ends)}"
    if before.peak_phase != after.peak_phase:
        text += f", now in {after.peak_phase}"
    return text + ")"


def number_lines(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """Below the curve: what the peak is made of, what would save most, what it fits."""
    answer = shown.answer
    if answer is None or not shown.current:
        return []
    columns = [_made_of(answer, 33)]
    if shown.around is not None:
        width = min(60, canvas.width - 38) if canvas.width < 130 else 58
        columns.append(_savings(shown.around, width, canvas))
        if canvas.width >= 130:
            columns.append(_holding(shown.around.fits, canvas.glyphs.minus))
    return _beside(columns, [0, 38, 100], canvas.height)


def _beside(
    columns: Sequence[Sequence[TextLine]], starts: Sequence[int], height: int
) -> list[TextLine]:
    lines: list[TextLine] = []
    for y in range(min(height, max(map(len, columns), default=0))):
        line: list[Put] = []
        for column, start in zip(columns, starts, strict=False):
            for put in column[y] if y < len(column) else ():
                line.append(Put(start + put.column, put.text, put.tone))
        lines.append(line)
    return lines


def _made_of(answer: Answer, width: int) -> list[TextLine]:
    lines: list[TextLine] = [[Put(0, "at the peak", "heading")]]
    whole = answer.peak_allocated_bytes or 1
    for part, nbytes in _parts_of(answer):
        lines.append(
            [
                Put(0, f"{part.letter} {part.name}", "label"),
                right(width - 5, format_bytes(nbytes)),
                right(width, f"{nbytes / whole:.0%}", "quiet"),
            ]
        )
    return lines


def _parts_of(answer: Answer) -> Sequence[tuple[Group, int]]:
    """The parts of the peak; of a first answer those that its curve has there."""
    if answer.components:
        return grouped((term.name, term.bytes) for term in answer.components)
    totals = answer.curve.totals
    peak = totals.index(max(totals)) if totals else 0
    found = [(part, row[peak]) for part, row in zip(PARTS, answer.curve.rows, strict=True) if row]
    return [(part, nbytes) for part, nbytes in found if nbytes]


def _savings(around: Around, width: int, canvas: Canvas) -> list[TextLine]:
    lines: list[TextLine] = [[Put(0, "what would save most", "heading")]]
    for line in around.advice:
        change = shortened(line.change, width - SIZE - 1, canvas.glyphs.ellipsis)
        lines.append([right(SIZE - 1, format_bytes(line.saves_bytes)), Put(SIZE, change, "label")])
    if not around.advice:
        words = "no single change saves much" if around.weighed else "not weighed"
        lines.append([Put(0, words, "label")])
    return lines


def _holding(fits: Sequence[FitLine], minus: str) -> list[TextLine]:
    lines: list[TextLine] = [[Put(0, "GPUs", "heading")]]
    for fit in fits:
        word, tone = VERDICTS[fit.verdict]
        left = f"{'' if fit.headroom_bytes >= 0 else minus}{format_bytes(abs(fit.headroom_bytes))}"
        lines.append([Put(0, f"{word:5}", tone), right(16, left), Put(18, fit.gpu, "label")])
    return lines
