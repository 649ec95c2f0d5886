"""The text face for a terminal, or for a pipe with colour or a width: rich tables. For other
streams qtui.report.faces.plain writes the same lines."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

from rich.console import Console
from rich.padding import Padding
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from qtui.report.document import Document, Facts, HeatMap, Picture, Plotted, Table, Tone
from qtui.report.faces.columns import GAP, INDENT, lay_out, with_bars
from qtui.report.faces.heatmap import draw_lines
from qtui.report.faces.plain import PICTURE_WIDTH, PIPE_WIDTH, draw_bar, to_ascii

BOLD, DIM = Style(bold=True), Style(dim=True)

_TONES: dict[Tone, Style] = {
    "": Style(),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red"),
    "dim": DIM,
}
#: Tones of the pictures of experiments.
_PAINTS: dict[str, Style] = {
    "title": BOLD,
    "quiet": DIM,
    "strong": BOLD,
    **{
        f"hue{number}": Style(color=color)
        for number, color in enumerate(
            ("blue", "yellow", "green", "magenta", "cyan", "red", "bright_blue")
        )
    },
}


def write_text(
    document: Document, stream: TextIO, *, color: str = "auto", ascii: bool = False
) -> None:
    """Writes a report to `stream`. `color` is auto, truecolor, 256, 16 or none; auto uses colour
    only in a terminal that supports it."""
    console = make_console(stream, color=color)
    with console.capture() as captured:
        _print(document, console, ascii)
    text = captured.get()
    if not stream.isatty():
        # Tables pad their cells with blanks, which a file or a pipe does not need.
        text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    stream.write(to_ascii(text) if ascii else text)


def make_console(stream: TextIO, *, color: str = "auto") -> Console:
    """A console for `stream` that obeys `color`, NO_COLOR and the width of the terminal."""
    terminal = stream.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if terminal else _width_of_a_pipe()
    system = {"truecolor": "truecolor", "256": "256", "16": "standard", "none": None}.get(
        color, "auto" if terminal else None
    )
    return Console(
        file=stream,
        width=width,
        color_system=system,  # type: ignore[arg-type]
        force_terminal=terminal or color in ("truecolor", "256", "16"),
        no_color=True if color == "none" else None,
        highlight=False,
        emoji=False,
        soft_wrap=width == PIPE_WIDTH,
    )


def _width_of_a_pipe() -> int:
    """The width of a pipe: COLUMNS if it is set, else PIPE_WIDTH."""
    columns = os.environ.get("COLUMNS", "")
    return min(PIPE_WIDTH, max(20, int(columns))) if columns.isdecimal() else PIPE_WIDTH


def _print(document: Document, console: Console, ascii: bool) -> None:
    if document.title:
        console.print(Text(document.title, style=BOLD))
    for section in document.sections:
        console.print()
        console.print(Text(section.title, style=Style(bold=True, underline=not ascii)))
        for block in section.blocks:
            if isinstance(block, Facts):
                _print_facts(block, console)
            elif isinstance(block, Table):
                _print_table(block, console, ascii)
            elif isinstance(block, HeatMap):
                _print_heat_map(block, console, ascii)
            elif isinstance(block, Plotted):
                _print_plotted(block, console, ascii)
            elif not isinstance(block, Picture):
                console.print(Padding(Text(block), (0, INDENT)))
    if document.conclusion:
        console.print()
        console.print(Text(document.conclusion, style=BOLD))


def _print_facts(facts: Facts, console: Console) -> None:
    grid = RichTable.grid(padding=(0, GAP))
    grid.add_column()
    grid.add_column(overflow="fold")
    for name, value in facts.pairs:
        grid.add_row(Text(" " * INDENT + name, style=DIM), Text(value))
    console.print(grid)


def _print_table(table: Table, console: Console, ascii: bool) -> None:
    bars = [draw_bar(share, ascii) for share in table.bars]
    columns, rows = with_bars(table, bars)
    plain: Tone = ""
    tones = table.tones or (plain,) * len(rows)
    for part in lay_out(columns, rows, console.width):
        console.print()
        _print_line(part.header, BOLD, console)
        rule = ("-" if ascii else "─") * (part.width - INDENT)
        _print_line(" " * INDENT + rule, DIM, console)
        for lines, tone in zip(part.rows, tones, strict=True):
            for line in lines:
                _print_line(line, _TONES[tone], console)
    if table.note:
        console.print()
        console.print(Padding(Text(table.note, style=DIM), (0, INDENT)))


def _print_heat_map(heat: HeatMap, console: Console, ascii: bool) -> None:
    for line in draw_lines(heat, ascii=ascii):
        _print_line(" " * INDENT + line, Style(), console)
    if heat.note:
        console.print()
        console.print(Padding(Text(heat.note, style=DIM), (0, INDENT)))


def _print_plotted(block: Plotted, console: Console, ascii: bool) -> None:
    """Prints a picture as wide as the terminal, with lines in the terminal's colours."""
    from qtui.report.pictures.drawing import picture_lines
    from qtui.report.pictures.glyphs import Brush

    width = min(console.width - 2 * INDENT, PICTURE_WIDTH)
    console.print()
    for line in picture_lines(block.picture, width, None, Brush(ascii=ascii)):
        text = Text(" " * INDENT)
        for put in sorted(line, key=lambda each: each.column):
            text.pad_right(INDENT + put.column - text.cell_len)
            text.append(put.text, _PAINTS.get(put.tone, Style()))
        console.print(text, no_wrap=True, overflow="ignore", crop=False)


def _print_line(line: str, style: Style, console: Console) -> None:
    console.print(Text(line, style=style), no_wrap=True, overflow="ignore", crop=False)
