"""The loss over the steps, as a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, TypeGuard

from rich.style import Style
from textual.strip import Strip

from qtui.screen.curve.dots import ACROSS, Track, cells_of_track
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn import DrawnLines
from qtui.screen.widgets.line import Line, shortened
from qtui_core.live.state import RunState

AXIS = 7


class LossPicture(DrawnLines):
    """Its first and last value in words, and all of them as a line; losses that are no numbers
    are gaps that the words tell."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"loss--heading", "loss--axis", "loss--line"}
    DEFAULT_CSS = """
    LossPicture {
        & > .loss--heading { color: $primary; text-style: bold; }
        & > .loss--axis { color: $quiet; }
        & > .loss--line { color: $success; text-style: bold; }
    }
    """

    def __init__(self, drawing: Drawing) -> None:
        super().__init__()
        self.drawing = drawing
        self._losses: tuple[tuple[int, float | None], ...] = ()
        self._asked: int | None = None
        self._rows: dict[int, list[tuple[int, str]]] = {}
        self._drawn_for: tuple[object, ...] = ()

    def show(self, losses: Sequence[tuple[int, float | None]], asked: int | None) -> None:
        """(step, loss) so far, of as many steps as were asked for; None goes on until stopped."""
        if (tuple(losses), asked) != (self._losses, self._asked):
            self._losses, self._asked = tuple(losses), asked
            self.refresh()

    def show_run(self, state: RunState) -> None:
        """The loss of a run so far."""
        asked = state.header.steps if state.header is not None else None
        self.show([(taken.step, taken.loss) for taken in state.steps], asked)

    @property
    def text(self) -> str:
        """The picture as plain text, for a copy."""
        lines = (self.render_line(y).text.rstrip() for y in range(self.size.height))
        return "\n".join(lines).rstrip()

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        line = Line(width, self.base_style)
        heading = self.get_component_rich_style("loss--heading", partial=True)
        axis = self.get_component_rich_style("loss--axis", partial=True)
        if y == 0:
            line.put(0, "loss", heading)
            words = shortened(self._words(), width - 5, self.drawing.glyphs.ellipsis)
            line.put(5, words, axis)
            return line.strip()
        known = [loss for _, loss in self._losses if _is_number(loss)]
        tall = height - 2
        if len(known) < 2 or tall < 2 or width < AXIS + 8:
            return line.strip()
        low, high = min(known), max(known)
        if y == height - 1:
            self._steps(line, axis)
            return line.strip()
        row = tall - y
        if row == tall - 1:
            line.put_right(AXIS - 1, f"{high:.3g}", axis)
        elif row == 0:
            line.put_right(AXIS - 1, f"{low:.3g}", axis)
        style = self.get_component_rich_style("loss--line", partial=True)
        for column, sign in self._cells(low, high, tall, width - AXIS).get(row, ()):
            line.put(AXIS + column, sign, style)
        return line.strip()

    def _cells(
        self, low: float, high: float, tall: int, width: int
    ) -> dict[int, list[tuple[int, str]]]:
        """Row from the ground -> (column, sign) of the line; made once for all rows."""
        wanted = (self._losses, self._asked, tall, width)
        if wanted != self._drawn_for:
            self._drawn_for, self._rows = wanted, {}
            track = Track("loss", "thick", self._points(low, width))
            span = max(high - low, 1e-12 + abs(high) * 1e-6)
            cells = cells_of_track(track, tall, span, ascii=self.drawing.ascii)
            for (row, column), sign in cells.items():
                self._rows.setdefault(row, []).append((column, sign))
        return self._rows

    def _last(self) -> int:
        """The step at the right edge."""
        done = max((step for step, _ in self._losses), default=1)
        return max(done, self._asked or 0, 2)

    def _points(self, low: float, width: int) -> tuple[float | None, ...]:
        points: list[float | None] = [None] * (width * ACROSS)
        last = self._last()
        for step, loss in self._losses:
            if _is_number(loss):
                points[(step - 1) * (len(points) - 1) // (last - 1)] = loss - low
        return tuple(points)

    def _steps(self, line: Line, axis: Style) -> None:
        line.put(AXIS, "1", axis)
        line.put_right(line.width, f"step {self._last():,}", axis)

    def _words(self) -> str:
        known = [loss for _, loss in self._losses if _is_number(loss)]
        lost = sum(loss is not None and not _is_number(loss) for _, loss in self._losses)
        if not self._losses:
            return "after the first step"
        if not known:
            return "no number in any step" if lost else "none: an inference"
        if lost:
            return f"no number in {lost} of {len(self._losses)}"
        arrow = self.drawing.glyphs.arrow
        return f"{known[0]:.3f}" if len(known) == 1 else f"{known[0]:.3f} {arrow} {known[-1]:.3f}"


def _is_number(loss: float | None) -> TypeGuard[float]:
    return loss is not None and math.isfinite(loss)
