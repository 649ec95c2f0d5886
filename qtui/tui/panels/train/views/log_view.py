"""The Log view: the messages of a run, and what ended it."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, paragraphs, right, wrapped
from qtui.tui.panels.train.levels import place_of
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView
from qtui_core.live.snapshot import Fault
from qtui_core.quantities import format_bytes


class LogView(TrainView):
    """The last lines, the newest at the bottom; above them what ended the run."""

    TITLE = "Log"
    HELP = "**Log**: what the run said.\n"

    def draw(self, shown: RunShown, canvas: Canvas) -> Sequence[TextLine]:
        """The last lines that the run said, the newest at the bottom; above them what ended it."""
        state = shown.state
        if not state.log:
            return self.nothing(shown, "Nothing was said yet.", canvas)
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


def fault_lines(fault: Fault, canvas: Canvas) -> list[TextLine]:
    """What went wrong, the components with the most memory, and what would help."""
    lines: list[TextLine] = [[Put(0, f"{fault.kind}, {place_of(fault)}", "warning")]]
    lines += paragraphs([fault.text], canvas.width, "value")
    if fault.asked_bytes is not None:
        lines.append([Put(0, f"asked for {format_bytes(fault.asked_bytes)}", "label")])
    held = held_lines(fault, canvas)
    return [*lines, [], *held] if held else lines


def held_lines(fault: Fault, canvas: Canvas) -> list[TextLine]:
    """The components with the most memory when it ran out, and what would help; side by side if
    there is room."""
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
