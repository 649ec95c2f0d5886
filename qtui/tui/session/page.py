"""One page of a session: every view that was looked at, with its picture, table and sentence."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from html import escape
from typing import Final

from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME

from qtui.report.document import (
    Block,
    Column,
    Document,
    Facts,
    Picture,
    Section,
    Table,
    printable_document,
)
from qtui.report.faces.html import to_html
from qtui.tui.session.visits import MOST_ROWS, Visit
from qtui_core.extras import installed_version
from qtui_core.quantities import plural

#: Of a cell of the screen, in pixels.
_WIDE: Final = 8.4
_HIGH: Final = 18
_LIBRARIES: Final = ("qtui", "numpy", "textual", "torch", "transformers")


def session_page(visits: Sequence[Visit], facts: Sequence[tuple[str, str]]) -> str:
    """The page as HTML, the newest sentence first. `facts` are about the session: the model, the
    command line. It asks for nothing from elsewhere."""
    last = max(visits, key=lambda visit: visit.when)
    known = [(name, installed_version(name)) for name in _LIBRARIES]
    versions = ", ".join(f"{name} {found}" for name, found in known if found)
    pairs = (*facts, ("versions", f"{versions}, Python {platform.python_version()}"))
    seen = tuple((f"{v.title}, {v.when:%H:%M:%S}", v.sentence) for v in visits)
    document = Document(
        title=f"A session with {last.model}: {plural(len(visits), 'view')}",
        sections=(
            Section("This session", (Facts(pairs), "In the order of the first look:", Facts(seen))),
            *(Section(visit.title, _blocks(visit)) for visit in visits),
        ),
        conclusion=f"{last.title}: {last.sentence}",
    )
    return to_html(printable_document(document))


def _blocks(visit: Visit) -> tuple[Block, ...]:
    text = "\n".join("".join(s.text for s in line).rstrip() for line in visit.lines).rstrip()
    caption = f"As last seen at {visit.when:%H:%M:%S}, of {visit.model}"
    blocks: list[Block] = [visit.sentence]
    if visit.svg is not None:
        blocks.append(Picture(visit.svg, caption))
    blocks.append(Picture(screen_svg(visit.lines, visit.title), caption, text))
    if visit.command:
        blocks.append(f"The same on the command line: {visit.command}")
    if visit.trouble:
        blocks.append(f"Its table and its own picture could not be made: {visit.trouble}")
    if len(visit.table) > 1:
        head, *rows = visit.table
        more = f"The first {MOST_ROWS} rows; e in the view writes all." if visit.more_rows else ""
        numeric = [
            all(isinstance(row[at], int | float | None) for row in rows) for at in range(len(head))
        ]
        columns = tuple(Column(str(c), n) for c, n in zip(head, numeric, strict=True))
        blocks.append(Table(columns, tuple(tuple(map(_cell, row)) for row in rows), note=more))
    return tuple(blocks)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def screen_svg(lines: Sequence[Sequence[Segment]], title: str) -> str:
    """Lines of the screen as one <svg> element, in the colours that they have there."""
    across = max((sum(cell_len(s.text) for s in line) for line in lines), default=1)
    wide, high = across * _WIDE, len(lines) * _HIGH
    base = next((_ground(s.style) for line in lines for s in line if s.style), "#000000")
    parts = [
        f'<svg class="screen" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" '
        f'height="{high:g}" role="img" aria-label="{escape(title)}">',
        f'<rect width="100%" height="100%" fill="{base}"/>',
    ]
    for row, line in enumerate(lines):
        at, spans = 0, []
        for segment in Segment.simplify(line):
            style = segment.style or Style.null()
            width = cell_len(segment.text)
            ink, ground = _ink(style), _ground(style)
            if style.reverse:
                ink, ground = ground, ink
            x = at * _WIDE
            if ground != base:
                parts.append(
                    f'<rect x="{x:g}" y="{row * _HIGH}" width="{width * _WIDE:g}" '
                    f'height="{_HIGH}" fill="{ground}"/>'
                )
            if segment.text.strip():
                bold = ' font-weight="bold"' if style.bold else ""
                spans.append(
                    f'<tspan x="{x:g}" fill="{ink}"{bold} textLength="{width * _WIDE:g}" '
                    f'lengthAdjust="spacingAndGlyphs">{escape(segment.text)}</tspan>'
                )
            at += width
        if spans:
            parts.append(f'<text y="{row * _HIGH + 13}">{"".join(spans)}</text>')
    return "".join([*parts, "</svg>"])


def _ink(style: Style) -> str:
    return _hex(style.color, foreground=True)


def _ground(style: Style) -> str:
    return _hex(style.bgcolor, foreground=False)


def _hex(color: Color | None, *, foreground: bool) -> str:
    found = color or Color.default()
    return found.get_truecolor(SVG_EXPORT_THEME, foreground=foreground).hex
