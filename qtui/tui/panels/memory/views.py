"""The other pictures: what the peak is made of, savings, the map, GPUs, and worked cases."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.report.numbers import format_bytes, format_count
from qtui.tui.panels.codebooks.drawn_text import Canvas, Put, TextLine, Tone, right
from qtui.tui.panels.memory.data import Answer, FigureLine, MapCell, TermLine
from qtui.tui.panels.memory.lines import VERDICTS
from qtui.tui.panels.memory.parts import PLACES, part_of
from qtui.tui.panels.memory.shown import MAP_BATCHES, MAP_SEQUENCES, Shown
from qtui.tui.widgets.line import shortened

GB = 10**9
#: What a verdict looks like in a narrow map, where there is room for a sign only.
SIGNS = {"fits": "+", "tight": "~", "no": "-", None: " "}


def window(count: int, at: int, room: int) -> range:
    """As many lines of a list as there is room for, the chosen one among them."""
    room = max(1, room)
    first = max(0, min(at - room // 2, count - room))
    return range(first, min(count, first + room))


def draw_parts(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """Components, what leads on to the process, and the phases, with a bar each."""
    answer = shown.answer
    if answer is None or answer.stage != "full":
        return []
    lines: list[TextLine] = [
        _part_heading(canvas, "at the peak", "basis"),
        *(_term(term, answer.peak_allocated_bytes, canvas) for term in answer.components),
        [Put(0, "allocated", "best"), right(34, format_bytes(answer.peak_allocated_bytes), "best")],
        *(_term(term, answer.peak_allocated_bytes, canvas) for term in answer.beyond),
        [
            Put(0, "process", "best"),
            right(34, format_bytes(answer.process_bytes), "best"),
            Put(36, f"may be off by {format_bytes(answer.uncertainty_bytes)}", "quiet"),
        ],
    ]
    if canvas.height > len(lines) + len(answer.phases) + 2:
        lines.append([])
    lines.append(_part_heading(canvas, "the most in each phase", "operation"))
    lines += [_phase(answer, at, canvas) for at in range(len(answer.phases))]
    return lines


def _part_heading(canvas: Canvas, title: str, last: str) -> TextLine:
    bars = _bar_room(canvas)
    return [Put(0, title, "heading"), Put(37 + bars, last, "heading")]


def _bar_room(canvas: Canvas) -> int:
    return max(0, min(30, canvas.width - 60))


def _bar(nbytes: int, whole: int, canvas: Canvas) -> str:
    room = _bar_room(canvas)
    cells = canvas.glyphs.full * round(room * min(1.0, nbytes / max(1, whole)))
    return cells or (canvas.glyphs.dot if nbytes and room else "")


def _term(term: TermLine, whole: int, canvas: Canvas) -> TextLine:
    letter = part_of(term.name).letter if term.name in PLACES else " "
    more = f"{term.basis}  {term.formula}"
    room = canvas.width - 37 - _bar_room(canvas)
    return [
        Put(0, letter, "heading"),
        Put(2, shortened(term.name, 23, canvas.glyphs.ellipsis), "label"),
        right(34, format_bytes(term.bytes)),
        Put(36, _bar(term.bytes, whole, canvas), "bar"),
        Put(37 + _bar_room(canvas), shortened(more, room, canvas.glyphs.ellipsis), "quiet"),
    ]


def _phase(answer: Answer, at: int, canvas: Canvas) -> TextLine:
    phase = answer.phases[at]
    here = phase.name == answer.peak_phase
    tone: Tone = "best" if here else "value"
    room = canvas.width - 37 - _bar_room(canvas)
    words = ("the peak  " if here else "") + phase.operation
    return [
        Put(0, canvas.glyphs.pointer if here else " ", "best"),
        Put(2, phase.name, "label"),
        right(34, format_bytes(phase.allocated_bytes), tone),
        Put(36, _bar(phase.allocated_bytes, answer.peak_allocated_bytes, canvas), "bar"),
        Put(37 + _bar_room(canvas), shortened(words, room, canvas.glyphs.ellipsis), "quiet"),
    ]


def draw_savings(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """Changes, best first, the chosen one marked; then the cure for each way to run out."""
    around = shown.around
    if around is None or not shown.current:
        return []
    advice = around.advice
    cures = [
        [
            Put(0, shortened(cure.kind, 13, ""), "label"),
            right(24, format_bytes(cure.needs_bytes)),
            right(36, format_bytes(cure.saves_bytes) if cure.change else "–"),
            Put(38, shortened(cure.change or "nothing in the plan", canvas.width - 38), "value"),
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
                Put(11, shortened(line.change, wide, canvas.glyphs.ellipsis), tone),
                *(
                    [Put(58, shortened(line.cost, canvas.width - 58, canvas.glyphs.ellipsis),
                         "quiet")]
                    if canvas.width > 76
                    else []
                ),
            ]
        )  # fmt: skip
    if not advice:
        lines.append([Put(11, "no single change of the plan saves a part worth naming", "label")])
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
            Put(2, shortened(fit.gpu, 24, canvas.glyphs.ellipsis), "cursor" if here else "label"),
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
        return right(end, "?" if here else "·", "cursor" if here else "quiet")
    text = cell_text(cell, width)
    tone: Tone = VERDICTS[cell.verdict][1] if cell.verdict else "quiet"
    return right(end, text, "cursor" if here else tone)


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


def draw_cases(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """The worked cases, and the figures of the chosen one."""
    cases = shown.cases
    if not cases:
        return []
    at = shown.line_of(len(cases))
    lines: list[TextLine] = [[Put(2, "worked cases (Enter opens one)", "heading")]]
    for index, case in enumerate(cases):
        here, opened = index == at, case.key == shown.case
        lines.append(
            [
                Put(0, canvas.glyphs.pointer if here else " ", "heading"),
                Put(2, shortened(case.title + (" (open)" if opened else ""), canvas.width - 3),
                    "cursor" if here else "value"),
            ]
        )  # fmt: skip
    case = cases[at]
    blank: list[TextLine] = [[]] if canvas.height >= 22 else []
    lines += [*blank, [Put(0, shortened(case.source, canvas.width), "label")]]
    if not case.figures:
        return [*lines, [Put(0, "computing ours", "quiet")]]
    lines.append(
        [Put(0, "GB", "heading"), right(34, "stated", "heading"), right(43, "ours", "heading"),
         Put(45, "why", "heading")]
    )  # fmt: skip
    for figure in case.figures:
        lines += _figure(figure, canvas)
    return lines


def _figure(figure: FigureLine, canvas: Canvas) -> Sequence[TextLine]:
    near = abs(figure.bytes - figure.stated_bytes) <= 0.05 * figure.stated_bytes
    ours: Tone = "best" if near else "expected"
    why = wrapped(figure.why, max(16, canvas.width - 46))
    first: list[Put] = [
        Put(0, shortened(figure.what, 25, canvas.glyphs.ellipsis), "label"),
        right(34, _gigabytes(figure.stated_bytes)),
        right(43, _gigabytes(figure.bytes), ours),
        Put(45, why[0], "quiet"),
    ]
    return [first, *([Put(45, text, "quiet")] for text in why[1:])]


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / GB:,.2f}" if nbytes < 10 * GB else f"{nbytes / GB:,.1f}"


def wrapped(text: str, width: int) -> list[str]:
    """Words in lines of at most `width`."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def headline(shown: Shown) -> tuple[str, tuple[str, ...]]:
    """What is estimated: its name, and what is to be known of it."""
    facts = shown.facts
    if facts is None:
        return "", ()
    details = [facts.architecture]
    if facts.parameters is not None and facts.layers is not None:
        details += [f"{format_count(facts.parameters)} parameters", f"{facts.layers} layers"]
    if facts.quantized:
        details.append("quantized already: estimated from its unquantized original")
    return facts.id, tuple(details)
