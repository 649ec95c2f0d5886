"""The SQNR by granularity, as lines and as a widget whose keys choose another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding
from textual.message import Message

from qtui.engine.answers.outliers import Granularities, GranularityRow
from qtui.report.numbers import format_decibels
from qtui.report.pictures.glyphs import Glyphs
from qtui.screen.panel.keys import MANY
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import TextPicture, Toned, TonedLine
from qtui_core.quantities import format_count

SHORTEST_BAR = 6
#: In the place of a bar: scales that a matrix product cannot take out of its sum.
UNUSABLE = {"column": "no product can use it"}


def granularity_lines(
    width: int, height: int, glyphs: Glyphs, found: Granularities | None
) -> Sequence[TonedLine]:
    """A line for each granularity. The bar ends at the SQNR; lighter cells after it are the loss
    from the injected outlier; a tick marks the SQNR of a Gaussian tensor if that is higher. What no
    product can use says so instead."""
    if found is None or not found.rows:
        return ()
    injected = bool(found.before)
    values = f"{'before':>7}{'after':>6}" if injected else f"{'SQNR':>6}"
    bar = width - 12 - 7 - 6 - 1 - len(values)
    with_scales = bar >= SHORTEST_BAR or not injected
    if not with_scales:
        bar += 7
    bar = max(0, bar)
    shown = [row for row in found.rows if row.granularity not in UNUSABLE]
    before = [other.sqnr_db for row in shown if (other := found.without(row))]
    largest = max(filter(None, [*before, *map(found.decibels, shown)]), default=0.0)
    marked = any(row.gaussian_sqnr_db is not None for row in found.rows) and bar >= SHORTEST_BAR
    legend = f"  {glyphs.vertical} Gaussian" if marked else ""
    title = "SQNR in dB, before and after" if injected else "SQNR in dB by granularity"
    heading: list[Toned] = [(shortened(title, width, glyphs.ellipsis), "title")]
    if len(title) + len(legend) <= width:
        heading.append((legend, "quiet"))
    scales = f"{'scales':>7}" if with_scales else ""
    lines: list[TonedLine] = [
        heading,
        [(f"{'':12}{scales}{'bits':>6} {'':{bar}}{values}", "label")],
    ]
    for row in found.rows:
        lines.append(_line(row, found, bar, largest, glyphs, with_scales=with_scales))
    return lines[:height]


def _line(
    row: GranularityRow,
    found: Granularities,
    bar: int,
    largest: float,
    glyphs: Glyphs,
    *,
    with_scales: bool,
) -> TonedLine:
    own = row.scheme == found.scheme
    name = row.granularity or "cast"
    before = found.without(row)
    scales = f"{format_count(row.scales).replace(' ', ''):>7}" if with_scales else ""
    line: list[Toned] = [
        (f"{glyphs.pointer if own else ' '}{name:<11}", "strong" if own else "value"),
        (f"{scales}{row.bits_per_parameter:>6.2f} ", "label"),
    ]
    said = UNUSABLE.get(row.granularity)
    if said is None:
        line += _bar(row, found, bar, largest, glyphs)
    else:
        line.append((f"{shortened(said, bar, glyphs.ellipsis):{bar}}", "quiet"))
    if before is not None:
        line.append((f"{format_decibels(before.sqnr_db):>7}", "label"))
    line.append((f"{format_decibels(found.decibels(row)):>6}", "strong" if own else "value"))
    return line


def _bar(
    row: GranularityRow, found: Granularities, bar: int, largest: float, glyphs: Glyphs
) -> list[Toned]:
    def cells(decibels: float | None) -> int:
        if decibels is None or largest <= 0:
            return 0
        return max(0, min(bar, round(decibels / largest * bar)))

    before = found.without(row)
    end = cells(found.decibels(row))
    lost = max(end, cells(before.sqnr_db)) if before is not None else end
    text: list[Toned] = [
        (glyphs.full * end, "bar"),
        (glyphs.shades[1] * (lost - end), "expected"),
        (" " * (bar - lost), "label"),
    ]
    tick = cells(row.gaussian_sqnr_db) - 1
    if row.gaussian_sqnr_db is None or bar < SHORTEST_BAR or not lost <= tick < bar:
        return text  # the bar covers the tick: the tensor is no worse than a Gaussian one
    space: Toned = (" " * (tick - lost), "label")
    return [*text[:2], space, (glyphs.vertical, "quiet"), (" " * (bar - tick - 1), "label")]


class GranularityBars(TextPicture):
    """The SQNR by granularity; up and down choose the granularity of another line."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="granularities.up",
                tooltip="Take the granularity of the line above"),
        Binding("down,j", "move(1)", "Down", show=False, id="granularities.down",
                tooltip="Take the granularity of the line below"),
        Binding("g,home", f"move({-MANY})", "First", show=False, id="granularities.first",
                tooltip="Take the granularity of the first line"),
        Binding("G,end", f"move({MANY})", "Last", show=False, id="granularities.last",
                tooltip="Take the granularity of the last line"),
    ]  # fmt: skip

    class Moved(Message):
        """A key chooses the granularity so many lines below."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    def action_move(self, by: int) -> None:
        self.post_message(self.Moved(by))
