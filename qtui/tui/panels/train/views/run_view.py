"""The Run view: the predicted curve, with the measured lines over it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from qtui.screen.widgets.text_picture import Canvas, TextLine
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView
from qtui.tui.panels.train.views.gap_view import GapView
from qtui.tui.panels.train.views.log_view import held_lines
from qtui.tui.panels.train.views.loss_view import LossView
from qtui.tui.panels.train.views.phases_view import PhasesView, phase_lines


class RunView(TrainView):
    """The curve, and below it the phases, the gap and the loss if there is room."""

    TITLE = "Run"
    HELP = """\
**Run**: the predicted curve of a step in muted colours, stacked as in the Memory panel. Over it are
the measured bytes: *allocated* by tensors, *reserved* by the allocator, *device* used by all
processes. Time within a phase is stretched over the operations of the phase. A line shows the
largest samples of the last steps; level lines are the exact peak of each phase. `F` leaves out the
bytes that are always there. Without a GPU the lines are the bytes of live tensors, and the estimate
has no workspaces.

"""

    def show(self, shown: RunShown) -> None:
        self.show_curve(shown)
        body, panel = self.panel.body, self.panel
        body.phases.show(partial(self.draw, shown))
        body.gap.show(partial(panel.view_of(GapView).draw, shown))
        body.loss.show(partial(panel.view_of(LossView).draw, shown))

    def draw(self, shown: RunShown, canvas: Canvas) -> Sequence[TextLine]:
        """The phases; if memory ran out, the components with the most memory come first."""
        fault = shown.state.fault
        if shown.there and fault is not None and fault.fatal and fault.largest:
            return held_lines(fault, canvas)[: canvas.height]
        return self.panel.view_of(PhasesView).draw(shown, canvas)

    def show_curve(self, shown: RunShown) -> None:
        """Draws the curve alone."""
        panel, body, state = self.panel, self.panel.body, shown.state
        header = state.header
        if not shown.there and panel.trouble:
            body.show_message(panel.way_out)
            return
        if header is not None and header.predicted is None:
            # Without an estimate there is no curve; the table has the measured bytes.
            body.show_text(partial(phase_lines, state))
            return
        body.show_curve()
        panel.painter.curve()

    def copy_text(self) -> str:
        return self.panel.body.curve.text
