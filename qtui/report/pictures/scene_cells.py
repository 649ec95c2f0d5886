"""Draws a Scene in the cells of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtui.report.pictures.cells import (
    BLANK,
    CellGrid,
    Paint,
    TextLine,
    Tone,
    dotted,
    grey,
    heat,
    hue,
)
from qtui.report.pictures.glyphs import Brush
from qtui.report.pictures.scene import (
    ALL_HELD,
    FEW_POINTS,
    THE_RUN_BEFORE,
    Scene,
    SceneLine,
    ScenePoint,
    SceneSpan,
    height_at,
)

#: Columns between two letters on a line, and the most columns of the names at the right.
_LETTERS_APART: Final = 26
_NAMES: Final = 34
#: From this width on the names of lines are beside the picture if all fit there, else below it.
_BESIDE: Final = 72
_LEAST_HEIGHT: Final = 4
#: Rows of a picture that are not of the plane, if its names stand beside it.
_AROUND: Final = 5
#: Below this height formats that hold every value have no text, and the name of the x axis is in
#: the row of its numbers, before the first or in place of the last.
_LOW: Final = 18
#: More points than this have letters in place of names.
_NAMED: Final = 5
#: The rows beside a point that may have its name, from the nearest.
_NAME_ROWS: Final = (0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5)
#: A longer name of the x axis has a row of its own.
_SHORT_TITLE: Final = 16
#: The longest name of the x axis that is written before its numbers.
_BEFORE: Final = 6


def scene_lines(scene: Scene, width: int, height: int, brush: Brush) -> list[TextLine]:
    """The scene in `width` by `height` cells: title, plot with axes, and the names of its lines."""
    return _Plane(scene, width, height, brush).draw()


class _Plane:
    """The layout of a picture, and its cells.

    The rows are: title, name of the y axis, the plot, the x axis, its numbers, a row for each span,
    and the names of lines if they are not beside the plot.
    """

    def __init__(self, scene: Scene, width: int, height: int, brush: Brush) -> None:
        self.scene, self.brush = scene, brush
        self.names = _names(scene, brush)
        spans = max((len(span.name) for span in scene.spans), default=0)
        self.left = max([len(text) for _, text in scene.y.marks] + [spans, 3]) + 1
        gutter = max((len(name) for name, _ in self.names), default=0) + 1
        fit = gutter <= min(_NAMES, width // 3) and len(self.names) <= height - _AROUND
        self.beside = bool(self.names) and width >= _BESIDE and fit
        self.gutter = gutter if self.beside else 1
        self.width = max(8, width - self.left - self.gutter)
        last = max((share for share, _ in scene.x.marks), default=0.0)
        crowded = last > 1 - (len(scene.x.title) + 4) / self.width
        self.before = crowded and height < _LOW and len(scene.x.title) <= _BEFORE
        if self.before:
            self.left = max(self.left, len(scene.x.title) + 2)
            self.width = max(8, width - self.left - self.gutter)
        self.titled = (crowded and height >= _LOW) or len(scene.x.title) > _SHORT_TITLE
        self.legend = [] if self.beside else _flowed(self.names, width)
        letters = [_letter(number) for number in range(len(scene.bars))]
        self.texts = [span.note(letters) for span in scene.spans]
        if height < _LOW:  # no row for what goes without saying
            self.texts = ["" if text == ALL_HELD else text for text in self.texts]
        pairs = zip(scene.spans, self.texts, strict=True)
        self.notes = [self._note_at(span, text, width) for span, text in pairs]
        below = 2 + self.titled + len(scene.spans) + self.notes.count(None)
        self.height = max(_LEAST_HEIGHT, height - 2 - below - len(self.legend))
        self.grid = CellGrid(width, 2 + self.height + below + len(self.legend))
        self.top = 2

    def _note_at(self, span: SceneSpan, text: str, width: int) -> int | None:
        """The column of the text on what a span does not hold, left or right of its bar; None if it
        needs a row of its own."""
        first, last = self._column(span.low), self._column(span.high)
        if last + 3 + len(text) <= width:
            return last + 2
        if first - 2 - len(text) >= self.left:
            return first - 1 - len(text)
        return None if text else self.left

    def draw(self) -> list[TextLine]:
        scene, grid = self.scene, self.grid
        grid.put_title(scene.title, self.brush.glyphs.ellipsis)
        grid.put(1, 0, scene.y.title, "quiet")
        self._counts()
        self._floor()
        self._bars()
        for number, line in enumerate(scene.lines):
            self._band(line, hue(number))
        taken: set[tuple[int, int]] = set()
        order = sorted(range(len(scene.lines)), key=lambda n: (not scene.lines[n].faint, -n))
        for number in order:
            self._line(number)
        for number in order:
            self._letters(number, taken)
        self._points()
        self._axes()
        self._spans()
        self._legend()
        return list(grid.lines())

    # Places

    def _row(self, share: float) -> int:
        """The row of the grid at a share of the height."""
        at = min(self.height - 1, max(0, int(share * self.height)))
        return self.top + self.height - 1 - at

    def _column(self, share: float) -> int:
        return self.left + min(self.width - 1, max(0, int(share * self.width)))

    def _tone(self, number: int) -> Tone | Paint:
        return _tone_of(self.scene, number)

    # What lies behind

    def _counts(self) -> None:
        counts = self.scene.counts
        if not counts:
            return
        border = [0.0] * self.width
        if self.scene.parted:
            line = self.scene.lines[0]
            border = [height_at(line, (at + 0.5) / self.width) for at in range(self.width)]
        for up in range(self.height):
            rows = counts[slice(*_bins(up, self.height, len(counts)))]
            for across in range(self.width):
                bins = slice(*_bins(across, self.width, len(counts[0])))
                share = max((n for row in rows for n in row[bins]), default=0.0)
                if share <= 0:
                    continue
                lost = (up + 0.5) / self.height < border[across]
                row, column = self.top + self.height - 1 - up, self.left + across
                if self.brush.shaded:
                    sign = self.brush.glyphs.dot if lost else self.brush.shade(share)
                    self.grid.put(row, column, sign, "quiet" if lost else "value")
                else:
                    self.grid.put(row, column, " ", grey(share) if lost else heat(share))

    def _floor(self) -> None:
        floor = self.scene.floor
        if floor is None:
            return
        for row in range(self._row(floor[1]), self._row(floor[0]) + 1):
            self.grid.put(row, self.left, self.brush.glyphs.dot * self.width, "quiet")

    def _bars(self) -> None:
        """Draws bars: those of the first kind are filled, of others only the tops are drawn."""
        for number, kind in enumerate(self.scene.bars):
            tall: dict[int, float] = {}
            for left, right, share in kind.bars:
                first, last = self._column(left), self._column(right)
                for column in range(first, max(first + 1, last)):
                    tall[column] = max(tall.get(column, 0.0), share)
            for column, share in tall.items():
                eighths = max(1, round(share * self.height * 8))
                whole, rest = divmod(eighths, 8)
                if number:
                    row = self._row((eighths - 1) / 8 / self.height)
                    self.grid.put(row, column, _letter(number), hue(number))
                    continue
                for up in range(whole + bool(rest)):
                    sign = self.brush.glyphs.eighths[8 if up < whole else rest]
                    self.grid.put(self.top + self.height - 1 - up, column, sign, hue(number))

    def _band(self, line: SceneLine, tone: Paint) -> None:
        if not line.band:
            return
        at = 0
        for column in range(self.width):
            share = column / max(1, self.width - 1)
            while at + 1 < len(line.band) and abs(line.band[at + 1][0] - share) <= abs(
                line.band[at][0] - share
            ):
                at += 1
            place, low, high = line.band[at]
            if abs(place - share) > 1.5 / self.width + 1 / len(line.band):
                continue
            rows = (self._row(high), self._row(low))
            if rows[0] < rows[1]:
                for row in range(rows[0], rows[1] + 1):
                    self.grid.put(row, self.left + column, self.brush.glyphs.shades[1], tone)

    # Lines and points

    def _line(self, number: int) -> None:
        line, tone = self.scene.lines[number], self._tone(number)
        masks = dotted(line.pieces, self.width, self.height, line.faint)
        for (row, column), mask in masks.items():
            letter = "." if line.echo >= 0 else _letter(number).lower()
            sign = letter if self.brush.ascii else chr(BLANK + mask)
            self.grid.put(self.top + row, self.left + column, sign, tone)

    def _letters(self, number: int, taken: set[tuple[int, int]]) -> None:
        """Writes the line's letter on it at intervals, as not everyone can tell the colours
        apart."""
        line = self.scene.lines[number]
        if line.echo >= 0:
            return
        points = [place for piece in line.pieces for place in piece]
        if len(points) <= FEW_POINTS:
            for x, y in points:
                self.grid.put(self._row(y), self._column(x), _letter(number), self._tone(number))
            return
        if len(self.names) < 2 and not line.faint:
            return
        cells: dict[int, int] = {}
        for row, column in dotted(line.pieces, self.width, self.height, False):
            cells[column] = max(row, cells.get(column, 0))
        offset = 4 + 6 * number % _LETTERS_APART
        for column in range(offset, self.width, _LETTERS_APART):
            row = cells.get(column, -1)
            if row < 0 or (row, column) in taken:
                continue
            taken.add((row, column))
            self.grid.put(self.top + row, self.left + column, _letter(number), self._tone(number))

    def _points(self) -> None:
        """Draws points, each with its name beside it, or below if that is taken. Many points have
        letters, which are listed with the names of the lines."""
        if _are_lettered(self.scene):
            taken: set[tuple[int, int]] = set()
            for number, point in enumerate(self.scene.points, len(self.scene.lines)):
                row, column = self._row(point.at[1]), self._column(point.at[0])
                while (row, column) in taken:
                    column += 1
                taken.add((row, column))
                self.grid.put(row, column, *_mark(number, point))
            return
        for point in sorted(self.scene.points, key=lambda each: -each.at[1]):
            row, column = self._row(point.at[1]), self._column(point.at[0])
            glyphs, (_, tone) = self.brush.glyphs, _mark(0, point)
            self.grid.put(row, column, glyphs.off if point.faint else glyphs.outlier, tone)
            text = point.name
            sides = (column + 2, column - 1 - len(text))
            places = ((row + down, side) for down in _NAME_ROWS for side in sides)
            for at, start in places:
                inside = self.top <= at < self.top + self.height and start >= self.left
                inside = inside and start + len(text) <= self.left + self.width
                if inside and self.grid.is_free(at, start, len(text)):
                    self.grid.put(at, start, text, "label")
                    break

    # What stands around

    def _axes(self) -> None:
        grid, scene, ground = self.grid, self.scene, self.top + self.height
        used: set[int] = set()
        for share, text in scene.y.marks:
            row = self._row(min(share, 0.9999))
            if row not in used and row - 1 not in used and row + 1 not in used:
                used.add(row)
                grid.put(row, self.left - 1 - len(text), text, "quiet")
        for row in range(self.top, ground):
            grid.put(row, self.left - 1, self.brush.glyphs.vertical, "quiet")
        grid.put(ground, self.left - 1, self.brush.glyphs.baseline * (self.width + 1), "quiet")
        free = 0
        end = self.left + self.width
        title = scene.x.title
        last = end if self.titled or self.before else end - len(title) - 2
        for share, text in scene.x.marks:
            column = max(0, min(self._column(share) - len(text) // 2, end - len(text)))
            if column >= free and column + len(text) <= last:
                grid.put(ground + 1, column, text, "quiet")
                free = column + len(text) + 2
        row = ground + 1 + self.titled
        grid.put(row, 0 if self.before else max(0, end - len(title)), title, "label")

    def _spans(self) -> None:
        row = self.top + self.height + 2 + self.titled
        shades = self.brush.glyphs.shades
        for span, text, at in zip(self.scene.spans, self.texts, self.notes, strict=True):
            first, whole, last = map(self._column, (span.low, span.whole, span.high))
            self.grid.put(row, 0, span.name[: self.left - 1].rjust(self.left - 1), "label")
            self.grid.put(row, first, shades[2] * (whole - first), "label")
            self.grid.put(row, whole, shades[4] * max(1, last - whole), "label")
            if at is None:
                row += 1
            self.grid.put(row, self.left if at is None else at, text, "label")
            row += 1

    def _legend(self) -> None:
        if not self.beside:
            first = self.grid.height - len(self.legend)
            for down, entries in enumerate(self.legend):
                for column, text, tone in entries:
                    self.grid.put(first + down, column, text, tone)
            return
        lines = [line for line in self.scene.lines if line.echo < 0]
        wanted = []
        for number, (text, tone) in enumerate(self.names):
            pieces = lines[number].pieces if number < len(lines) else ()
            end = pieces[-1][-1][1] if pieces else 0.0
            wanted.append((self._row(end), number, text, tone))
        column = self.left + self.width + 1
        rows = _apart([row for row, *_ in sorted(wanted)], self.top, self.height)
        for row, (_, _, text, tone) in zip(rows, sorted(wanted), strict=False):
            self.grid.put(row, column, text, tone)


def _letter(number: int) -> str:
    return chr(ord("A") + number % 26)


def _mark(number: int, point: ScenePoint) -> tuple[str, Tone]:
    """The letter of a point and its tone; small if it stands back."""
    return (_letter(number).lower(), "label") if point.faint else (_letter(number), "strong")


def _are_lettered(scene: Scene) -> bool:
    """Whether there are so many points that their names would be beside the wrong ones."""
    return len(scene.points) > _NAMED


def _tone_of(scene: Scene, number: int) -> Tone | Paint:
    line = scene.lines[number]
    if line.echo >= 0:
        return _tone_of(scene, line.echo)
    return "quiet" if line.faint else hue(number)


def _names(scene: Scene, brush: Brush) -> list[tuple[str, Tone | Paint]]:
    """The names of lines and kinds of bars, with their letters and last numbers, and the meaning of
    the shaded background."""
    found: list[tuple[str, Tone | Paint]] = []
    for number, line in enumerate(scene.lines):
        last = f"  {line.last}" if line.last else ""
        if line.echo < 0:
            found.append((f"{_letter(number)} {line.name}{last}", _tone_of(scene, number)))
    if len(scene.bars) > 1:
        found += [(f"{_letter(n)} {kind.name}", hue(n)) for n, kind in enumerate(scene.bars)]
    if _are_lettered(scene):
        first = len(scene.lines)
        marks = [(_mark(n, p), p) for n, p in enumerate(scene.points, first)]
        found += [(f"{letter} {p.name}", tone) for (letter, tone), p in marks]
    if any(line.echo >= 0 for line in scene.lines):
        found.append((f"{'..' if brush.ascii else '⠂⠂'} {THE_RUN_BEFORE}", "quiet"))
    if any(line.band for line in scene.lines):
        found.append((f"{brush.glyphs.shades[1]} spread", "quiet"))
    if scene.floor is not None:
        found.append((f"{brush.glyphs.dot} no difference", "quiet"))
    return found


def _flowed(
    names: Sequence[tuple[str, Tone | Paint]], width: int
) -> list[list[tuple[int, str, Tone | Paint]]]:
    """Names in lines of at most `width` cells."""
    lines: list[list[tuple[int, str, Tone | Paint]]] = []
    at = width
    for text, tone in names:
        if at + len(text) > width:
            lines.append([])
            at = 0
        lines[-1].append((at, text, tone))
        at += len(text) + 3
    return lines


def _apart(rows: Sequence[int], top: int, height: int) -> list[int]:
    """The rows, in order, moved so that all differ and are inside, if that is possible."""
    found: list[int] = []
    for row in rows:
        found.append(max(row, found[-1] + 1) if found else row)
    over = found[-1] - (top + height - 1) if found else 0
    if over > 0:
        last = top + height
        for at in range(len(found) - 1, -1, -1):
            found[at] = min(found[at], last - 1)
            last = found[at]
    return found


def _bins(at: int, cells: int, bins: int) -> tuple[int, int]:
    """The first bin of a cell and the end of its bins; a cell smaller than a bin shows that bin."""
    first = at * bins // cells
    return first, max(first + 1, (at + 1) * bins // cells)
