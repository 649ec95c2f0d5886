"""Labels with values as a picture, in as many columns as fit into the width."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class Fact:
    """One line: a label, a value in its tone, and `more`, which follows it in a quiet tone. A fact
    without a label is a heading."""

    label: str
    value: str
    more: str = ""
    tone: Tone = "value"


def fact_lines(facts: Sequence[Fact], columns: int, canvas: Canvas) -> list[TextLine]:
    """Facts from top to bottom, then left to right. What does not fit at the bottom is cut off."""
    rows = max(1, min(canvas.height, -(-len(facts) // columns)))
    label_width = max((len(fact.label) for fact in facts), default=0) + 1
    column_width = canvas.width // columns
    lines: list[TextLine] = []
    for y in range(rows):
        line: list[Put] = []
        for column, fact in enumerate(facts[y::rows][:columns]):
            start = column * column_width
            end = start + column_width - 1
            line += _puts(fact, start, end, label_width, canvas.glyphs.ellipsis)
        lines.append(line)
    return lines


def _puts(fact: Fact, start: int, end: int, label_width: int, ellipsis: str) -> list[Put]:
    if not fact.label:
        heading = Put(start, shortened(fact.value, end - start), "heading")
        at = start + len(heading.text) + 1
        return [heading, Put(at, shortened(fact.more, end - at), "quiet")]
    place = start + label_width
    value = Put(place, shortened(fact.value, end - place, ellipsis), fact.tone)
    found = [Put(start, fact.label, "label"), value]
    at = place + len(value.text)
    if fact.more and end - at > 6:
        found.append(Put(at + 1, shortened(fact.more, end - at - 1, ellipsis), "quiet"))
    return found
