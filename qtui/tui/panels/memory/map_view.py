"""A map of the batches and sequences that fit the chosen GPU, filled cell by cell."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from qtui.engine.estimator.answers import MapCell
from qtui.screen.command_line import Command
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.plan.command import memory_command
from qtui.screen.plan.levels import VERDICTS
from qtui.screen.plan.shown import MAP_BATCHES, MAP_SEQUENCES, Shown
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, right, window
from qtui.tui.panels.memory.view import MemoryView
from qtui_core.memory.plan.options import RunPlan

#: The group of the work that computes the map.
MAP: Final = "map"
#: Seconds between two drawings while cells arrive.
DRAWN_SECONDS: Final = 0.15
#: Verdict -> the sign after the bytes of a cell.
SIGNS = {"fits": "+", "tight": "~", "no": "-", None: " "}


class MapView(MemoryView):
    """A row for each batch, and a column for each sequence length."""

    TITLE = "Map"
    HELP = "**Map**: which batches and sequences fit the chosen GPU.\n"
    CURSOR = COLUMNS = True
    ENTERS = "Take"

    _drawn = 0.0
    """The time of the last drawing (time.monotonic)."""

    def ready(self, shown: Shown) -> bool:
        return shown.current

    def opened(self) -> None:
        plan = self.panel.shown.wanted
        self.panel.shown.cell = (
            _nearest(MAP_BATCHES, plan.batch), _nearest(MAP_SEQUENCES, plan.sequence)
        )  # fmt: skip
        super().opened()

    def fill(self, shown: Shown) -> None:
        """Requests the map of the current plan, unless it is already known or on its way."""
        panel = self.panel
        there = panel.phase is AskingPhase.READY and shown.answer is not None and panel.known
        if there and shown.cells_of != shown.mapped:
            panel.do(self._work, MAP)

    async def _work(self) -> None:
        shown = self.panel.shown
        asked = shown.mapped
        shown.cells, shown.cells_of = {}, asked
        whole = False
        try:
            await self.panel.feed.map(shown, self._take)
            whole = True
        finally:
            if not whole and shown.cells_of == asked:
                shown.cells_of = ()  # the view requests the map again when it is next shown
        self.panel.draw()

    def _take(self, cell: MapCell) -> None:
        self.panel.shown.cells[cell.batch, cell.sequence] = cell
        now = time.monotonic()
        if self.panel.view is self and now - self._drawn > DRAWN_SECONDS:
            self._drawn = now
            self.panel.draw()

    def draw(self, shown: Shown, canvas: Canvas) -> list[TextLine]:
        """For each batch and sequence length the peak of live tensors, and whether the plan
        fits."""
        width = max(6, min(13, (canvas.width - 5) // len(MAP_SEQUENCES)))
        columns = window(len(MAP_SEQUENCES), shown.cell[1], (canvas.width - 5) // width)
        what = "GiB of tensors at the peak"
        if shown.gpu is None:
            title = f"{what}; d chooses a GPU"
        else:
            title = f"{what}; + fits, ~ tight, - not: {shown.gpu.label}"
        ends = {column: 5 + (at + 1) * width for at, column in enumerate(columns)}
        lines: list[TextLine] = [
            [Put(0, shortened(title, canvas.width, canvas.glyphs.ellipsis), "label")],
            [
                Put(0, "batch", "heading"),
                *(
                    right(end - 1, _tokens(MAP_SEQUENCES[at]), "heading")
                    for at, end in ends.items()
                ),
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

    def meaning(self, shown: Shown) -> str:
        there = shown.answer is not None and shown.cells_of == shown.mapped and shown.cells
        return _edge(shown) if there else super().meaning(shown)

    def move(self, shown: Shown, by: int) -> bool:
        row, column = shown.cell
        shown.cell = (max(0, min(row + by, len(MAP_BATCHES) - 1)), column)
        return True

    def step(self, shown: Shown, by: int) -> bool:
        row, column = shown.cell
        shown.cell = (row, max(0, min(column + by, len(MAP_SEQUENCES) - 1)))
        return True

    def enter(self, shown: Shown) -> None:
        """Changes the plan to the batch and the sequence of the cell."""
        self.panel.change(_plan_of(shown), shown.gpu, as_long=True)

    def command_line_of(self, shown: Shown, *more: str) -> Command:
        """Of the plan in the cell: no command gives the whole map."""
        return memory_command(shown.model, _plan_of(shown), shown.gpu, *more)


def _plan_of(shown: Shown) -> RunPlan:
    row, column = shown.cell
    return replace(shown.plan, batch=MAP_BATCHES[row], sequence=MAP_SEQUENCES[column])


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
    """The GiB and the sign of the verdict, "11.2+"; "–" for an impossible plan."""
    if cell.peak_live_bytes is None:
        return "– "
    gib = cell.peak_live_bytes / 2**30
    digits = 2 if gib < 10 else 1 if gib < 100 else 0
    text = f"{gib:.{digits}f}"
    while len(text) > width - 2 and digits:
        digits -= 1
        text = f"{gib:.{digits}f}"
    return text + SIGNS[cell.verdict]


def _edge(shown: Shown) -> str:
    """The sentence of the map: the largest batches and sequences that fit."""
    row, column = shown.cell
    batch, length = MAP_BATCHES[row], MAP_SEQUENCES[column]
    if shown.gpu is None:
        return "Each cell is the plan with that batch and sequence. d chooses a GPU to fit."
    known = [cell for cell in shown.cells.values() if cell.peak_live_bytes is not None]
    if len(shown.cells) < len(MAP_BATCHES) * len(MAP_SEQUENCES) or any(
        cell.verdict is None for cell in known
    ):
        return f"Computing which cells fit {shown.gpu.label}."
    fitting = {
        length: max(
            (b for b in MAP_BATCHES if (c := shown.cells.get((b, length))) and c.verdict == "fits"),
            default=0,
        )
        for length in MAP_SEQUENCES
    }
    at = fitting[length]
    longest = max((s for s in MAP_SEQUENCES if fitting[s]), default=0)
    if not longest:
        return (
            f"Nothing on this map surely fits {shown.gpu.label}, not even batch {MAP_BATCHES[0]} "
            f"of {MAP_SEQUENCES[0]:,} tokens. Savings says what would help."
        )
    here = (
        f"Of this map, batch {at} is the largest at {length:,} tokens that fits {shown.gpu.label}"
        if at
        else f"At {length:,} tokens nothing on this map surely fits {shown.gpu.label}"
    )
    most = max(fitting.items(), key=lambda item: item[0] * item[1])
    return (
        f"{here}; the longest sequence that fits is {longest:,}, and most tokens at once, "
        f"{most[0] * most[1]:,}, fit as batch {most[1]} of {most[0]:,}. "
        f"Enter takes batch {batch} of {length:,}."
    )


def _nearest(values: Sequence[int], value: int) -> int:
    """The index of the largest value that is at most `value`."""
    return max((at for at, each in enumerate(values) if each <= value), default=0)
