"""The Maps view: heatmaps of the tensor, and the histogram of its values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widget import Widget

from qtui.report.numbers import format_decibels
from qtui.screen.tensors.subject import Subject
from qtui.screen.widgets.heatmap.grid import HeatScale, Window
from qtui.screen.widgets.heatmap.widget import Heatmap
from qtui.screen.widgets.histogram import Histogram
from qtui.tui.panels.quantize.maps.export import maps_data, maps_table
from qtui.tui.panels.quantize.maps.keys import HELP, KEYS
from qtui.tui.panels.quantize.maps.kinds import DIFFERENCE, KINDS, MapChoice, map_titles
from qtui.tui.panels.quantize.maps.legend import SharedLegend
from qtui.tui.panels.quantize.maps.picture import MapPicture, MapRequest
from qtui.tui.panels.quantize.maps.sentences import map_sentence
from qtui.tui.panels.quantize.maps.zoom import moved, zoomed
from qtui.tui.panels.quantize.schemes import LETTERS
from qtui.tui.panels.quantize.shown import QuantizeShown
from qtui.tui.panels.quantize.tensor_reader import Activity, Look
from qtui.tui.panels.quantize.view import TensorView

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel

Seen = tuple[str, Subject]
"""Model and subject."""

# The least width of the screen for three maps.
THREE_FROM = 150
# The shares of the window that it moves by.
NEAR, FAR = 0.5, 0.25


class MapsView(TensorView):
    """One map of the tensor, or those of A and B side by side, above the histogram of the values.

    Another tensor keeps the kind of map, the pooling and the number of maps, but not the window.
    Until one is chosen, schemes are compared by the mean of a cell: the largest error of a format
    with uneven levels is large where its error is small. One map shows a single spike (max).
    """

    TITLE = "Maps"
    HELP = HELP
    KEYS: ClassVar[tuple[Binding, ...]] = KEYS

    DEFAULT_CSS = """
    MapsView {
        layout: vertical;
        SharedLegend { display: none; }
        #maps { height: 1fr; }
        Heatmap { width: 1fr; height: 1fr; }
        .-second, .-third { display: none; }
        &.-side SharedLegend, &.-side .-second { display: block; }
        &.-side Heatmap { padding: 0 1 0 0; }
        &.-three .-third { display: block; }
        Histogram { height: 9; margin: 1 0 0 0; }
    }
    """

    def __init__(self, panel: QuantizePanel) -> None:
        super().__init__(panel)
        drawing = self.drawing
        self.kind: MapChoice = KINDS[0]
        self.pooling = ""  # the usual one
        self.window: Window | None = None
        self.side = False
        self.pictures: tuple[MapPicture, ...] = ()
        self.legend = SharedLegend(drawing)
        self.heatmap = Heatmap(drawing)
        self.second = Heatmap(drawing, classes="-second")
        self.third = Heatmap(drawing, classes="-third")
        self.second.can_focus = self.third.can_focus = False
        self.histogram = Histogram(drawing)
        self._looked: Seen | None = None
        self._drawn: Seen | None = None
        """The model and the subject of the pictures."""
        self._element: tuple[int, int] | None = None

    def with_numbers(self) -> bool:
        """Whether the numbers are shown: two maps need their room."""
        return not self.has_class("-side")

    @property
    def maps(self) -> tuple[Heatmap, ...]:
        return self.heatmap, self.second, self.third

    def compose(self) -> ComposeResult:
        yield self.legend
        with Horizontal(id="maps"):
            yield from self.maps
        yield self.histogram

    # Looking

    def _requests(self, schemes: tuple[str, ...], active: int) -> list[MapRequest]:
        """The requests for the maps, in the order of their widgets."""
        rows, columns = self._capacity()

        def request(kind: MapChoice, schemes: tuple[str, ...]) -> MapRequest:
            pooling = self._pooling_of(kind)
            return MapRequest(kind.name, schemes, pooling, self.window, rows, columns)

        if self.kind.schemes != 1:
            return [request(self.kind, schemes[: self.kind.schemes])]
        if not self.side:
            return [request(self.kind, (schemes[active],))]
        two = [request(self.kind, (scheme,)) for scheme in schemes[:2]]
        if self.app.size.width < THREE_FROM:
            return two
        return [*two, request(DIFFERENCE, schemes[:2])]

    def _pooling_of(self, kind: MapChoice) -> str:
        compared = kind.schemes == 2 or (kind.schemes == 1 and self.side)
        pooling = self.pooling or ("mean" if compared else "max")
        return pooling if pooling in kind.poolings else kind.poolings[0]

    def is_current(self, shown: QuantizeShown) -> bool:
        """Whether the maps are of the chosen schemes, and not of previous ones."""
        schemes = tuple(map(str, shown.schemes))
        wanted = [request.schemes for request in self._requests(schemes, shown.active)]
        return [picture.request.schemes for picture in self.pictures] == wanted

    def _capacity(self) -> tuple[int, int]:
        entry = self.panel.shown.entry
        if self.pictures and self._drawn == self._looked:
            return self.heatmap.capacity(self.pictures[0].grid.rows)
        return self.heatmap.capacity(entry.rows if entry else 0)

    @property
    def _has_subject(self) -> bool:
        """Whether the pictures are of the current subject; its name is shown before they are."""
        shown = self.panel.shown
        if not self.pictures or shown.entry is None:
            return False
        return self._drawn == (shown.model, shown.subject)

    async def look(self, look: Look, activity: Activity) -> None:
        def heard(label: str) -> Any:
            return lambda fraction, _: activity(label, fraction)

        seen = look.model, look.subject
        if seen != self._looked:
            self._looked, self.window, self._element = seen, None, None
        feed, requests = self.panel.feed, self._requests(look.schemes, look.active)
        first = await feed.map(*seen, requests[0], heard("map 1"))
        rows, columns = self.heatmap.capacity(first.grid.rows)
        if (rows, columns) != (requests[0].rows, requests[0].columns):
            # An activation has more or fewer rows than its weight, so row numbers differ in width.
            requests = [replace(request, rows=rows, columns=columns) for request in requests]
            first = await feed.map(*seen, requests[0], heard("map 1"))
        others = [
            await feed.map(*seen, request, heard(f"map {index}"))
            for index, request in enumerate(requests[1:], 2)
        ]
        self._drawn = seen
        self._show((first, *others))
        histogram = await feed.histogram(
            look.model, look.subject, self.histogram.capacity(), heard("histogram")
        )
        self.panel.shown.histogram = histogram
        self.histogram.show(histogram)

    def _show(self, pictures: tuple[MapPicture, ...]) -> None:
        shown, grid = self.panel.shown, pictures[0].grid
        if shown.map is None:
            self.heatmap.marked_columns = ()
        cursor = None
        if shown.map is not None and shown.map.grid.like(grid):
            cursor = self.heatmap.cursor
        elif self._element is not None:
            cursor = grid.cell_of(*self._element)
        self.pictures, shown.map = pictures, pictures[0]
        self._arrange(len(pictures))
        shared = self._shared_scale(pictures)
        for widget, picture in zip(self.maps, pictures, strict=False):
            kind = _kind_of(picture)
            scale = kind.scale(picture.grid.cells)
            if shared is not None and kind is self.kind:
                scale = shared
            widget.show(picture.grid, cursor, scale)
            cursor = self.heatmap.cursor if cursor is None else cursor
        for widget in self.maps[len(pictures) :]:
            widget.show(None)
        self._tell(shown)
        self.panel.element.read()

    def _arrange(self, count: int) -> bool:
        """Shows as many map widgets as there are maps. Returns whether that changed."""
        before = self.has_class("-side"), self.has_class("-three")
        self.set_class(count > 1, "-side")
        self.set_class(count > 2, "-three")
        self.panel.body.make_room()
        return before != (count > 1, count > 2)

    def _shared_scale(self, pictures: tuple[MapPicture, ...]) -> HeatScale | None:
        """The scale of the maps of A and B; None if they have no unit in common."""
        units = {self.kind.unit(scheme) for scheme in self.panel.shown.schemes[:2]}
        if len(pictures) < 2 or len(units) > 1:
            return None
        return self.kind.scale([value for picture in pictures[:2] for value in picture.grid.cells])

    def show(self, shown: QuantizeShown) -> None:
        if self._has_subject:
            self._tell(shown)
        if shown.numbers is not None:
            marked = tuple(each.column for each in shown.numbers.outliers.columns)
            for widget in self.maps:
                widget.marked_columns = marked

    def _tell(self, shown: QuantizeShown) -> None:
        told = shown.active if len(self.pictures) == 2 else -1
        self.sentence = map_sentence(
            self.pictures[told],
            {str(scheme): n for scheme, n in zip(shown.schemes, shown.errors, strict=False)},
        )
        times, shared = self.drawing.glyphs.times, self._shared_scale(self.pictures)
        many = len(self.pictures) > 1
        for index, (widget, picture) in enumerate(zip(self.maps, self.pictures, strict=False)):
            kind = _kind_of(picture)
            if many and index < 2:  # their line names the kind and the pooling of both
                errors = shown.errors[index] if index < len(shown.errors) else None
                name = f"{LETTERS[index]} {picture.request.schemes[0]}"
                front = name if errors is None else f"{name}, {format_decibels(errors.sqnr_db)} dB"
                widget.titles, widget.has_legend = (front, name), shared is None
                continue
            widget.has_legend = True
            widget.titles = map_titles(
                kind, picture.request.pooling, picture.grid, times, kind.title
            )
        if many:
            first = self.pictures[0]
            front = self.kind.title
            self.legend.titles = map_titles(
                self.kind, first.request.pooling, first.grid, times, front
            )
            self.legend.show(shared, shown.element)

    def overdue(self, message: str) -> None:
        shown = self.panel.shown
        if shown.map is None or self.heatmap.grid is None:
            self.say(message, keep=False, trouble=False)
        elif not self.is_current(shown):
            # The map stays, under the name of its scheme, to be compared with the next.
            self.mark_stale()
        if shown.histogram is None:
            self.histogram.show(None)

    def mark_stale(self) -> None:
        """Names the schemes of the maps, as others are chosen now."""
        for widget, picture in zip(self.maps, self.pictures, strict=False):
            schemes = " and ".join(picture.request.schemes)
            widget.titles = (f"{_kind_of(picture).title} of {schemes}",)

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        self.heatmap.message = message
        self.heatmap.set_class(trouble, "-trouble")
        if not keep:
            self.pictures, self.sentence = (), ""
            for widget in self.maps:
                widget.show(None)
            self.legend.clear()
            self.histogram.show(None)

    # Changing the maps

    def action_kind(self, direction: int) -> None:
        self.kind = KINDS[(KINDS.index(self.kind) + direction) % len(KINDS)]
        self._changed()

    def action_pooling(self) -> None:
        poolings = self.kind.poolings
        if len(poolings) < 2:
            self.panel.refused(
                f"A map of codes shows the element in the middle of each cell ({poolings[0]}): "
                f"codes only name levels, so they have no mean or maximum."
            )
            return
        at = poolings.index(self._pooling_of(self.kind))
        self.pooling = poolings[(at + 1) % len(poolings)]
        self.panel.look_again()

    def action_side(self) -> None:
        if self.kind.schemes != 1:  # such a map is not made for two schemes
            self.kind, self.side = KINDS[0], True
        else:
            self.side = not self.side
        self._changed()

    def _changed(self) -> None:
        """Requests other maps. If their number changes, their widgets are laid out first, as the
        room decides how many cells are requested."""
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
            # From the window that was requested last: every press counts, even if maps are slow.
            area = self.window or (0, grid.rows, 0, grid.columns)
            self._go(zoomed(area, shape, at, factor), at)

    def action_whole(self) -> None:
        if self._has_subject:
            grid = self.pictures[0].grid
            self._go((0, grid.rows, 0, grid.columns), self._middle_of_cursor())

    def _middle_of_cursor(self) -> tuple[int, int]:
        """The element of the cursor's cell."""
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
        else:  # the cursor moves one cell further
            row, column = self.heatmap.cursor
            high, wide = grid.pool
            at = (
                grid.first_row(row) + message.rows * high,
                grid.first_column(column) + message.columns * wide,
            )
        self._go(window, at)

    def _go(self, window: Window, at: tuple[int, int]) -> None:
        """Shows another window, with the cursor on the cell that contains an element."""
        grid = self.pictures[0].grid
        wanted = None if window == (0, grid.rows, 0, grid.columns) else window
        if wanted != self.window:
            self.window, self._element = wanted, at
            self.panel.look_again()

    @on(Heatmap.CursorMoved)
    def _cursor_moved(self, message: Heatmap.CursorMoved) -> None:
        # The message is not stopped, as the panel also handles it: it reads the element.
        for widget in self.maps[: len(self.pictures)]:
            widget.point_at((message.grid_row, message.grid_column))

    # Hooks of the shell

    def focus_start(self) -> bool:
        self.screen.set_focus(self.heatmap)
        return True

    def export_data(self) -> dict[str, Any] | None:
        return {"pictures": maps_data(self.pictures)} if self._has_subject else None

    def export_table(self) -> Iterable[Sequence[object]] | None:
        return maps_table(self.pictures) if self._has_subject else None

    def maximise_target(self) -> Widget | None:
        return self.query_one("#maps") if len(self.pictures) > 1 else self.heatmap


def _kind_of(picture: MapPicture) -> MapChoice:
    return next(kind for kind in KINDS if kind.name == picture.request.kind)
