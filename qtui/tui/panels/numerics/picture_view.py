"""The picture of the current run, with its table below if there is room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from qtui.report.pictures.drawing import picture_lines
from qtui.screen.panel.keys import key_of
from qtui.screen.panel.view import View
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, paragraphs, wrapped
from qtui.tui.panels.numerics.keys import PICTURE_KEYS
from qtui.tui.panels.numerics.shown import NumericsShown
from qtui.tui.panels.numerics.table_view import table_lines
from qtui_core.lab.catalog import cost_text
from qtui_core.lab.results import ExponentHistogram, Findings, Heat, Picture

if TYPE_CHECKING:
    from qtui.screen.panel.asking import AskingPanel
    from qtui.tui.panels.numerics.panel import NumericsPanel

#: From this height on the table is below the picture. The picture keeps at least the following
#: lines and share of the height; a heat map its rows and the lines around them.
_TALL: Final = 26
_PICTURE: Final = 16
_SHARE: Final = 0.6
_AROUND: Final = 7
_TABLE: Final = 8
#: The largest height of a picture as a share of its width.
_SLIM: Final = 0.38


class PictureView(View[NumericsShown]):
    """One of the pictures of the current run."""

    TITLE = "Picture"
    HELP = """
**Picture**: `m` shows the next picture. An earlier run of the same experiment is drawn behind,
dotted; `b` chooses another, or none. Letters name the lines. Shading around zero marks differences
that are noise; around a line or at the end of a bar it is the spread over seeds or draws. In a heat
map of products `S` draws the vectors of scales beside the matrices: those at an outer side can be
taken out of the sum, those in the middle cannot. Below a histogram a bar for each format is the
range that it holds, pale where it holds values with fewer bits; `,` and `.` scale the values.
"""
    KEYS = PICTURE_KEYS
    CURSOR = True

    panel: NumericsPanel

    def __init__(self, panel: AskingPanel) -> None:
        super().__init__(panel)
        self._sizes: tuple[int, ...] = ()
        self._made_of: tuple[object, ...] = ()
        self._lines: Sequence[TextLine] = ()

    def draw(self, shown: NumericsShown, canvas: Canvas) -> Sequence[TextLine]:
        """The picture and the table; before a run, the experiment's question and settings."""
        drawn, run = shown.drawn, shown.run
        if drawn is None:
            if run is not None:
                return _waiting(shown, canvas)
            return _about(shown, canvas, key_of(self.panel, "numerics.run"))
        findings = run.result.findings if run is not None and run.result is not None else None
        made_of = drawn, shown.drawn_behind, findings
        sizes = canvas.width, canvas.height, shown.scales
        # A key that changes a setting draws the whole panel; an unchanged picture is reused.
        same = zip(made_of, self._made_of, strict=False)
        if not self._made_of or sizes != self._sizes or any(a is not b for a, b in same):
            self._lines = self._draw(drawn, shown, findings, canvas)
            self._sizes, self._made_of = sizes, made_of
        return self._lines

    def _draw(
        self, drawn: Picture, shown: NumericsShown, findings: Findings | None, canvas: Canvas
    ) -> Sequence[TextLine]:
        brush = self.panel.drawing.brush
        table: list[TextLine] = []
        height = canvas.height
        if height >= _TALL and findings is not None:
            kept = max(_PICTURE, int(height * _SHARE))
            if isinstance(drawn, Heat):
                kept = min(height - _TABLE, len(drawn.rows) + _AROUND)
            table = list(table_lines(findings, canvas.width, height - kept - 1))
            height -= len(table) + 1
        height = min(height, max(_PICTURE, int(canvas.width * _SLIM)))
        behind, scales = shown.drawn_behind, shown.scales
        lines = picture_lines(drawn, canvas.width, height, brush, behind=behind, scales=scales)
        return [*lines, *([[]] if table else []), *table]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        shown = self.panel.shown
        if action in ("picture", "turn"):
            return len(shown.pictures) > 1
        if action in ("move", "usual", "enter"):
            return False
        if action == "behind":
            return bool(shown.earlier)
        if action == "scales":
            return isinstance(shown.drawn, Heat) and bool(shown.drawn.products)
        if action == "scale":
            return isinstance(shown.drawn, ExponentHistogram)
        return True

    def _changed(self) -> None:
        self.panel.draw()

    def action_picture(self, by: int) -> None:
        shown = self.panel.shown
        shown.picture = (shown.picture + by) % max(1, len(shown.pictures))
        self._changed()

    def action_behind(self) -> None:
        shown = self.panel.shown
        shown.behind = (shown.behind + 1) % (len(shown.earlier) + 1)
        self._changed()

    def action_scales(self) -> None:
        shown = self.panel.shown
        shown.scales = not shown.scales
        self._changed()

    def action_scale(self, by: int) -> None:
        self.panel.shown.scale(by)
        self._changed()


def _about(shown: NumericsShown, canvas: Canvas, run: str) -> list[TextLine]:
    """The experiment's question, its cost, and its settings; `run` is the key that runs it."""
    experiment = shown.experiment
    lines: list[TextLine] = [
        [Put(0, line, "heading")] for line in wrapped(experiment.question, canvas.width)
    ]
    cost = cost_text(experiment.seconds)
    nothing = (
        shown.missing_weights or f"Nothing was run yet. {run} runs it, {cost}, on {shown.model}."
    )
    lines += [[], *paragraphs((nothing,), canvas.width, "value")]
    lines += [[], [Put(0, "Settings", "label")]]
    wide = max((len(row.name) for row in experiment.settings), default=0)
    for row in experiment.settings:
        first, *rest = wrapped(row.help, canvas.width - 4 - wide)
        name = Put(2, row.name.replace("_", " "), "label")
        lines.append([name, Put(4 + wide, first, "quiet")])
        lines += ([Put(4 + wide, line, "quiet")] for line in rest)
    return lines[: canvas.height]


def _waiting(shown: NumericsShown, canvas: Canvas) -> list[TextLine]:
    """The progress of each part, while there is no picture."""
    run = shown.run
    assert run is not None
    lines: list[TextLine] = [
        [Put(0, line, "heading")] for line in wrapped(run.experiment.question, canvas.width)
    ]
    lines.append([])
    for job in run.begun.jobs if run.begun else ():
        done = run.jobs.get(job)
        text, step = "waits", run.steps.get(job)
        if done is not None:
            text = done.fault or f"done in {done.seconds:.1f} s"
        elif step is not None:
            text = f"step {step[0]} of {step[1]}" if step[1] else "runs"
        lines.append([Put(2, job, "label"), Put(min(32, canvas.width // 2), text, "value")])
    return lines[: canvas.height]
