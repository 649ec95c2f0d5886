"""Curves as SVG for the HTML face, with the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from qtui_core.dataclass import dataclass

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 16, 48
TICKS = 6
LABEL_WIDTH, LABEL_HEIGHT = 130, 13


@dataclass(frozen=True)
class PlotSeries:
    """A named series of points (x, y). With `line` they are joined; otherwise each is marked, and
    named by `labels`."""

    name: str
    points: tuple[tuple[float, float], ...]
    line: bool = True
    labels: tuple[str, ...] = ()


def curve_svg(series: Sequence[PlotSeries], x_title: str, y_title: str) -> str:
    """A plot of finite points on linear axes as an <svg> element."""
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    low_x, high_x = min(min(xs), x_ticks[0]), max(max(xs), x_ticks[-1])
    low_y, high_y = min(min(ys), y_ticks[0]), max(max(ys), y_ticks[-1])

    def px(x: float) -> float:
        return LEFT + (x - low_x) / ((high_x - low_x) or 1) * (WIDTH - LEFT - RIGHT)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low_y) / ((high_y - low_y) or 1) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'aria-label="{escape(y_title)} against {escape(x_title)}">'
    ]
    for x in x_ticks:
        parts.append(_line(px(x), TOP, px(x), HEIGHT - BOTTOM))
        parts.append(svg_text(px(x), HEIGHT - BOTTOM + 16, f"{x:g}", "middle"))
    for y in y_ticks:
        parts.append(_line(LEFT, py(y), WIDTH - RIGHT, py(y)))
        parts.append(svg_text(LEFT - 6, py(y) + 4, f"{y:g}", "end"))
    parts.append(svg_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_title, "middle"))
    parts.append(svg_text(LEFT, TOP - 4, y_title, "start"))
    for one in series:
        if one.line:
            path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in one.points)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="var(--bar)" stroke-width="2"/>'
            )
            continue
        labels = one.labels or ("",) * len(one.points)
        places = [(px(x), py(y)) for x, y in one.points]
        for (x, y), below, label in zip(places, _label_lines(places), labels, strict=True):
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--warn)">'
                f"<title>{escape(label)}</title></circle>"
            )
            right = x > WIDTH * 0.8
            parts.append(
                svg_text(x - 8 if right else x + 8, below, label, "end" if right else "start")
            )
    parts.append("</svg>")
    return "".join(parts)


def _label_lines(places: Sequence[tuple[float, float]]) -> list[float]:
    """The y of each point's label: that of the point, or lower if another label is there."""
    lines = [0.0] * len(places)
    taken: list[tuple[float, float]] = []
    for index in sorted(range(len(places)), key=lambda i: places[i][1]):
        x, y = places[index]
        line = y + 4
        while any(abs(x - u) < LABEL_WIDTH and abs(line - v) < LABEL_HEIGHT for u, v in taken):
            line += 1
        taken.append((x, line))
        lines[index] = line
    return lines


def ticks(low: float, high: float) -> list[float]:
    """About TICKS round numbers that cover `low` to `high`."""
    span = (high - low) or abs(high) or 1.0
    rough = span / (TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--line)"/>'


def svg_text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
