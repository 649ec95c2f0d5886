"""The curve of the step."""

from __future__ import annotations

from qtui.screen.plan.shown import Shown
from qtui.tui.panels.memory.view import MemoryView


class StepView(MemoryView):
    """The curve of live tensors, which the body draws."""

    TITLE = "Step"
    HELP = """\
**Step**: the tensors that are alive at each operation of a step, stacked by component: W weights,
R adapters, O optimizer states, G gradients, A activations, L loss, T temporaries. Below are the
phases.
"""

    def ready(self, shown: Shown) -> bool:
        return True

    def show(self, shown: Shown) -> None:
        body, answer = self.panel.body, shown.answer
        body.show_curve()
        if answer is None:
            body.curve.clear()
            return
        before = shown.before.curve if shown.before else None
        capacity = answer.fit.capacity_bytes if answer.fit else None
        body.curve.show(answer.curve, before, capacity, shown.gpu.label if shown.gpu else "")
