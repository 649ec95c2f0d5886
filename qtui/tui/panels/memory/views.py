"""The other pictures: savings, the map, and GPUs."""

from __future__ import annotations

from qtui.engine.estimator.answers import MapCell
from qtui.report.numbers import format_bytes
from qtui.screen.plan.levels import VERDICTS
from qtui.screen.plan.shown import MAP_BATCHES, MAP_SEQUENCES, Shown
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, right, window

#: What a verdict looks like in a narrow map, where there is room for a sign only.
SIGNS = {"fits": "+", "tight": "~", "no": "-", None: " "}


def draw_savings(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """Changes, best first, the chosen one marked; then the cure for each way to run out."""
    around = shown.around
    if around is None or not shown.current:
        return []
    advice = around.advice
    nothing = "nothing in the plan" if around.weighed else "not known"
    cures = [
        [
            Put(0, shortened(cure.kind, 13, ""), "label"),
            right(24, format_bytes(cure.needs_bytes)),
            right(36, format_bytes(cure.saves_bytes) if cure.change else "–"),
            Put(38, shortened(cure.change or nothing, canvas.width - 38), "value"),
        ]
        for cure in around.cures
    ]
    room = canvas.height - len(cures) - 3
    if room < 4:
        cures, room = [], canvas.height - 1
    heading: TextLine = [
        right(9, "saves", "heading"), Put(11, "change (Enter makes it)", "heading"),
        *([Put(58, "costs", "heading")] if canvas.width > 76 else []),
    ]  # fmt: skip
    lines = [heading]
    at = shown.line_of(len(advice))
    for index in window(len(advice), at, room):
        line = advice[index]
        tone: Tone = "cursor" if index == at else "value"
        wide = 46 if canvas.width > 76 else canvas.width - 11
        lines.append(
            [
                Put(0, canvas.glyphs.pointer if index == at else " ", "heading"),
                right(9, format_bytes(line.saves_bytes)),
                Put(11, shortened(line.change, wide, canvas.glyphs.ellipsis), tone, index),
                *(
                    [Put(58, shortened(line.cost, canvas.width - 58, canvas.glyphs.ellipsis),
                         "quiet")]
                    if canvas.width > 76
                    else []
                ),
            ]
        )  # fmt: skip
    if not advice:
        words = "no single change of the plan saves a part worth naming"
        if not around.weighed:
            words = "changes are not weighed: a trace is of one plan"
        lines.append([Put(11, words, "label")])
    if cures:
        lines += [
            [],
            [Put(0, "runs out in", "heading"), right(24, "needs", "heading"),
             right(36, "saved by", "heading"), Put(38, "the cure", "heading")],
            *cures,
        ]  # fmt: skip
    return lines


def draw_gpus(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """Every GPU with its verdict; those of this machine and the chosen one first."""
    around = shown.around
    if around is None or not shown.current:
        return []
    fits = around.fits
    lines: list[TextLine] = [
        [Put(2, "GPU (Enter chooses it)", "heading"), right(36, "has", "heading"),
         right(48, "to spare", "heading"), Put(50, "", "heading")]
    ]  # fmt: skip
    at = shown.line_of(len(fits))
    notes = {choice.label: choice.note for choice in shown.live}
    process = shown.answer.process_bytes if shown.answer else 0
    for index in window(len(fits), at, canvas.height - 1):
        fit = fits[index]
        word, tone = VERDICTS[fit.verdict]
        spare = f"{'' if fit.headroom_bytes >= 0 else canvas.glyphs.minus}"
        spare += format_bytes(abs(fit.headroom_bytes))
        here = index == at
        bars = canvas.width - 58
        share = process / fit.capacity_bytes if fit.capacity_bytes else 1.0
        filled = min(bars, round(bars * share))
        puts = [
            Put(0, canvas.glyphs.pointer if here else " ", "heading"),
            Put(
                2,
                shortened(fit.gpu, 24, canvas.glyphs.ellipsis),
                "cursor" if here else "label",
                index,
            ),
            right(36, format_bytes(fit.capacity_bytes)),
            right(48, spare),
            Put(50, f"{word:5}", tone),
        ]
        if notes.get(fit.gpu):
            puts.append(Put(57, shortened(notes[fit.gpu], bars, canvas.glyphs.ellipsis), "quiet"))
        elif bars > 8:
            puts.append(Put(57, canvas.glyphs.full * filled, "bar"))
            puts.append(Put(57 + filled, canvas.glyphs.dot * (bars - filled), "quiet"))
        lines.append(puts)
    return lines


def draw_map(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """Batches down, sequences across: the peak of tensors, and whether it fits."""
    if shown.facts is not None and shown.facts.unknown:
        return [
            [Put(0, "A trace is of one plan: there is no map without a built-in shape.", "label")]
        ]
    width = max(6, min(13, (canvas.width - 5) // len(MAP_SEQUENCES)))
    columns = window(len(MAP_SEQUENCES), shown.cell[1], (canvas.width - 5) // width)
    what = "GiB of tensors at the peak"
    if shown.gpu is None:
        title = f"{what}; g chooses a GPU"
    else:
        title = f"{what}; + fits, ~ tight, - not: {shown.gpu.label}"
    ends = {column: 5 + (at + 1) * width for at, column in enumerate(columns)}
    lines: list[TextLine] = [
        [Put(0, shortened(title, canvas.width, canvas.glyphs.ellipsis), "label")],
        [
            Put(0, "batch", "heading"),
            *(right(end - 1, _tokens(MAP_SEQUENCES[at]), "heading") for at, end in ends.items()),
        ],
    ]
    spaced = canvas.height >= 2 * len(MAP_BATCHES) + 3
    for row, batch in enumerate(MAP_BATCHES):
        line = [right(5, str(batch), "heading")]
        for column, end in ends.items():
            line.append(_map_cell(shown, row, column, end, width))
        lines.append(line)
        if spaced:
            lines.append([])
    lines.append([Put(6, "tokens in a sequence", "label")])
    return lines


def _tokens(count: int) -> str:
    """ "2k" for 2,048."""
    return f"{count // 1024}k" if count >= 1024 else str(count)


def _map_cell(shown: Shown, row: int, column: int, end: int, width: int) -> Put:
    cell = shown.cells.get((MAP_BATCHES[row], MAP_SEQUENCES[column]))
    here = shown.cell == (row, column)
    if cell is None or shown.cells_of != shown.mapped:
        return right(end, "?" if here else "·", "cursor" if here else "quiet", (row, column))
    text = cell_text(cell, width)
    tone: Tone = VERDICTS[cell.verdict][1] if cell.verdict else "quiet"
    return right(end, text, "cursor" if here else tone, (row, column))


def cell_text(cell: MapCell, width: int) -> str:
    """ "11.2+": GiB, and the sign of the verdict; "–" where the plan cannot be."""
    if cell.peak_live_bytes is None:
        return "– "
    gib = cell.peak_live_bytes / 2**30
    digits = 2 if gib < 10 else 1 if gib < 100 else 0
    text = f"{gib:.{digits}f}"
    while len(text) > width - 2 and digits:
        digits -= 1
        text = f"{gib:.{digits}f}"
    return text + SIGNS[cell.verdict]
