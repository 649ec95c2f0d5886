"""The Gap view: measured less estimated bytes, in parts that sum to the gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtui.screen.plan.levels import signed
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, paragraphs, right
from qtui.tui.panels.train.levels import gap_of, gap_tone
from qtui.tui.panels.train.sentences import why_it_differs
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView
from qtui_core.live.compare import Level
from qtui_core.quantities import format_bytes

#: The cells of a part's bar, to each side.
BAR: Final = 12
ON_CPU: Final = (
    "On a CPU bytes of live tensors are counted: there is no allocator with segments, no context "
    "of CUDA and no device with a memory of its own."
)


class GapView(TrainView):
    """The estimated and the measured bytes of each level, and the parts of their difference."""

    TITLE = "Gap"
    HELP = "**Gap**: the same in bytes, in parts that sum to the whole.\n"

    def draw(self, shown: RunShown, canvas: Canvas) -> Sequence[TextLine]:
        """Level by level: estimated, measured, and the parts of the difference with a bar each."""
        state = shown.state
        lines: list[TextLine] = []
        levels = gap_of(state)
        if not levels:
            return self.nothing(shown, "The gap is known when the first phase has ended.", canvas)
        known = [level for level in levels if not level.why_not]
        wanted = sum(len(level.parts) + 1 for level in known)
        room = canvas.height - wanted - len(levels) + len(known)
        for level in known:
            lines += _level(level, canvas)
            if room >= len(known):
                lines.append([])
        whys = dict.fromkeys(level.why_not for level in levels if level.why_not)
        if state.counted == "tensors":
            whys = {ON_CPU: None}
        return [*lines, *paragraphs(whys, canvas.width)][: canvas.height]

    def meaning(self, shown: RunShown) -> str:
        return why_it_differs(shown) or super().meaning(shown)


def _level(level: Level, canvas: Canvas) -> list[TextLine]:
    difference = level.bytes or 0
    estimated = format_bytes(level.estimated or 0)
    words = f"{format_bytes(level.measured or 0)} measured, {estimated} estimated"
    head: list[Put] = [
        right(9, signed(difference, canvas.glyphs.minus),
              gap_tone(level.measured, level.estimated)),
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
