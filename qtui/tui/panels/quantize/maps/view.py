"""The Maps view: its keys, and what they change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding
from textual.widget import Widget

from qtui.screen.widgets.heatmap.grid import Window
from qtui.screen.widgets.heatmap.widget import Heatmap
from qtui.tui.panels.quantize.maps.drawn import DrawnMaps
from qtui.tui.panels.quantize.maps.export import maps_data, maps_table
from qtui.tui.panels.quantize.maps.keys import HELP, KEYS
from qtui.tui.panels.quantize.maps.kinds import KINDS
from qtui.tui.panels.quantize.maps.zoom import moved, zoomed

# Shares of the window by which it moves.
NEAR, FAR = 0.5, 0.25


class MapsView(DrawnMaps):
    """Pictures of the tensor, and how its values are spread."""

    VIEW_ID = "maps"
    TITLE = "Maps"
    HELP = HELP
    KEYS: ClassVar[tuple[Binding, ...]] = KEYS

    # Changing what is shown

    def action_kind(self, direction: int) -> None:
        self.kind = KINDS[(KINDS.index(self.kind) + direction) % len(KINDS)]
        self._changed()

    def action_pooling(self) -> None:
        poolings = self.kind.poolings
        if len(poolings) < 2:
            self.panel.refused(
                f"A map of codes shows the element in the middle of each cell ({poolings[0]}): "
                f"codes are names of levels, and have no mean or maximum."
            )
            return
        at = poolings.index(self.pooling)
        self.pooling = poolings[(at + 1) % len(poolings)]
        self.panel.look_again()

    def action_side(self) -> None:
        if not self.side and self.kind.schemes != 1:
            self.kind = KINDS[0]  # the others have nothing to stand side by side
        self.side = not self.side
        self._changed()

    def _changed(self) -> None:
        """Other maps are to be shown. Where their number changes they get their room first, for
        it decides how many cells are asked for."""
        shown = self.panel.shown
        schemes = tuple(map(str, shown.schemes))
        if schemes:
            count = len(self._requests(schemes, shown.active))
            self.panel.look_again(pause=self._arrange(count))

    def action_counts(self) -> None:
        self.histogram.logarithmic = not self.histogram.logarithmic

    # Zooming and moving about

    def action_zoom(self, factor: float) -> None:
        if self._has_subject:
            grid = self.pictures[0].grid
            at, shape = self._middle_of_cursor(), (grid.rows, grid.columns)
            # From the window that is on its way: every press counts, however slow the map is.
            area = self.window or (0, grid.rows, 0, grid.columns)
            self._go(zoomed(area, shape, at, factor), at)

    def action_whole(self) -> None:
        if self._has_subject:
            grid = self.pictures[0].grid
            self._go((0, grid.rows, 0, grid.columns), self._middle_of_cursor())

    def _middle_of_cursor(self) -> tuple[int, int]:
        """The element that the cursor's cell points at."""
        return self.pictures[0].element_at(*self.heatmap.cursor)

    @on(Heatmap.Pushed)
    def _pushed(self, message: Heatmap.Pushed) -> None:
        message.stop()
        if not self._has_subject:
            return
        grid = self.pictures[0].grid
        share = FAR if message.far else NEAR
        rows = message.rows * max(1, round(grid.height * share))
        columns = message.columns * max(1, round(grid.width * share))
        window = moved(grid.area, (grid.rows, grid.columns), rows, columns)
        at = self._middle_of_cursor()
        if message.far:  # the cursor keeps its place on the screen
            at = at[0] + window[0] - grid.area[0], at[1] + window[2] - grid.area[2]
        else:  # and here its way: one cell further
            row, column = self.heatmap.cursor
            high, wide = grid.pool
            at = (
                grid.first_row(row) + message.rows * high,
                grid.first_column(column) + message.columns * wide,
            )
        self._go(window, at)

    def _go(self, window: Window, at: tuple[int, int]) -> None:
        """Show another window, the cursor on the cell that holds an element."""
        grid = self.pictures[0].grid
        wanted = None if window == (0, grid.rows, 0, grid.columns) else window
        if wanted != self.window:
            self.window, self._element = wanted, at
            self.panel.look_again()

    @on(Heatmap.CursorMoved)
    def _cursor_moved(self, message: Heatmap.CursorMoved) -> None:
        # Not stopped: the panel reads the element.
        for widget in self.maps[: len(self.pictures)]:
            widget.point_at((message.grid_row, message.grid_column))

    # What the shell asks for

    def focus_start(self) -> bool:
        self.screen.set_focus(self.heatmap)
        return True

    def export_data(self) -> dict[str, Any] | None:
        return {"pictures": maps_data(self.pictures)} if self._has_subject else None

    def export_table(self) -> Iterable[Sequence[object]] | None:
        return maps_table(self.pictures) if self._has_subject else None

    def maximise_target(self) -> Widget | None:
        return self.query_one("#maps") if len(self.pictures) > 1 else self.heatmap
