"""The Train panel with the real child, which trains the demo model."""

from __future__ import annotations

import math
import os
import signal
from functools import reduce

import pytest
from screens import Running, screen_text, settled, until
from test_train_panel import ready

from qtui.tui.panels.train.panel import TrainPanel
from qtui.tui.panels.train.views.ranges_view import RangesView
from qtui_core.live.compare import by_phase
from qtui_core.live.state import RunState, after, read_recording
from qtui_core.memory.plan.run_plan import RunPlan

pytestmark = pytest.mark.slow

#: Of a process that imports torch on a machine with other work.
PATIENCE = 240.0


def choose_small(panel: TrainPanel, steps: int | None) -> None:
    """A plan whose steps take little time."""
    panel.change(RunPlan(method="lora", batch=1, sequence=64), None)
    panel.run_shown.steps = steps


async def test_two_real_steps_are_held_against_their_estimate(running: Running) -> None:
    async with running(start_panel="train", color="16") as pilot:
        panel = await ready(pilot)
        choose_small(panel, 2)
        await ready(pilot)
        await pilot.press("r")
        await until(pilot, lambda: panel.run_shown.state.over, PATIENCE)
        await until(pilot, lambda: not panel.run_shown.live, PATIENCE)
        await settled(pilot)
        state = panel.run_shown.state
        assert state.status == "done", state.log
        assert len(state.losses) == 2
        assert all(loss is not None and math.isfinite(loss) for loss in state.losses)
        rows = {row.name: row for row in by_phase(state)}
        for name in ("forward", "loss", "backward", "optimizer", "between steps"):
            error = rows[name].gap
            assert error is not None
            assert abs(error) < 0.1
        text = screen_text(pilot.app)
        assert "2 of 2 steps were run." in panel.sentence
        assert "tensors" in text
        assert state.adapters is not None
        assert state.adapters.reference_difference == 0  # the base is untouched
        # What was recorded is what was seen.
        assert panel.run_shown.path is not None
        recording = read_recording(panel.run_shown.path)
        assert recording.complaint == ""
        assert reduce(after, recording, RunState()) == state


async def test_a_killed_child_leaves_a_panel_that_runs_again(running: Running) -> None:
    async with running(start_panel="train", color="16") as pilot:
        panel = await ready(pilot)
        choose_small(panel, None)
        await ready(pilot)
        panel.show_view(panel.view_of(RangesView))
        await pilot.press("r")
        await until(pilot, lambda: panel.run_shown.state.ranges is not None, PATIENCE)
        first = panel.run_shown.state.ranges
        assert first is not None
        await until(pilot, lambda: "FP8 E4M3" in panel.sentence, PATIENCE)
        later = first.step + 1
        await until(pilot, lambda: panel.run_shown.state.ranges.step > later, PATIENCE)
        child = panel.run.process.child
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        await until(pilot, lambda: not panel.run_shown.live, PATIENCE)
        await settled(pilot)
        assert panel.run_shown.state.fault is not None
        assert panel.run_shown.state.fault.kind == "killed"
        assert "killed" in panel.sentence
        await pilot.press("r")
        await until(pilot, lambda: panel.run_shown.state.header is not None, PATIENCE)
        assert panel.run_shown.state.fault is None
        await pilot.press("x")
        await until(pilot, lambda: not panel.run_shown.live, PATIENCE)
        assert panel.run_shown.state.status == "stopped"
