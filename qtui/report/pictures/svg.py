"""A scene, bars, or a Heat, as one <svg> element.

Text and lines have the colours of the page; `standalone` gives them fixed colours, for a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from qtui.report.numbers import format_value
from qtui.report.pictures.bar_rows import bar_scales, bar_text, values_of
from qtui.report.pictures.cells import HUES, Place
from qtui.report.pictures.heat_rows import ScaleSides, scale_sides, shares_of
from qtui.report.pictures.scene import (
    FEW_POINTS,
    THE_RUN_BEFORE,
    Scene,
    SceneLine,
    height_at,
    scene_of,
)
from qtui_core.lab.results import Heat, LabBars, Picture

WIDTH, HEIGHT = 840, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 40, 44
SPAN = 20
_OWN: Final = {
    "var(--ink)": "#1b1f24", "var(--soft)": "#59636e", "var(--line)": "#d1d9e0",
    "var(--paper)": "#ffffff", "var(--bar)": HUES[0], "var(--warn)": "#9a6700",
}  # fmt: skip
_CELL, _ROW, _LINE = 96, 22, 14
#: A cell of a Heat that also has the matrices of its product.
_PRODUCT_CELL: Final = 140
_MARK: Final = "var(--warn)"
#: Points nearer than these pixels may have names that cover each other.
_NAMED: Final = 100
#: The average width of a letter in pixels, at most.
_LETTER: Final = 6.8


def picture_svg(picture: Picture, behind: Picture | None = None) -> str:
    """The picture as an element for a page with the CSS variables of the HTML face. Names are
    escaped."""
    if isinstance(picture, LabBars):
        return _bars(picture, behind if isinstance(behind, LabBars) else None)
    if isinstance(picture, Heat):
        return _heat(picture)
    return _scene(scene_of(picture, behind))


def standalone(svg: str) -> str:
    """The same element as a file of its own, on a white background."""
    for name, color in _OWN.items():
        svg = svg.replace(name, color)
    head, _, rest = svg.partition(">")
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'{head} {font} xmlns="http://www.w3.org/2000/svg">{paper}{rest}\n'


def _open(width: float, height: float, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'role="img" aria-label="{escape(label)}">'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", fill: str = "var(--ink)") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" '
        f'style="fill:{fill}">{escape(text)}</text>'
    )


def _stroke(x1: float, y1: float, x2: float, y2: float, color: str = "var(--line)") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'


def _box(x: float, y: float, width: float, height: float, fill: str, opacity: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" '
        f'height="{max(0.0, height):.1f}" fill="{fill}" fill-opacity="{opacity:.3f}"/>'
    )


def _hue(number: int, faint: bool) -> str:
    return "var(--soft)" if faint else HUES[number % len(HUES)]


def _px(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _py(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _scene(scene: Scene) -> str:
    height = HEIGHT + SPAN * len(scene.spans)
    beside = [*(f"{line.name} {line.last}" for line in scene.lines), *_span_notes(scene)]
    width = max([WIDTH, *(WIDTH - RIGHT + 20 + _LETTER * len(text) for text in beside)])
    parts = [_open(width, height, f"{scene.title}: {scene.y.title} over {scene.x.title}")]
    parts.append(_text(LEFT, 14, scene.title))
    parts.append(_text(LEFT, TOP - 8, scene.y.title, fill="var(--soft)"))
    parts += _axes(scene)
    parts += _counts(scene)
    if scene.floor is not None:
        low, high = map(_py, scene.floor)
        parts.append(_box(LEFT, high, WIDTH - LEFT - RIGHT, low - high, "var(--soft)", 0.18))
        parts.append(_text(LEFT + 6, high - 4, "no difference can be seen", fill="var(--soft)"))
    for number, kind in enumerate(scene.bars):
        parts += [
            _box(_px(a), _py(b), _px(z) - _px(a), _py(0) - _py(b), HUES[number % len(HUES)], 0.6)
            for a, z, b in kind.bars
        ]
    for number, line in enumerate(scene.lines):
        parts += _line(number, line)
    parts += _names(scene)
    placed: list[Place] = []
    for point in sorted(scene.points, key=lambda each: -each.at[1]):
        x, y = _px(point.at[0]), _py(point.at[1])
        named = y + 4
        while any(abs(x - a) < _NAMED and abs(named - b) < _LINE for a, b in placed):
            named += 1  # below the name of a point that is nearly there
        placed.append((x, named))
        drawn = f'fill="none" stroke="{_MARK}"' if point.faint else f'fill="{_MARK}"'
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {drawn}/>')
        right = point.at[0] > 0.7
        parts.append(
            _text(x - 8 if right else x + 8, named, point.name, "end" if right else "start")
        )
    for at, (span, note) in enumerate(zip(scene.spans, _span_notes(scene), strict=True)):
        y = HEIGHT + SPAN * at
        parts.append(_text(LEFT - 6, y + 4, span.name, "end"))
        # A format is no series, so its bar has none of their colours.
        for low, high, share in ((span.low, span.whole, 0.35), (span.whole, span.high, 0.9)):
            parts.append(_box(_px(low), y - 5, _px(high) - _px(low), 10, "var(--soft)", share))
        parts.append(_text(WIDTH - RIGHT + 10, y + 4, note))
    return "".join([*parts, "</svg>"])


def _span_notes(scene: Scene) -> list[str]:
    return [span.note([kind.name for kind in scene.bars]) for span in scene.spans]


def _axes(scene: Scene) -> Iterable[str]:
    for share, text in scene.x.marks:
        yield _stroke(_px(share), TOP, _px(share), HEIGHT - BOTTOM)
        yield _text(_px(share), HEIGHT - BOTTOM + 16, text, "middle", "var(--soft)")
    for share, text in scene.y.marks:
        yield _stroke(LEFT, _py(share), WIDTH - RIGHT, _py(share))
        yield _text(LEFT - 6, _py(share) + 4, text, "end", "var(--soft)")
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield _text(middle, HEIGHT - BOTTOM + 34, scene.x.title, "middle", "var(--soft)")


def _counts(scene: Scene) -> Iterable[str]:
    """The cells of a density; those below the first line are pale if the scene is parted."""
    rows = len(scene.counts)
    for row, counts in enumerate(scene.counts):
        columns = len(counts)
        for column, share in enumerate(counts):
            if share <= 0:
                continue
            x, y = column / columns, (row + 1) / rows
            middle = x + 0.5 / columns, y - 0.5 / rows
            lost = scene.parted and middle[1] < height_at(scene.lines[0], middle[0])
            fill = "var(--soft)" if lost else HUES[0]
            yield _box(
                _px(x), _py(y), (WIDTH - LEFT - RIGHT) / columns,
                (HEIGHT - TOP - BOTTOM) / rows, fill, share * (0.4 if lost else 0.9),
            )  # fmt: skip


def _points(places: Iterable[Place]) -> str:
    return " ".join(f"{_px(x):.1f},{_py(y):.1f}" for x, y in places)


def _line(number: int, line: SceneLine) -> Iterable[str]:
    color = _hue(number if line.echo < 0 else line.echo, line.faint and line.echo < 0)
    if line.band:
        upper = [(x, high) for x, _, high in line.band]
        lower = [(x, low) for x, low, _ in reversed(line.band)]
        yield f'<polygon points="{_points([*upper, *lower])}" fill="{color}" fill-opacity="0.18"/>'
    dash = ' stroke-dasharray="5 4"' if line.faint else ""
    for piece in line.pieces:
        yield (
            f'<polyline points="{_points(piece)}" fill="none" stroke="{color}" '
            f'stroke-width="2"{dash}/>'
        )
        if len(piece) <= FEW_POINTS and line.echo < 0:
            for x, y in piece:
                yield f'<circle cx="{_px(x):.1f}" cy="{_py(y):.1f}" r="3" fill="{color}"/>'


def _names(scene: Scene) -> Iterable[str]:
    """The names of lines at their ends, moved apart; those of bars in the corner."""
    ends: list[tuple[float, str, str]] = []
    for number, line in enumerate(scene.lines):
        if line.echo >= 0:
            continue
        at = line.pieces[-1][-1][1] if line.pieces else 0.0
        text = f"{line.name}  {line.last}" if line.last else line.name
        ends.append((_py(at), text, _hue(number, line.faint)))
    if any(line.echo >= 0 for line in scene.lines):
        ends.append((_py(0.0), f"dashed: {THE_RUN_BEFORE}", "var(--soft)"))
    if len(scene.bars) > 1:
        ends += [
            (TOP + _LINE * n, kind.name, HUES[n % len(HUES)]) for n, kind in enumerate(scene.bars)
        ]
    ends.sort()
    heights = _apart([y for y, _, _ in ends], HEIGHT - BOTTOM)
    for y, (_, text, color) in zip(heights, ends, strict=True):
        yield _text(WIDTH - RIGHT + 10, y + 4, text, fill=color)


def _apart(heights: Sequence[float], bottom: float) -> list[float]:
    found: list[float] = []
    for height in heights:
        found.append(max(height, found[-1] + _LINE) if found else height)
    last = bottom + _LINE
    for at in range(len(found) - 1, -1, -1):
        found[at] = min(found[at], last - _LINE)
        last = found[at]
    return found


def _bars(found: LabBars, behind: LabBars | None) -> str:
    """Horizontal bars, each with its value behind it and a whisker over the seeds."""
    every = [bar for _, bars in found.groups for bar in bars]
    left = 20 + _LETTER * max((len(bar.name) for bar in every), default=0)
    beside = _LETTER * max((len(bar_text(bar, spread=True)) for bar in every), default=0)
    wide = WIDTH - left - beside - 20
    height = 30 + _ROW * (len(every) + len(found.groups)) + 24 * bool(behind)
    parts = [_open(WIDTH, height, found.title), _text(8, 14, found.title)]
    y = 30.0
    for (name, bars), scale in zip(found.groups, bar_scales(found, behind), strict=True):
        notes = [bar.note for bar in bars if bar.note]
        parts.append(_text(8, y + 15, ": ".join([name, *notes]), fill="var(--soft)"))
        y += _ROW
        zero, earlier = left + wide * scale.zero, values_of(behind, name)
        parts.append(_stroke(zero, y, zero, y + _ROW * len(bars)))
        for number, bar in enumerate(bars):
            end = left + wide * scale.place(bar.value)
            color = HUES[number % len(HUES)]
            parts.append(_text(left - 8, y + 15, bar.name, "end"))
            parts.append(_box(min(zero, end), y + 3, abs(end - zero), _ROW - 6, color, 0.75))
            if bar.low is not None and bar.high is not None and bar.low < bar.high:
                low, high = (left + wide * scale.place(at) for at in (bar.low, bar.high))
                parts.append(_stroke(low, y + _ROW / 2, high, y + _ROW / 2, "var(--ink)"))
            if bar.name in earlier:
                at = left + wide * scale.place(earlier[bar.name])
                parts.append(
                    f'<circle cx="{at:.1f}" cy="{y + _ROW / 2:.1f}" r="4" fill="{_MARK}"/>'
                )
            parts.append(_text(left + wide + 10, y + 15, bar_text(bar, spread=True)))
            y += _ROW
    if behind is not None:
        parts.append(f'<circle cx="14" cy="{y + 14:.1f}" r="4" fill="{_MARK}"/>')
        parts.append(_text(24, y + 18, THE_RUN_BEFORE, fill="var(--soft)"))
    return "".join([*parts, "</svg>"])


def _heat(found: Heat) -> str:
    """A Heat as a table of boxes: the larger the number, the darker the box."""
    left = 20 + 7 * max((len(name) for name in found.rows), default=0)
    cell = _PRODUCT_CELL if found.products else _CELL
    said = (
        f"{found.unit}: the darker the larger, {'by logarithms' if found.log else 'in proportion'}"
    )
    if found.products:
        said += "; beside it scales: orange ones are outside of the sum, grey ones inside"
    width = max(left + cell * len(found.columns) + 20, _LETTER * len(said))
    height = 60 + _ROW * len(found.rows) + 30
    parts = [_open(width, height, found.title), _text(8, 14, found.title)]
    for at, name in enumerate(found.columns):
        parts.append(_text(left + cell * (at + 0.5), 40, name, "middle", "var(--soft)"))
    for row, (name, shares) in enumerate(zip(found.rows, shares_of(found), strict=True)):
        y = 50 + _ROW * row
        parts.append(_text(left - 8, y + 15, name, "end"))
        for at, share in enumerate(shares):
            x, value = left + cell * at, found.values[row][at]
            parts.append("<g>")
            if share is not None:
                parts.append(_box(x, y, cell - 2, _ROW - 2, HUES[0], 0.08 + 0.82 * share))
            text = format_value(value, 3)
            middle = x + (cell - 2) / (4 if found.products else 2)
            parts.append(f"{_text(middle, y + 15, text, 'middle')}</g>")
            if found.products:
                parts += _matrices(scale_sides(found, row, at), x + 0.75 * cell, y)
    parts.append(_text(8, height - 10, said, fill="var(--soft)"))
    return "".join([*parts, "</svg>"])


def _matrices(at: ScaleSides, middle: float, y: float) -> Iterable[str]:
    """The two matrices of a product, with a bar for each vector of scales."""
    if at.note:
        yield _text(middle, y + 15, at.note, "middle")
        return
    yield _text(middle - 11, y + 15, at.left, "middle")
    yield _text(middle + 11, y + 15, at.right, "middle")
    for side, (has, off) in enumerate(zip(at.sides, (-22, -4, 1, 19), strict=True)):
        if has:
            color = HUES[1] if side in (0, 3) else "var(--soft)"
            yield _box(middle + off, y + 2, 3, _ROW - 6, color, 0.9)
