"""A picture with the measured lines over the predicted curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from rich.color_triplet import ColorTriplet
from rich.style import Style

from qtui.report.pictures.cells import ACROSS
from qtui.screen.curve.chart import Cell, Chart, ChartBand, cells_of
from qtui.screen.curve.dots import Track, cells_of_track, sample_of
from qtui.screen.curve.legend import fill
from qtui.screen.curve.picture import AXIS, CurvePicture, Put
from qtui.screen.messages import Resized
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.line import shortened
from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.timeline import StackedCurve
from qtui_core.quantities import format_bytes

#: A line more than this many times as high as the others is cut off, so that they are not flat.
_MUCH_HIGHER = 2.5
_DARK = ColorTriplet(18, 21, 26)


@dataclass(frozen=True)
class Place:
    """The columns of a phase, into which measured values are put."""

    phase: str
    start: int
    stop: int


@dataclass(frozen=True)
class Overlay:
    """The content that is drawn over the prediction.

    Attributes:
        tracks: the lines, the most important last; each has a value for every point of the picture.
        latest: the current value of each line, shown beside its name.
        phase: the phase that runs now.
        fault: the phase in which a fault happened.
    """

    tracks: tuple[Track, ...] = ()
    latest: tuple[int | None, ...] = ()
    phase: str = ""
    fault: str = ""


class RunPicture(CurvePicture):
    """The predicted curve in muted colours, with lines over it and the phases below it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "run--allocated", "run--reserved", "run--device", "run--phase", "run--now", "run--fault",
    }  # fmt: skip
    DEFAULT_CSS = """
    RunPicture {
        & > .run--allocated { color: $foreground; text-style: bold; }
        & > .run--reserved { color: $warning; text-style: bold; }
        & > .run--device { color: $primary; text-style: bold; }
        & > .run--phase { color: $success; }
        & > .run--now { color: $background; background: $primary; text-style: bold; }
        & > .run--fault { color: $background; background: $error; text-style: bold; }
        &:ansi > .run--now { text-style: bold reverse; }
        &:ansi > .run--fault { text-style: bold reverse; }
        &:nocolor > .run--now { text-style: bold reverse; }
        &:nocolor > .run--fault { text-style: bold reverse; }
    }
    """

    def __init__(self, drawing: Drawing) -> None:
        super().__init__(drawing)
        self._overlay = Overlay()
        self._stacked: list[list[Put]] = []
        self._grounds: list[list[Cell]] = []
        self._stacked_for: tuple[object, ...] = ()
        self._from_zero = True
        self._floor = 0

    def on_resize(self) -> None:
        self.post_message(Resized(self))  # the measured lines need other columns now

    # What is drawn

    def predict(self, curve: StackedCurve, capacity: int | None = None, gpu: str = "") -> None:
        """Shows another prediction, and the memory of the device."""
        self._curve, self._capacity, self._gpu = curve, capacity, gpu

    def over(self, overlay: Overlay, *, from_zero: bool = True) -> None:
        """Shows other lines, and draws everything again, from zero bytes or from the bytes that are
        always there."""
        self._overlay, self._from_zero = overlay, from_zero
        self.redraw()

    @property
    def places(self) -> tuple[Place, ...]:
        """The columns of each phase at this size; empty without a prediction or room."""
        chart = self._make()
        if chart is None:
            return ()
        return tuple(Place(band.name, band.start, band.stop) for band in chart.bands)

    @property
    def points(self) -> int:
        """The number of values of a track at this size."""
        return max(0, self.size.width - AXIS - 1) * ACROSS

    def _drawn_chart(self) -> Chart | None:
        chart = self._make()
        if chart is None:
            return None
        ground = self.base_style.bgcolor
        self._ground = (ground.triplet if ground is not None else None) or _DARK
        self._floor = 0 if self._from_zero else _lowest(chart, self._overlay.tracks)
        top = self._top(chart) - self._floor
        columns = tuple(_above(column, self._floor) for column in chart.columns)
        capacity = None if chart.capacity is None else chart.capacity - self._floor
        return replace(chart, columns=columns, top=top, capacity=capacity)

    def _top(self, chart: Chart) -> int:
        """The bytes at the upper edge: the maximum of the prediction and of the lines, except lines
        that are _MUCH_HIGHER."""
        top = float(chart.top)
        highest = sorted(
            max((v for v in track.values if v is not None), default=0.0)
            for track in self._overlay.tracks
        )
        for most in highest:
            if most <= _MUCH_HIGHER * top:
                top = max(top, most)
        return max(1, round(1.02 * top))

    # Rows

    def _peak_row(self, chart: Chart) -> list[Put]:
        """The names of the lines with their current values; before a run, the predicted peak."""
        overlay = self._overlay
        if not overlay.tracks:
            found = self._make()
            return [] if found is None else super()._peak_row(found)
        tracks = list(zip(overlay.tracks, overlay.latest, strict=True))[::-1]
        values = ["" if latest is None else f" {format_bytes(latest)}" for _, latest in tracks]
        room = self.size.width - AXIS + 2
        if (
            sum(len(track.name) + len(v) + 5 for (track, _), v in zip(tracks, values, strict=True))
            > room
        ):
            values = [""] * len(tracks)
        puts: list[Put] = []
        at = AXIS
        for (track, _), value in zip(tracks, values, strict=True):
            text = track.name + value
            if at + len(text) + 3 > self.size.width:
                break
            line = sample_of(track.stroke, ascii=self.drawing.ascii)
            puts.append((at, line, self._style_of(track)))
            puts.append((at + 3, text, self._style("axis")))
            at += len(text) + 5
        return puts

    def _style_of(self, track: Track) -> Style:
        name = track.name.split()[0]
        known = name if name in ("reserved", "device", "phase") else "allocated"
        return self.get_component_rich_style(f"run--{known}", partial=True)

    def _chart_rows(self, chart: Chart, tall: int) -> list[list[Put]]:
        looks = self._ground, self._lettered, self._style("axis")
        key = (self._charted, chart.top, tall, self._floor, *looks)
        if self._stacked_for != key:
            self._stacked_for = key
            self._stacked = super()._chart_rows(chart, tall)
            cells = [cells_of(column, tall, chart.top) for column in chart.columns]
            self._grounds = [[column[row] for column in cells] for row in range(tall - 1, -1, -1)]
        rows = [list(row) for row in self._stacked]
        for track in self._overlay.tracks:
            if len(track.values) != len(chart.columns) * ACROSS:
                continue  # made for another size; new tracks follow
            style = self._style_of(track)
            drawn = cells_of_track(
                track, tall, chart.top, floor=self._floor, ascii=self.drawing.ascii
            )
            for (row, column), sign in drawn.items():
                from_top = tall - 1 - row
                over = self._over_cell(self._grounds[from_top][column], style)
                rows[from_top].append((AXIS + column, sign, over))
        return rows

    def _label(self, row: int, tall: int, top: int) -> str:
        if not self._floor:
            return super()._label(row, tall, top)
        if row == 0:
            return format_bytes(self._floor)
        shown = super()._label(row, tall, top)
        return format_bytes(self._floor + top * (row + 1) // tall) if shown else ""

    def _over_cell(self, cell: Cell, style: Style) -> Style:
        """The style of a line on the background of a cell."""
        place = cell.lower if cell.eighths >= 4 else cell.upper
        if place < 0 or self._lettered:
            return style
        return style + Style(bgcolor=fill(-1, place, self.drawing.depth, self._ground).bgcolor)

    def _band_row(self, chart: Chart) -> list[Put]:
        """The names of the phases, with the current one and a failed one marked."""
        puts = super()._band_row(chart)
        for name, style in ((self._overlay.phase, "now"), (self._overlay.fault, "fault")):
            band = next((band for band in chart.bands if name and band.name == name), None)
            if band is not None:
                puts.append(self._marked(band, style))
        return puts

    def _marked(self, band: ChartBand, style: str) -> Put:
        width = band.stop - band.start
        text = shortened(band.name, max(0, width - 1), "").center(max(0, width - 1))
        shown = (self.drawing.glyphs.vertical + text)[:width]
        return AXIS + band.start, shown, self.get_component_rich_style(f"run--{style}")


def _lowest(chart: Chart, tracks: Sequence[Track]) -> int:
    """A value slightly below the bytes that are always there."""
    values = [sum(column) for column in chart.columns]
    values += [round(v) for track in tracks for v in track.values if v is not None]
    low, high = min(values, default=0), max(values, default=0)
    return max(0, low - (high - low) // 10)


def _above(column: Sequence[int], floor: int) -> tuple[int, ...]:
    """The bytes of a column's parts above a level."""
    left, found = floor, []
    for nbytes in column:
        cut = min(left, nbytes)
        left -= cut
        found.append(nbytes - cut)
    return tuple(found)
