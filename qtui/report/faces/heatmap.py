"""Draws a heat map in characters, or as an SVG element."""

from __future__ import annotations

from qtui.report.document import HeatMap

_SHADES = " ░▒▓█"
_ASCII_SHADES = " .:-=+*#%@"
#: Pixels of a cell, and of a letter of a label, in the SVG.
_CELL, _LETTER = 14, 7


def draw_lines(heat: HeatMap, *, ascii: bool) -> list[str]:
    """A line for each row: its label, then a character for each cell."""
    shades = _ASCII_SHADES if ascii else _SHADES
    width = max((len(label) for label, _ in heat.rows), default=0)
    return [
        f"{label:>{width}} |{''.join(_shade(share, shades) for share in cells)}|"
        for label, cells in heat.rows
    ]


def _shade(share: float, shades: str) -> str:
    """The shade of a share; the lightest is only for zero."""
    if share <= 0:
        return shades[0]
    return shades[min(len(shades) - 1, 1 + int(min(1.0, share) * (len(shades) - 1)))]


def draw_svg(heat: HeatMap) -> str:
    """The heat map as an SVG element with the colours of the page."""
    from html import escape  # imported here, as its table of entities is needed for HTML only

    columns = max((len(cells) for _, cells in heat.rows), default=0)
    labels = _LETTER * (2 + max((len(label) for label, _ in heat.rows), default=0))
    width, height = labels + columns * _CELL, len(heat.rows) * _CELL
    parts = [
        f'<svg class="heat" role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" xmlns="http://www.w3.org/2000/svg">'
    ]
    for row, (label, cells) in enumerate(heat.rows):
        top = row * _CELL
        text = f'<text x="{labels - 6}" y="{top + _CELL - 3}" text-anchor="end">'
        parts.append(f"{text}{escape(label)}</text>")
        for column, share in enumerate(cells):
            opacity = min(1.0, max(0.0, share))
            parts.append(
                f'<rect x="{labels + column * _CELL}" y="{top}" width="{_CELL}" '
                f'height="{_CELL}" fill-opacity="{opacity:.3f}"><title>{share:.3g}</title></rect>'
            )
    return "".join([*parts, "</svg>"])
