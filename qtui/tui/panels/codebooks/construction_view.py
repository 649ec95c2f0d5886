"""How NF4 is constructed from normal quantiles, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable

from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, right
from qtui.tui.panels.codebooks.shown import CodebooksShown
from qtui.tui.panels.codebooks.view import CodebooksView
from qtui_core.answers import NF4Level
from qtui_core.dataclass import dataclass

NOTHING = "–"


@dataclass(frozen=True)
class ConstructionColumn:
    """A column of the table: the first step that knows its values, and the cell it ends before."""

    title: str
    step: int
    end: int
    text: Callable[[NF4Level], str]


FIELDS = (
    ConstructionColumn("code", 0, 6, lambda level: f"{level.code:04b}"),
    ConstructionColumn(
        "probability", 0, 18,
        lambda level: NOTHING if level.probability is None else f"{level.probability:.6f}",
    ),
    ConstructionColumn("quantile", 1, 30, lambda level: f"{level.quantile:+.6f}"),
    ConstructionColumn("over largest", 3, 44, lambda level: f"{level.derived:+.9f}"),
    ConstructionColumn("published", 4, 58, lambda level: f"{level.published:+.9f}"),
    ConstructionColumn(
        "ulps off", 4, 68, lambda level: f"{level.ulps:+d}" if level.ulps else "exact"
    ),
)  # fmt: skip
#: The step (from 0) that inserts the level zero; until then its line is empty.
ZERO_STEP = 2
EIGHTHS = 8
#: The least width of the picture beside the table, and the columns between them.
BESIDE, GAP = 36, 4


class ConstructionView(CodebooksView):
    """The construction of NF4 up to the current step."""

    TITLE = "Construction"
    HELP = "**Construction**: how NF4 is made from normal quantiles, step by step.\n"
    TITLED = False

    def draw(self, shown: CodebooksShown, canvas: Canvas) -> list[TextLine]:
        """A line for each level with the values known at the current step. Beside them, or below if
        there is no room, the normal density with the levels under it."""
        construction = shown.construction
        if construction is None:
            return []
        step = shown.step
        name = construction.steps[step]
        heading = f"step {step + 1} of {len(construction.steps)}: {name.title}"
        titled = canvas.height >= 18 + 1
        lines: list[list[Put]] = [[Put(0, heading, "heading")], []] if titled else []
        lines.append([right(field.end, field.title, _tone(field, step, True)) for field in FIELDS
                      if field.step <= step])  # fmt: skip
        known = max(field.end for field in FIELDS if field.step <= step)
        if not titled:
            text = f"{step + 1} of {len(construction.steps)}"
            if known + 2 + len(text) <= canvas.width:
                lines[0].append(Put(canvas.width - len(text), text, "quiet"))
        for level in construction.levels:
            if level.probability is None and step < ZERO_STEP:
                lines.append([])
                continue
            lines.append(
                [
                    right(field.end, field.text(level), _tone(field, step, False))
                    for field in FIELDS
                    if field.step <= step
                ]
            )
        wide = canvas.width - known - GAP
        if wide >= BESIDE:
            first = len(lines) - len(construction.levels)
            beside = _picture(shown, canvas, canvas.height - first, wide)
            lines += [[] for _ in range(first + len(beside) - len(lines))]
            for line, puts in zip(lines[first:], beside, strict=False):
                line += [Put(known + GAP + put.column, put.text, put.tone) for put in puts]
            return [*lines]
        room = canvas.height - len(lines) - 1
        if room >= 5:
            lines += [[], *_picture(shown, canvas, room, canvas.width)]
        return [*lines]

    def ready(self, shown: CodebooksShown) -> bool:
        return shown.construction is not None

    def meaning(self, shown: CodebooksShown) -> str:
        assert shown.construction is not None
        step = shown.construction.steps[shown.step]
        return f"{shown.step + 1}. {step.title}: {step.sentence}"

    def move(self, shown: CodebooksShown, by: int) -> None:
        """Moves to another step."""
        if shown.construction is not None:
            shown.step = max(0, min(len(shown.construction.steps) - 1, shown.step + by))


def _tone(field: ConstructionColumn, step: int, title: bool) -> Tone:
    """The tone of a column: values that the current step added stand out."""
    newest = max(each.step for each in FIELDS if each.step <= step)
    if title:
        return "heading" if field.step == newest else "label"
    return "value" if field.step == newest or field.title == "code" else "quiet"


def _picture(shown: CodebooksShown, canvas: Canvas, height: int, width: int) -> list[list[Put]]:
    """The normal density between the outermost quantiles, and the levels below it."""
    construction = shown.construction
    assert construction is not None
    largest = construction.levels[-1].quantile
    bars = height - 2
    lines: list[list[Put]] = []
    heights = []
    for x in range(width):
        z = ((x + 0.5) / width * 2 - 1) * largest
        heights.append(round(math.exp(-z * z / 2) * bars * EIGHTHS))
    for y in range(bars):
        ground = (bars - 1 - y) * EIGHTHS
        text = "".join(
            canvas.glyphs.eighths[max(0, min(EIGHTHS, each - ground))] for each in heights
        )
        lines.append([Put(0, text, "bar")])
    ticks = [canvas.glyphs.baseline] * width
    for level in construction.levels:
        if shown.step < 1 or (level.probability is None and shown.step < ZERO_STEP):
            continue
        at = (level.quantile / largest + 1) / 2 * width
        ticks[max(0, min(width - 1, int(at)))] = canvas.glyphs.tick
    lines.append([Put(0, "".join(ticks), "expected")])
    ends = ("-1", "1") if shown.step >= 3 else (f"{-largest:.3f}", f"{largest:.3f}")
    lines.append([Put(0, ends[0], "quiet"), Put(width // 2, "0", "quiet"),
                  right(width, ends[1], "quiet")])  # fmt: skip
    return lines
