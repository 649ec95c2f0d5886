"""Draws the parts of the Train panel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from qtui.screen.panel.asking import AskingPhase
from qtui.screen.plan.levels import headline
from qtui.tui.panels.train.body import Control
from qtui.tui.panels.train.levels import before_lines, run_lines
from qtui.tui.panels.train.recordings import SPEEDS
from qtui.tui.panels.train.shown import EACH, RunShown
from qtui.tui.panels.train.views.run_picture import Overlay
from qtui.tui.panels.train.views.tracks import overlay, stacked_prediction
from qtui_core.live.state import RunState
from qtui_core.memory.plan.options import BATCHES

if TYPE_CHECKING:
    from qtui.tui.panels.train.panel import TrainPanel

#: Below this width the title has no room for the progress.
TITLE_WIDE = 70


class TrainPainter:
    """Draws the panel from its current state."""

    def __init__(self, panel: TrainPanel) -> None:
        self._panel = panel
        self._standing: tuple[object, ...] = ()

    def all(self) -> None:
        panel = self._panel
        panel.draw_form()
        self.progress()
        self._standing = standing(panel.run_shown)
        panel.refresh_bindings()

    def news(self) -> None:
        """Draws what changes during a run; everything if the keys or the plan change."""
        panel = self._panel
        if standing(panel.run_shown) != self._standing:
            self.all()
        else:
            self.progress()

    def progress(self) -> None:
        panel = self._panel
        run, body, state = panel.run_shown, panel.body, panel.run_shown.state
        body.controls.show(controls_of(run))
        self.title()
        levels = partial(run_lines, state) if run.there else partial(before_lines, panel.shown, run)
        body.levels.show(levels)
        panel.view.show(run)
        panel.speak()

    def curve(self) -> None:
        """Draws the estimated curve with the lines of the run over it, as far as they are known."""
        panel, shown = self._panel, self._panel.run_shown
        body, state, header = panel.body, shown.state, shown.state.header
        if header is not None and header.predicted is not None:
            curve = header.predicted.curve
            body.curve.predict(
                stacked_prediction(curve), header.device.capacity_bytes, header.device.name
            )
            lines = overlay(state, curve, body.curve.places, body.curve.points)
            body.curve.over(lines, from_zero=shown.from_zero)
        elif header is None and panel.shown.answer is not None:
            fit, gpu = panel.shown.answer.fit, panel.shown.gpu
            capacity = fit.capacity_bytes if fit else None
            body.curve.predict(panel.shown.answer.curve, capacity, gpu.label if gpu else "")
            body.curve.over(Overlay(), from_zero=shown.from_zero)
        else:
            body.curve.clear()

    def title(self) -> None:
        panel = self._panel
        title, run, state = panel.body.title_line, panel.run_shown, panel.run_shown.state
        title.fraction = None
        title.note = ""
        title.silent = bool(run.silence or (panel.silence and panel.waits_for_engine))
        if not run.there:
            title.subject, title.details = headline(panel.shown)
            busy = panel.phase in (AskingPhase.OPENING, AskingPhase.WORKING) and not panel.trouble
            title.activity = "estimating" if busy else ""
            return
        header = state.header
        title.subject = header.model if header is not None else panel.shown.model
        wide = title.size.width >= TITLE_WIDE
        details = run_details(state)
        title.note = run_note(run) if wide else "  ".join((clock(seconds_of(run)), *details[-2:]))
        title.details = details if wide else ()
        title.activity = run_activity(run)
        title.fraction = run_fraction(run) if wide else None


def smaller(batch: int) -> Sequence[int]:
    """The smaller batches to try: all of them, or if there are many, the steps of the form."""
    if batch <= EACH:
        return range(1, batch)
    return [value for value in BATCHES if value < batch]


def standing(run: RunShown) -> tuple[object, ...]:
    """The parts of the state that decide which keys work and which plan is shown."""
    state = run.state
    there = state.header is not None
    return (run.live, run.player is not None, run.paused, run.waits_for, there, state.over)


def clock(seconds: float) -> str:
    """ "00:41"."""
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"


def seconds_of(run: RunShown) -> float:
    """The seconds of the run: the position of a replay, or the time since the start."""
    return run.player.seconds if run.player is not None else run.seconds


def run_note(run: RunShown) -> str:
    """The note of the title: "recording 00:41", or the position of a replay; before the recording
    begins only the time."""
    at = clock(seconds_of(run))
    if run.player is not None:
        return f"replay {at} of {clock(run.player.length)}"
    if run.path is None:
        return f"not recorded {at}" if run.complaint else at
    if run.complaint:
        return f"recorded in part {at}"
    return f"recording {at}" if run.live else f"recorded {at}"


def run_details(state: RunState) -> tuple[str, ...]:
    """The step and the phase: "step 3 of 20", "backward"."""
    if state.header is None:
        return ()
    of = f" of {state.header.steps}" if state.header.steps else ""
    step = (f"step {state.step}{of}",) if state.step else ()
    phase = (state.phase,) if state.phase and not state.over else ()
    return (*step, *phase) or ("before the first step",)


def run_activity(run: RunShown) -> str:
    """The status of the run, for the right end of the title."""
    status = run.state.status
    if run.player is not None:
        if status == "failed":
            return status
        fast = f" {run.player.speed}x" if run.player.speed > 1 else ""
        playing = "paused" if run.player.paused else "ended" if run.player.ended else "playing"
        return playing + fast
    return run.waits_for or {"waiting": "starting"}.get(status, status)


def run_fraction(run: RunShown) -> float | None:
    """The share of the run that is done, 0 to 1; None if that is unknown."""
    if run.player is not None:
        return run.player.seconds / run.player.length if run.player.length else None
    header = run.state.header
    if header is None or not header.steps or run.state.over:
        return None
    return min(1.0, len(run.state.steps) / header.steps)


def controls_of(run: RunShown) -> list[Control]:
    """The buttons with the actions that they have now."""
    if run.player is not None:
        word = "play" if run.player.paused else "pause"
        at = SPEEDS.index(run.player.speed)
        by = 1 if at + 1 < len(SPEEDS) else -at
        return [
            Control("Space", word, "pause"),
            Control("]", "step", "jump(1)"),
            Control(".", f"{run.player.speed}x", f"speed({by})"),
            Control("x", "close", "stop"),
        ]
    paused = run.paused or run.waits_for in ("pausing", "one step")
    pause = "resume" if run.live and paused else "pause"
    return [
        Control("r", "run", "run", enabled=not run.live),
        Control("Space", pause, "pause", enabled=run.live),
        Control("]", "step", "step"),
        Control("x", "stop" if run.live or not run.there else "clear", "stop", enabled=run.there),
    ]
