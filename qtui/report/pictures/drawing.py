"""The one way into this folder: a picture of an experiment, in cells or as SVG."""

from __future__ import annotations

from qtui.report.pictures.bar_rows import bar_lines
from qtui.report.pictures.cells import Brush, PaintedLine
from qtui.report.pictures.heat_rows import heat_lines
from qtui.report.pictures.in_cells import scene_lines
from qtui.report.pictures.scene import scene_of
from qtui_core.lab.results import Heat, LabBars, Picture

#: Cells of a picture in a report.
REPORT_HEIGHT = 20


def picture_lines(
    picture: Picture,
    width: int,
    height: int | None,
    brush: Brush,
    *,
    behind: Picture | None = None,
    scales: bool = False,
) -> list[PaintedLine]:
    """The lines of a picture in so many cells; without a height, as high as a report has it.

    `behind` is the same picture of an earlier run, drawn faint where it can be; `scales` draws
    where the scales of a Heat lie in place of its numbers.
    """
    if isinstance(picture, LabBars):
        return bar_lines(
            picture, width, height, brush, behind if isinstance(behind, LabBars) else None
        )
    if isinstance(picture, Heat):
        return heat_lines(picture, width, height, brush, scales=scales)
    return scene_lines(scene_of(picture, behind), width, height or REPORT_HEIGHT, brush)
