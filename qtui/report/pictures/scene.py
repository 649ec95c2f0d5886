"""Turns a picture of an experiment into a Scene: axes, and lines, cells, bars and points between
them. A Scene is drawn in cells or as SVG.

Every place is a pair (x, y) of shares, from (0, 0) at the bottom left to (1, 1) at the top right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from qtui.report.numbers import format_value
from qtui.report.pictures.axes import Axis, axis_of, exponents
from qtui.report.pictures.cells import Place
from qtui_core.dataclass import dataclass
from qtui_core.lab.results import (
    Density,
    ExponentHistogram,
    LabChart,
    LabFrontier,
    LabLine,
    Picture,
)

#: The word after the name of an earlier run's line, and the name of all lines that both runs have.
BEFORE: Final = "before"
#: A line with at most this many points has a mark at each.
FEW_POINTS: Final = 8
THE_RUN_BEFORE: Final = "the run before"
#: The text for a format that holds every value.
ALL_HELD: Final = "all held"
#: Room at each end of a histogram, in powers of two.
_BESIDE: Final = 1.0
#: The least share of values that a histogram must show, and the powers of two shown beyond these.
_RARE: Final = 1e-5
_AROUND: Final = 12


@dataclass(frozen=True)
class SceneLine:
    """A line, in pieces if values are missing.

    Attributes:
        band: (x, low, high) of its spread, in shares.
        last: the number at its end, as text.
        faint: whether it is of an earlier run, drawn behind the others.
        echo: for a faint line, the index of the same line in this run; otherwise -1.
    """

    name: str
    pieces: tuple[tuple[Place, ...], ...]
    band: tuple[tuple[float, float, float], ...] = ()
    faint: bool = False
    last: str = ""
    echo: int = -1


@dataclass(frozen=True)
class SceneBars:
    """The bars of one kind, each as (left, right, height), and the name of the kind."""

    name: str
    bars: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class SceneSpan:
    """The range of a format, a bar below the picture. It holds values from `low` to `high`; below
    `whole` with fewer bits. `notes` say what it does not hold, for each kind of bars."""

    name: str
    low: float
    whole: float
    high: float
    notes: tuple[str, ...] = ()

    def note(self, names: Sequence[str]) -> str:
        """The text on what the format does not hold; `names` are the kinds of bars."""
        if len(set(self.notes)) < 2:
            return self.notes[0] if self.notes else ""
        return "; ".join(f"{name} {note}" for name, note in zip(names, self.notes, strict=True))


@dataclass(frozen=True)
class ScenePoint:
    """A named place, which may stand back behind others."""

    name: str
    at: Place
    faint: bool = False


@dataclass(frozen=True)
class Scene:
    """The parts of a picture.

    Attributes:
        counts: a density over the whole plot as shares of its largest count, row 0 lowest; empty
            without one.
        parted: whether the density below the first line is lost, and drawn paler.
        floor: the (low, high) shares between which a difference is noise.
    """

    title: str
    x: Axis
    y: Axis
    lines: tuple[SceneLine, ...] = ()
    bars: tuple[SceneBars, ...] = ()
    spans: tuple[SceneSpan, ...] = ()
    points: tuple[ScenePoint, ...] = ()
    counts: tuple[tuple[float, ...], ...] = ()
    parted: bool = False
    floor: Place | None = None


def height_at(line: SceneLine, x: float) -> float:
    """The height of a line at `x`, interpolated between its points; outside them, that of the
    nearest."""
    places = [place for piece in line.pieces for place in piece]
    if not places:
        return 0.0
    after = next((n for n, (at, _) in enumerate(places) if at >= x), len(places))
    if after in (0, len(places)):
        return places[min(after, len(places) - 1)][1]
    (x0, y0), (x1, y1) = places[after - 1], places[after]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def scene_of(picture: Picture, behind: Picture | None = None) -> Scene:
    """The scene of a picture. `behind` is the same picture of an earlier run, which is drawn faint.
    Raises TypeError for a Heat, which has no axes."""
    if isinstance(picture, LabChart):
        return _chart(picture, behind if isinstance(behind, LabChart) else None)
    if isinstance(picture, Density):
        return _density(picture)
    if isinstance(picture, ExponentHistogram):
        return _histogram(picture)
    if isinstance(picture, LabFrontier):
        return _frontier(picture, behind if isinstance(behind, LabFrontier) else None)
    raise TypeError(f"{type(picture).__name__} has no axes")


def _chart(chart: LabChart, behind: LabChart | None) -> Scene:
    earlier = [line for line in behind.lines if not line.faint] if behind else []
    every = [*chart.lines, *earlier]
    xs = [x for line in every for x, y in zip(_xs(line), line.y, strict=False) if y is not None]
    ys: list[float | None] = [v for line in every for v in (*line.y, *line.low, *line.high)]
    if chart.floor is not None:
        ys += [-chart.floor, chart.floor]
    x = axis_of(chart.x, xs, log=chart.log_x, whole=True)
    y = axis_of(chart.y, ys, log=chart.log_y, padded=True)
    floor = None
    if chart.floor is not None and not chart.log_y:
        low, high = y.place(-chart.floor), y.place(chart.floor)
        floor = (low or 0.0, 1.0 if high is None else high)
    lines = tuple(_line(line, x, y) for line in chart.lines)
    places = {line.name: place for place, line in enumerate(chart.lines)}
    old = tuple(_line(line, x, y, echo=places.get(line.name, -2)) for line in earlier)
    return Scene(chart.title, x, y, (*lines, *old), floor=floor)


def _xs(line: LabLine) -> Sequence[float]:
    return line.x if line.x is not None else [float(n) for n in range(1, len(line.y) + 1)]


def _line(line: LabLine, x: Axis, y: Axis, *, echo: int = -1) -> SceneLine:
    """`echo` is -2 for a line of an earlier run that this one does not have."""
    earlier = echo != -1
    pieces: list[list[Place]] = [[]]
    last = ""
    for at, value in zip(_xs(line), line.y, strict=False):
        across, up = x.place(at), y.place(value)
        if across is None or up is None or not (-1e-9 <= up <= 1 + 1e-9):
            pieces.append([])
            continue
        pieces[-1].append((across, up))
        last = format_value(value, 3)
    band = tuple(
        (across, low, high)
        for at, a, b in zip(_xs(line), line.low, line.high, strict=False)
        if (across := x.place(at)) is not None
        and (high := y.place(b)) is not None
        and (low := 0.0 if (found := y.place(a)) is None else found) < high
    )
    name = f"{line.name} {BEFORE}" if earlier else line.name
    return SceneLine(
        name,
        tuple(tuple(piece) for piece in pieces if piece),
        () if earlier else band,
        line.faint or earlier,
        last,
        max(-1, echo),
    )


def _density(density: Density) -> Scene:
    x = axis_of(density.x, (density.left, density.right))
    y = axis_of(density.y, (density.low, density.high))
    # Logarithmic, because most cells have a thousandth of the fullest one's count.
    most = math.log1p(max((max(row, default=0) for row in density.counts), default=0)) or 1.0
    counts = tuple(tuple(math.log1p(n) / most for n in row) for row in density.counts)
    lines = tuple(_line(line, x, y) for line in density.lines)
    unmeasured = tuple(SceneLine(n.name, n.pieces, n.band, n.faint) for n in lines)
    return Scene(density.title, x, y, unmeasured, counts=counts, parted=bool(lines))


def _frontier(frontier: LabFrontier, behind: LabFrontier | None) -> Scene:
    earlier = behind.line if behind else ()
    places = [*frontier.line, *((p.x, p.y) for p in frontier.points), *earlier]
    x = axis_of(frontier.x, [0.0, *(at for at, _ in places)])
    y = axis_of(frontier.y, [at for _, at in places], padded=True)

    def line(name: str, points: Sequence[Place], faint: bool = False) -> SceneLine:
        across, up = tuple(p[0] for p in points), tuple(p[1] for p in points)
        found = _line(LabLine(name, up, across, faint=faint), x, y)
        return SceneLine(found.name, found.pieces, faint=faint)

    lines = [line("the best that can be had", frontier.line)]
    if earlier:
        lines.append(replace(line("the best", earlier, True), echo=0))
    points = tuple(
        ScenePoint(point.name, (across, up), point.faint)
        for point in frontier.points
        if (across := x.place(point.x)) is not None and (up := y.place(point.y)) is not None
    )
    return Scene(frontier.title, x, y, tuple(lines), points=points)


def _histogram(found: ExponentHistogram) -> Scene:
    shares = [
        (name, [n / (sum(counts) or 1) for n in counts], counts) for name, counts in found.series
    ]
    seen = [at for _, each, _ in shares for at, n in enumerate(each, found.first) if n > _RARE]
    first, last = (min(seen), max(seen) + 1) if seen else (found.first, found.first + 1)
    ends = [float(first), float(last)]
    for span in found.spans:
        # The range of a format may extend beyond the picture.
        ends += [max(span.low - found.shift, first - _AROUND)]
        ends += [min(span.high - found.shift, last + _AROUND)]
    x = exponents("magnitude", min(ends) - _BESIDE, max(ends) + _BESIDE)
    highest = max((share for _, each, _ in shares for share in each), default=0.0)
    y = axis_of("share of the values", (0.0, highest or 1.0))
    bars = []
    for name, each, _ in shares:
        edges = [_inside(x.place(found.first + at)) for at in range(len(each) + 1)]
        bars.append(
            SceneBars(
                name,
                tuple(
                    (edges[at], edges[at + 1], _inside(y.place(share)))
                    for at, share in enumerate(each)
                    if share > _RARE
                ),
            )
        )
    spans = []
    for span in found.spans:
        low, whole, high = (end - found.shift for end in (span.low, span.whole, span.high))
        notes = []
        for _, _, counts in shares:
            zero, over = beyond(found.first, counts, low, high)
            said = [f"{_percent(zero)} to 0"] if zero else []
            said += [f"{_percent(over)} too large"] if over else []
            notes.append(", ".join(said) or ALL_HELD)
        spans.append(
            SceneSpan(
                span.name,
                _inside(x.place(low)),
                _inside(x.place(whole)),
                _inside(x.place(high)),
                tuple(notes),
            )
        )
    title = found.title + (f", scaled by 2^{found.shift:g}" if found.shift else "")
    return Scene(title, x, y, bars=tuple(bars), spans=tuple(spans))


def beyond(first: int, counts: Sequence[int], low: float, high: float) -> tuple[float, float]:
    """The shares of values that become zero, and that are too large. Values below half of the
    smallest number, 2^low, round to zero. A power of two counts as too large only as a whole."""
    total = sum(counts)
    if not total:
        return 0.0, 0.0
    zero = sum(n for at, n in enumerate(counts, first) if at + 1 <= low - 1 + 1e-9)
    over = sum(n for at, n in enumerate(counts, first) if at >= high - 1e-9)
    return zero / total, over / total


def _percent(share: float) -> str:
    return f"{share:.2%}" if share >= 5e-5 else f"{share:.0e}"


def _inside(place: float | None) -> float:
    return min(1.0, max(0.0, place or 0.0))
