"""LLM.int8() as lines: the chosen threshold, and the SQNR at each threshold."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.engine.answers.outliers import DecompositionSweep
from qtui.report.numbers import format_decibels
from qtui.report.pictures.glyphs import Glyphs
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Toned, TonedLine
from qtui_core.quantities import format_bytes

EIGHTHS = 8
WIDEST_POINT = 24


def threshold_lines(
    width: int, height: int, glyphs: Glyphs, found: DecompositionSweep | None, chosen: int
) -> Sequence[TonedLine]:
    """The slider of thresholds, and if there is room the SQNR at each as a bar."""
    if found is None:
        return ()
    title = shortened(f"LLM.int8() of {found.scheme}", width, glyphs.ellipsis)
    if not found.points:
        return [[(title, "title")], [("every element is zero", "label")]]
    point = found.points[chosen]
    lines: list[TonedLine] = [
        [(title, "title")],
        [
            (f"< {point.threshold:g} >", "strong"),
            (f" {point.columns:,} of {found.column_total:,} columns in 16 bits", "value"),
        ],
        [
            (f"{point.bits_per_parameter:.4g} bits  {format_bytes(point.bytes)}  ", "value"),
            (f"SQNR {format_decibels(point.sqnr_db)} dB", "strong"),
        ],
    ]
    rest = height - len(lines)
    if rest >= 4 and len(found.points) > 1:
        lines += _curve(width, rest, glyphs, found, chosen)
    return lines[:height]


def _curve(
    width: int, height: int, glyphs: Glyphs, found: DecompositionSweep, chosen: int
) -> list[TonedLine]:
    """A bar for the SQNR at each threshold, the highest at the left; a marker below the chosen
    one."""
    points = found.points
    step = max(1, min(WIDEST_POINT, (width - 6) // len(points)))
    known = [point.sqnr_db for point in points if point.sqnr_db is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    low = 0.0 if low < 0 or high - low < 1 else low - (high - low) * 0.15
    rows = height - 2
    lines: list[TonedLine] = []
    for y in range(rows):
        above_ground = rows - 1 - y
        label = f"{high:5.1f} " if y == 0 else f"{low:5.1f} " if y == rows - 1 else " " * 6
        line: list[Toned] = [(label, "label")]
        for at, point in enumerate(points):
            value = point.sqnr_db if point.sqnr_db is not None else high
            eighths = round((value - low) / ((high - low) or 1) * rows * EIGHTHS)
            cell = glyphs.eighths[max(0, min(EIGHTHS, eighths - above_ground * EIGHTHS))]
            width_of_bar = max(1, step - 1)
            line.append((cell * width_of_bar, "strong" if at == chosen else "bar"))
            line.append((" " * (step - width_of_bar), "label"))
        lines.append(line)
    marker = " " * (6 + chosen * step) + glyphs.marker
    lines.append([(marker, "strong")])
    first, last = f"{points[0].threshold:g}", f"{points[-1].threshold:g}"
    span = max(0, len(points) * step - len(first) - len(last))
    lines.append([(f"{'T':>5} " + first + " " * span + last, "label")])
    return lines
