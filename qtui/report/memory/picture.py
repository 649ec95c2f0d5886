"""The predicted curve of a step as SVG for the HTML face: live bytes over the phases, stacked by
component."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from qtui.report.document import Picture
from qtui.report.faces.plot import svg_text, ticks
from qtui_core.memory.replay.record import Component
from qtui_core.memory.replay.timeline import Curve

WIDTH, HEIGHT = 960, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 190, 24, 40
GIB = 1 << 30
#: The least width in pixels of a phase that is named.
_NARROWEST = 44
#: Hues of one lightness, which is readable on light and dark pages; neighbours in the stack differ.
_HUES = {
    Component.WEIGHTS: 212,
    Component.QUANTIZATION: 300,
    Component.ADAPTERS: 188,
    Component.BUFFERS: 232,
    Component.WORKSPACES: 282,
    Component.OPTIMIZER: 165,
    Component.CACHE: 40,
    Component.GRADIENTS: 250,
    Component.INPUTS: 330,
    Component.ACTIVATIONS: 95,
    Component.LOSS: 4,
    Component.TEMPORARIES: 48,
}


def curve_picture(curve: Curve) -> Picture:
    """The picture of a curve, which must have points."""
    totals = curve.totals
    marks = ticks(0.0, max(totals) / GIB)
    high = marks[-1] * GIB
    count = len(curve.positions)

    def x(index: float) -> float:
        return LEFT + index / max(1, count - 1) * (WIDTH - LEFT - RIGHT)

    def y(nbytes: float) -> float:
        return HEIGHT - BOTTOM - nbytes / high * (HEIGHT - TOP - BOTTOM)

    label = f"Memory of one step, at most {max(totals) / GIB:.2f} GiB alive"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'aria-label="{escape(label)}">'
    ]
    for mark in marks:
        height = y(mark * GIB)
        parts.append(
            f'<line x1="{LEFT}" y1="{height:.1f}" x2="{WIDTH - RIGHT}" y2="{height:.1f}" '
            f'stroke="var(--line)"/>'
        )
        parts.append(svg_text(LEFT - 6, height + 4, f"{mark:g}", "end"))
    parts.append(svg_text(LEFT - 6, TOP - 8, "GiB", "end"))
    floor = [0] * count
    for order, (component, row) in enumerate(zip(curve.components, curve.bytes, strict=True)):
        roof = [below + own for below, own in zip(floor, row, strict=True)]
        edge = [f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(roof)]
        edge += [f"{x(i):.1f},{y(floor[i]):.1f}" for i in range(count - 1, -1, -1)]
        colour = f"hsl({_HUES[component]} 55% 55%)"
        name = escape(component.value)
        parts.append(
            f'<polygon points="{" ".join(edge)}" fill="{colour}"><title>{name}</title></polygon>'
        )
        top = TOP + 18 * (len(curve.components) - order)
        left = WIDTH - RIGHT + 14
        parts.append(f'<rect x="{left}" y="{top}" width="12" height="12" fill="{colour}"/>')
        parts.append(svg_text(left + 18, top + 11, component.value, "start"))
        floor = roof
    parts += _phases(curve, [x(_index(curve.positions, span.start)) for span in curve.spans])
    parts.append("</svg>")
    return Picture(
        "".join(parts),
        "The last step, event by event: what is alive, by what it is for. Nothing is measured; "
        "this is predicted from the configuration.",
    )


def _phases(curve: Curve, lefts: Sequence[float]) -> list[str]:
    """A line at the start of each phase, and its name if there is room."""
    rights = [*lefts[1:], float(WIDTH - RIGHT)]
    parts = []
    for span, left, right in zip(curve.spans, lefts, rights, strict=True):
        parts.append(
            f'<line x1="{left:.1f}" y1="{TOP}" x2="{left:.1f}" y2="{HEIGHT - BOTTOM}" '
            f'stroke="var(--soft)" stroke-dasharray="2 3"/>'
        )
        if right - left >= _NARROWEST:
            parts.append(svg_text((left + right) / 2, HEIGHT - BOTTOM + 18, span.name, "middle"))
    return parts


def _index(positions: Sequence[int], event: int) -> int:
    """The index of the first point at or after an event."""
    return next(
        (i for i, position in enumerate(positions) if position >= event), len(positions) - 1
    )
