"""The gap, the log, adapters and faults, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtui.report.numbers import format_bytes, format_value
from qtui.screen.plan.levels import signed
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, right, wrapped
from qtui.tui.panels.train.levels import place_of
from qtui_core.live.gap import Level
from qtui_core.live.measured import measured
from qtui_core.live.snapshot import AdaptersCompared, Fault
from qtui_core.live.state import RunState
from qtui_core.live.summary import levels_of

#: Columns of a bar of a part of the gap, to each side.
BAR: Final = 12
ON_CPU: Final = (
    "On a CPU bytes of live tensors are counted: there is no allocator with segments, no context "
    "of CUDA and no device with a memory of its own."
)


def gap_of(state: RunState) -> tuple[Level, ...]:
    """The gap at each level; empty before there is something to hold against an estimate."""
    return levels_of(state, measured(state)) if state.phases else ()


def draw_gap(state: RunState, canvas: Canvas) -> Sequence[TextLine]:
    """Level by level: estimated, measured, and the parts of the difference with a bar each."""
    lines: list[TextLine] = []
    levels = gap_of(state)
    if not levels:
        return nothing(state, "The gap is known when the first phase has ended.", canvas)
    known = [level for level in levels if not level.why_not]
    room = canvas.height - sum(len(level.parts) + 1 for level in known) - len(levels) + len(known)
    for level in known:
        lines += _level(level, canvas)
        if room >= len(known):
            lines.append([])
    whys = dict.fromkeys(level.why_not for level in levels if level.why_not)
    if state.counted == "tensors":
        whys = {ON_CPU: None}
    for why in whys:
        lines += [[Put(0, text, "quiet")] for text in wrapped(why, canvas.width)]
    return lines[: canvas.height]


def _level(level: Level, canvas: Canvas) -> list[TextLine]:
    difference = level.bytes or 0
    estimated = format_bytes(level.estimated or 0)
    words = f"{format_bytes(level.measured or 0)} measured, {estimated} estimated"
    head: list[Put] = [
        right(9, signed(difference, canvas.glyphs.minus), _tone(difference, level.estimated)),
        Put(11, level.name, "heading"),
        Put(13 + len(level.name), shortened(words, canvas.width - 13 - len(level.name),
                                            canvas.glyphs.ellipsis), "quiet"),
    ]  # fmt: skip
    most = max((abs(part.bytes) for part in level.parts), default=1)
    name_room = max(10, canvas.width - 13 - BAR)
    bars = canvas.width - 13 - name_room >= BAR
    lines: list[TextLine] = [head]
    for part in level.parts:
        cells = round(BAR * abs(part.bytes) / most)
        bar = canvas.glyphs.full * cells or canvas.glyphs.dot
        line = [
            right(9, signed(part.bytes, canvas.glyphs.minus)),
            Put(11, shortened(part.name, name_room, canvas.glyphs.ellipsis), "label"),
        ]
        if bars:
            line.append(Put(12 + name_room, bar, "bar"))
        lines.append(line)
    return lines


def _tone(difference: int, estimated: int | None) -> Tone:
    """Green within 2%, a warning beyond 10%."""
    share = abs(difference) / max(1, estimated or 0)
    return "best" if share <= 0.02 else "value" if share <= 0.1 else "warning"


def draw_log(state: RunState, canvas: Canvas) -> Sequence[TextLine]:
    """The last lines that the run said, the newest at the bottom; above them what ended it."""
    if not state.log:
        return nothing(state, "Nothing was said yet.", canvas)
    fault = {told.text for told in state.faults}
    head: list[TextLine] = []
    if state.fault is not None and state.fault.fatal:
        head = [*fault_lines(state.fault, canvas), []]
    room = max(1, canvas.height - len(head))
    lines: list[TextLine] = []
    for said in state.log[-room:]:
        tone: Tone = "warning" if said.text in fault else "value"
        texts = wrapped(said.text, max(10, canvas.width - 8))
        lines.append([right(6, f"{said.seconds:.1f}", "quiet"), Put(8, texts[0], tone)])
        lines += [[Put(8, text, tone)] for text in texts[1:]]
    return [*head, *lines[-room:]][: canvas.height]


def draw_adapters(state: RunState, canvas: Canvas) -> Sequence[TextLine]:
    """The likeliest next tokens with adapters on beside those with them off."""
    compared = state.adapters
    if compared is None:
        return nothing(
            state,
            "Adapters are compared after the last step of a LoRA or QLoRA run; t sets the text.",
            canvas,
        )
    half = max(24, min(44, canvas.width // 2))
    lines: list[TextLine] = [
        [Put(0, "adapters on", "heading"), Put(half, "adapters off", "heading")],
    ]
    best = max([p for _, p in (*compared.on, *compared.off)], default=1.0) or 1.0
    for at in range(max(len(compared.on), len(compared.off))):
        line: list[Put] = []
        for start, side in ((0, compared.on), (half, compared.off)):
            if at < len(side):
                token, probability = side[at]
                shown = shortened(repr(token), 12, canvas.glyphs.ellipsis)
                share = probability / best
                cells = round((half - 22) * share) if 0 <= share <= 1 else 0
                line += [
                    Put(start, shown, "value"),
                    right(start + 19, f"{probability:.1%}", "value"),
                    Put(start + 20, canvas.glyphs.full * cells, "bar"),
                ]
        lines.append(line)
    lines.append([])
    for text in _adapter_words(compared):
        lines += [[Put(0, each, "quiet")] for each in wrapped(text, canvas.width)]
    return lines[: canvas.height]


def _adapter_words(compared: AdaptersCompared) -> list[str]:
    words = [f"largest difference of a logit: {format_value(compared.largest_difference)}"]
    base = compared.reference_difference
    if base is not None:
        same = "the base is untouched" if base == 0 else "the base has changed"
        words.append(
            f"adapters off against the base before they were added: {format_value(base)}, so {same}"
        )
    return words


def fault_lines(fault: Fault, canvas: Canvas) -> list[TextLine]:
    """What went wrong, what held the memory, and what would help."""
    lines: list[TextLine] = [[Put(0, f"{fault.kind}, {place_of(fault)}", "warning")]]
    lines += [[Put(0, text, "value")] for text in wrapped(fault.text, canvas.width)]
    if fault.asked_bytes is not None:
        lines.append([Put(0, f"asked for {format_bytes(fault.asked_bytes)}", "label")])
    held = held_lines(fault, canvas)
    return [*lines, [], *held] if held else lines


def held_lines(fault: Fault, canvas: Canvas) -> list[TextLine]:
    """What held the memory when it ran out, and what would help; side by side where there is
    room."""
    half = canvas.width // 2 if canvas.width >= 64 else canvas.width
    sides = (("held the most", fault.largest), ("what would help", fault.advice))
    columns = [_named_bytes(title, found, half - 2, canvas) for title, found in sides if found]
    lines: list[TextLine] = []
    if half < canvas.width:
        for y in range(max(map(len, columns), default=0)):
            lines.append(
                [
                    Put(put.column + at * half, put.text, put.tone)
                    for at, column in enumerate(columns)
                    if y < len(column)
                    for put in column[y]
                ]
            )
    else:
        lines += [line for column in columns for line in column]
    return lines


def _named_bytes(
    title: str, found: Sequence[tuple[str, int]], width: int, canvas: Canvas
) -> list[TextLine]:
    lines: list[TextLine] = [[Put(0, title, "heading")]]
    for name, nbytes in found:
        lines.append(
            [
                right(9, format_bytes(nbytes)),
                Put(11, shortened(name, width - 11, canvas.glyphs.ellipsis), "label"),
            ]
        )
    return lines


def nothing(state: RunState, text: str, canvas: Canvas) -> list[TextLine]:
    """Why there is nothing to show yet, and what to do."""
    if state.header is None:
        text = "r runs the plan, o opens a recording."
    elif state.header.predicted is None and state.header.why_not:
        text = state.header.why_not
    return [[Put(0, each, "quiet")] for each in wrapped(text, canvas.width)]
