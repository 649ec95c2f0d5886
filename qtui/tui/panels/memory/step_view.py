"""The curve of the step."""

from __future__ import annotations

from qtui.screen.plan.shown import Shown
from qtui.tui.panels.memory.view import MemoryView


class StepView(MemoryView):
    """The curve of live tensors, which the body draws."""

    TITLE = "Step"
    HELP = """\
**Step**: the tensors that are alive at each operation of a step, stacked by component: W weights,
R adapters, O optimizer states, G gradients, A activations, L loss, T temporaries and
workspaces of kernels. Below are the phases.
"""

    def ready(self, shown: Shown) -> bool:
        return True

    def show(self, shown: Shown) -> None:
        self.panel.body.show_curve()
        self.panel.draw_curve()
