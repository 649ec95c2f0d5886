"""The Layers view: where in the model the active scheme hurts most."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widget import Widget

from qtui.report.inspection.layers import place_of
from qtui.report.numbers import format_decibels
from qtui.screen.command_line import Command, inspect_all_command
from qtui.screen.tensors.list import rank_text
from qtui.screen.widgets.task_title import TaskTitle
from qtui.screen.widgets.text_picture import Canvas, TextLine, TextPicture, centred
from qtui.tui.panels.quantize.layers.grid import LayerCell, LayerGrid, finite, layer_grid
from qtui.tui.panels.quantize.layers.keys import HELP, KEYS
from qtui.tui.panels.quantize.layers.picture import AROUND, grid_columns, grid_lines
from qtui.tui.panels.quantize.layers.sentences import layers_sentence, title_of
from qtui.tui.panels.quantize.shown import QuantizeShown
from qtui.tui.panels.quantize.view import TensorView
from qtui_core.quantities import plural

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel


class LayersView(TensorView):
    """A cell for each tensor, with the cursor on the open one. The numbers are those of the
    ranking, which `w` reads too; a tensor that was not read has none."""

    TITLE = "Layers"
    HELP = HELP
    KEYS: ClassVar[tuple[Binding, ...]] = KEYS
    NUMBERS = False
    OF_TENSOR = False
    OFFERS = frozenset(("worst",))

    DEFAULT_CSS = """
    LayersView { layout: vertical; TextPicture { height: 1fr; } }
    """

    def __init__(self, panel: QuantizePanel) -> None:
        super().__init__(panel)
        self.title_line = TaskTitle(self.drawing)
        self.picture = TextPicture(self.drawing, self._lay_out)
        self._message = ""
        self._grid: LayerGrid | None = None

    def compose(self) -> ComposeResult:
        yield self.title_line
        yield self.picture

    # Called by the panel

    def opened(self) -> None:
        super().opened()
        self._draw()

    def show(self, shown: QuantizeShown) -> None:
        self._draw()

    def ranked(self) -> None:
        self._draw()

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        self._message = message
        self._draw()

    def focus_start(self) -> bool:
        self.screen.set_focus(self.picture)
        return True

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self.panel.body.typing or not self._names:
            return False
        return not self.panel.ranking.running if action == "read" else True

    def action_read(self) -> None:
        self.panel.forget_refusal()
        self.panel.ranking.start()

    def action_maps(self) -> None:
        self.panel.show_view(self.panel.body.maps)

    def action_move(self, rows: int, columns: int) -> None:
        entry = self.panel.shown.entry
        if self._grid is not None:
            at = self._grid.find(entry.name) if entry is not None else None
            self._choose(self._grid.near(at, rows, columns))

    @on(TextPicture.Picked)
    def _picked(self, message: TextPicture.Picked) -> None:
        message.stop()
        if self._grid is not None and isinstance(message.pick, tuple):
            self._choose(self._grid.at(*message.pick))
            if message.twice:
                self.action_maps()

    def _choose(self, cell: LayerCell | None) -> None:
        if cell is not None:
            self.panel.body.side.list.select(cell.chosen)
            self._draw()

    # Showing

    @property
    def _names(self) -> list[str]:
        """The tensors that the list shows and a scheme would change."""
        return [entry.name for entry in self.panel.body.side.list.shown if entry.quantizable]

    @property
    def _sqnr_db(self) -> dict[str, float | None]:
        """Of those that were read under the active scheme."""
        read = self.panel.ranking.read_now
        return {name: read[name] for name in self._names if name in read}

    def _draw(self) -> None:
        shown, title = self.panel.shown, self.title_line
        if not self.is_mounted or not shown.schemes or shown.index is None:
            return
        names, read, ranking = self._names, self._sqnr_db, self.panel.ranking
        title.subject = f"SQNR under {shown.scheme}" if names else ""
        title.note = f"{len(read):,} of {plural(len(names), 'tensor')} read" if names else ""
        title.details = (f"open: {self._open(read)}",) if shown.entry and names else ()
        title.activity = "reading" if ranking.running else ""
        title.fraction = len(read) / max(1, len(names)) if ranking.running else None
        self.sentence = layers_sentence(
            shown.model, str(shown.scheme), len(names), read,
            running=ranking.running, sampled=ranking.sampled,
        )  # fmt: skip
        self.picture.update()
        self.panel.refresh_bindings()

    def _open(self, read: dict[str, float | None]) -> str:
        entry = self.panel.shown.entry
        assert entry is not None
        if entry.name not in read:
            return f"{title_of(entry.name)}, not read"
        return f"{title_of(entry.name)}, {rank_text(read[entry.name])}"

    def _lay_out(self, canvas: Canvas) -> Sequence[TextLine]:
        names, read, entry = self._names, self._sqnr_db, self.panel.shown.entry
        if not names:
            self._grid = None
            return centred(self._message)(canvas)
        columns, rows = grid_columns(canvas.width), max(1, canvas.height - AROUND)
        self._grid = grid = layer_grid(names, read, columns, rows)
        known = finite(read) or [math.nan]
        at = grid.find(entry.name) if entry is not None else None
        return grid_lines(grid, canvas.width, at, (known[0], known[-1]), self.drawing.brush)

    # Hooks of the shell

    def maximise_target(self) -> Widget | None:
        return self.picture

    def copy_text(self) -> str | None:
        return f"{self.picture.text}\n\n{self.sentence}" if self._names else None

    def command_line(self) -> Command:
        shown = self.panel.shown
        if not self._names or not shown.schemes:
            return super().command_line()
        return inspect_all_command(shown.model, (shown.scheme,))

    def export_data(self) -> dict[str, Any] | None:
        if not self._names:
            return None
        read, shown = self._sqnr_db, self.panel.shown
        lost = [name for name, value in read.items() if value == -math.inf]
        without = [name for name, value in read.items() if value is not None and math.isnan(value)]
        numbers = {name: None if name in {*lost, *without} else read[name] for name in read}
        return {"scheme": str(shown.scheme), "tensors": len(self._names), "sqnr_db": numbers,
                "lost": lost, "without_finite_values": without,
                "sampled": self.panel.ranking.sampled}  # fmt: skip

    def export_table(self) -> Iterable[Sequence[object]] | None:
        if not self._names:
            return None
        read, scheme = self._sqnr_db, str(self.panel.shown.scheme)
        rows: list[Sequence[object]] = [("tensor", "layer", "scheme", "read", "sqnr_db")]
        for name in self._names:
            place, value = place_of(name), read.get(name)
            known = value is not None and math.isfinite(value)
            shown = format_decibels(value) if known else ""
            rows.append((name, place[1] if place else "", scheme, name in read, shown))
        return rows
