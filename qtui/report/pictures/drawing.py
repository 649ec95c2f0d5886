"""Draws any picture of an experiment in cells; `svg` draws it as SVG."""

from __future__ import annotations

from qtui.report.pictures.bar_rows import bar_lines
from qtui.report.pictures.cells import TextLine
from qtui.report.pictures.glyphs import Brush
from qtui.report.pictures.heat_rows import heat_lines
from qtui.report.pictures.scene import scene_of
from qtui.report.pictures.scene_cells import scene_lines
from qtui_core.lab.results import Heat, LabBars, Picture

#: The height of a picture in a report, in cells.
REPORT_HEIGHT = 20


def picture_lines(
    picture: Picture,
    width: int,
    height: int | None,
    brush: Brush,
    *,
    behind: Picture | None = None,
    scales: bool = False,
) -> list[TextLine]:
    """The lines of a picture in `width` by `height` cells; None is the height of reports.

    `behind` is the same picture of an earlier run, which is drawn faint if its kind allows that.
    `scales` draws the scales of a Heat in place of its numbers.
    """
    if isinstance(picture, LabBars):
        return bar_lines(
            picture, width, height, brush, behind if isinstance(behind, LabBars) else None
        )
    if isinstance(picture, Heat):
        return heat_lines(picture, width, height, brush, scales=scales)
    return scene_lines(scene_of(picture, behind), width, height or REPORT_HEIGHT, brush)
