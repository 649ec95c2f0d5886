"""The operations of the plan: what each computes and moves, what limits it, what fusing saves."""

from __future__ import annotations

from qtui.screen.panel.view import View
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import (
    Canvas,
    Put,
    TextLine,
    Tone,
    headings,
    paragraphs,
    right,
    window,
)
from qtui.tui.panels.hardware.shown import LETTERS, HardwareShown
from qtui.tui.panels.hardware.units import count, rate, ratio, seconds
from qtui_core.quantities import format_bytes
from qtui_core.roofline.operation import Placed

_NAME = 27
#: From this height on the roofline stands below a table.
TALL_ROOFLINE = 16


class OperationsView(View[HardwareShown]):
    """The operations as a list, the longest first."""

    TITLE = "Operations"
    HELP = """\
**Operations**: the same as a list. Times are lower bounds: no step is shorter. Of norms,
activations and rotary embeddings only the forward passes are counted.
"""
    CURSOR = True

    def draw(self, shown: HardwareShown, canvas: Canvas) -> list[TextLine]:
        """A line for each operation, the longest first, and the details of the chosen one."""
        placed = shown.placed
        if not placed:
            return nothing(shown, canvas)
        at = min(shown.line, len(placed) - 1)
        details = detail_lines(placed[at], shown, canvas)
        room = canvas.height - len(details) - 2
        lines: list[TextLine] = [_heading(canvas)]
        whole = sum(each.seconds for each in placed)
        for index in window(len(placed), at, room):
            lines.append(_operation(placed[index], index, index == at, whole, canvas))
        # The details stand at the bottom, unless there is room for the roofline below.
        blank = canvas.height - len(details) - len(lines)
        lines += [[] for _ in range(1 if blank > TALL_ROOFLINE else blank)]
        return [*lines, *details]

    def meaning(self, shown: HardwareShown) -> str:
        return operations_meaning(shown)


def nothing(shown: HardwareShown, canvas: Canvas) -> list[TextLine]:
    """A text that says why there is nothing to draw."""
    text = shown.why or (
        "The operations of the plan are being counted."
        if shown.roofs is not None
        else f"No rates of {shown.device.name} are known: r measures it."
    )
    return paragraphs([text], canvas.width)


def _heading(canvas: Canvas) -> TextLine:
    line = headings(
        (0, "operation"), (-_NAME - 8, "times"), (-_NAME - 17, "op/byte"),
        (-_NAME - 28, "at least"), (-_NAME - 34, "share"), (_NAME + 36, "waits for"),
    )  # fmt: skip
    return [*line, *headings((-_NAME - 62, "fused"))] if canvas.width >= 100 else line


def _operation(each: Placed, index: int, here: bool, whole: float, canvas: Canvas) -> TextLine:
    operation = each.operation
    tone: Tone = "cursor" if here else "value"
    name = f"{LETTERS[index % len(LETTERS)]} {operation.name}"
    room = canvas.width - _NAME - 36 if canvas.width < 100 else 18
    line = [
        Put(0, shortened(name, _NAME - 1, canvas.glyphs.ellipsis), tone),
        right(_NAME + 8, f"{operation.times:,}", "quiet"),
        right(_NAME + 17, ratio(operation.intensity)),
        right(_NAME + 28, seconds(each.seconds)),
        right(_NAME + 34, f"{each.seconds / whole:.0%}"),
        Put(_NAME + 36, shortened(each.presses, room, canvas.glyphs.ellipsis), "label"),
    ]
    if canvas.width >= 100:
        saved = (
            seconds(-each.saves_seconds) if each.saves_seconds < 0 else seconds(each.saves_seconds)
        )
        text = f"-{saved}" if each.saves_seconds else ""
        line.append(right(_NAME + 62, text, "best"))
    return line


def detail_lines(each: Placed, shown: HardwareShown, canvas: Canvas) -> list[TextLine]:
    """The chosen operation: its intensity, formula, limit, and what fusing saves."""
    operation = each.operation
    texts = [
        f"{operation.name}: {count(operation.operations)} operations over "
        f"{format_bytes(operation.bytes)}, {ratio(operation.intensity)} a byte; below "
        f"{ratio(each.ridge)} the {shown.device.name} waits for memory.",
        f"{operation.formula}; {operation.source}.",
        _pressed(each),
    ]
    if operation.fused_bytes is not None:
        texts.append(
            f"Fused it would move {format_bytes(operation.fused_bytes)}: {operation.fused}."
        )
    return paragraphs(texts, canvas.width)[: max(3, canvas.height // 2)]


def _pressed(each: Placed) -> str:
    operation, dtype = each.operation, each.operation.dtype
    if each.presses == "memory":
        return (
            f"Limited by the memory: the units could do {rate(each.rate, dtype)}, the memory "
            f"allows {rate(each.attainable, dtype)}."
        )
    if each.presses == "L2":
        return (
            f"Limited by L2: {format_bytes(operation.l2_bytes)} pass between it and the "
            "multiprocessors, in tiles of 128 rows."
        )
    return (
        f"Limited by the {each.units}: {rate(each.rate, dtype)}, from registers and shared memory."
    )


def operations_meaning(shown: HardwareShown) -> str:
    """The least time of a step, the share of it that waits for memory, and what fusing saves."""
    placed = shown.placed
    if not placed:
        return shown.why or f"The operations on {shown.device.name} are not known yet."
    whole = sum(each.seconds for each in placed)
    waits = sum(each.seconds for each in placed if each.presses == "memory")
    saved = sum(each.saves_seconds for each in placed)
    most = max(placed, key=lambda each: each.saves_seconds)
    stands_in = " of the nearest kind of decoder, which stands in for it," * shown.assumed
    text = (
        f"On the {shown.device.name} a step{stands_in} takes at least {seconds(whole)}, "
        f"{waits / whole:.0%} of it waiting for memory; the longest is {placed[0].operation.name} "
        f"with {placed[0].seconds / whole:.0%}"
    )
    if most.saves_seconds:
        text += (
            f"; fusing would save {seconds(saved)}, most of it in {most.operation.name}: "
            f"{most.operation.fused}"
        )
    return text + "."
