"""How the Train panel draws what it knows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from qtui.screen.panel.asking import AskingPhase
from qtui.screen.plan.levels import headline
from qtui.screen.widgets.text_picture import Canvas, TextLine
from qtui.tui.panels.train.body import Control
from qtui.tui.panels.train.levels import before_lines, run_lines
from qtui.tui.panels.train.picture import Overlay
from qtui.tui.panels.train.recordings import SPEEDS
from qtui.tui.panels.train.shown import RunShown, TrainViewName
from qtui.tui.panels.train.tables import draw_expected, draw_parts, draw_phases
from qtui.tui.panels.train.texts import draw_adapters, draw_gap, draw_log, held_lines
from qtui.tui.panels.train.tracks import overlay, stacked_prediction
from qtui_core.live.state import RunState
from qtui_core.memory.plan.options import BATCHES

if TYPE_CHECKING:
    from qtui.tui.panels.train.panel import TrainPanel

DRAWERS = {
    TrainViewName.PHASES: draw_phases,
    TrainViewName.PARTS: draw_parts,
    TrainViewName.GAP: draw_gap,
    TrainViewName.LOG: draw_log,
    TrainViewName.ADAPTERS: draw_adapters,
}
#: Up to so many batches each is tried.
EACH = 32
#: Below this width a title has no room for how much is done.
TITLE_WIDE = 70


class TrainPainter:
    """Draws everything that is shown, for the state there is."""

    def __init__(self, panel: TrainPanel) -> None:
        self._panel = panel
        self._standing: tuple[object, ...] = ()

    def all(self) -> None:
        panel = self._panel
        panel.draw_form()
        panel.body.tabs.active = list(TrainViewName).index(panel.run_shown.view)
        self.progress()
        self._standing = standing(panel.run_shown)
        panel.refresh_bindings()

    def news(self) -> None:
        """What a run that goes on changes; all of it where its keys or its plan do."""
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
        if run.view is TrainViewName.RUN:
            self.run()
            self._below()
        elif run.view is TrainViewName.LOSS:
            body.show_loss()
            body.loss.show(_losses(state), _asked(state))
        elif run.view is TrainViewName.PHASES and not run.there:
            body.show_text(partial(draw_expected, panel.shown))
        else:
            body.show_text(partial(DRAWERS[run.view], state))
        panel.speak()

    def run(self) -> None:
        """The predicted curve, and what was measured over it."""
        panel = self._panel
        run, body, state = panel.run_shown, panel.body, panel.run_shown.state
        header = state.header
        if not run.there and panel.trouble:
            body.show_message(panel.trouble)
            return
        if header is not None and header.predicted is None:
            # Without an estimate there is nothing to lay over a curve; the table says what is
            # measured.
            body.show_text(partial(draw_phases, state))
            return
        body.show_curve()
        if header is not None and header.predicted is not None:
            curve = header.predicted.curve
            body.curve.predict(
                stacked_prediction(curve), header.device.capacity_bytes, header.device.name
            )
            lines = overlay(state, curve, body.curve.places, body.curve.points)
            body.curve.over(lines, from_zero=run.from_zero)
        elif panel.shown.answer is not None:
            fit, gpu = panel.shown.answer.fit, panel.shown.gpu
            capacity = fit.capacity_bytes if fit else None
            body.curve.predict(panel.shown.answer.curve, capacity, gpu.label if gpu else "")
            body.curve.over(Overlay(), from_zero=run.from_zero)
        else:
            body.curve.clear()

    def _below(self) -> None:
        panel = self._panel
        body, state = panel.body, panel.run_shown.state
        expected = partial(draw_expected, panel.shown)
        there = panel.run_shown.there
        body.phases.show(partial(_fault_or_phases, state) if there else expected)
        body.gap.show(partial(draw_gap, state))
        body.small_loss.show(_losses(state), _asked(state))

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
    """Batches below one, each of them or, of many, as the form steps through them."""
    if batch <= EACH:
        return range(1, batch)
    return [value for value in BATCHES if value < batch]


def _fault_or_phases(state: RunState, canvas: Canvas) -> list[TextLine]:
    """Where memory ran out, what held it comes first."""
    if state.fault is not None and state.fault.fatal and state.fault.largest:
        return held_lines(state.fault, canvas)[: canvas.height]
    return list(draw_phases(state, canvas))


def standing(run: RunShown) -> tuple[object, ...]:
    """What decides which keys work and whose plan is shown."""
    state = run.state
    there = state.header is not None
    return (run.live, run.player is not None, run.paused, run.waits_for, there, state.over)


def _losses(state: RunState) -> list[tuple[int, float | None]]:
    return [(taken.step, taken.loss) for taken in state.steps]


def _asked(state: RunState) -> int | None:
    return state.header.steps if state.header is not None else None


def clock(seconds: float) -> str:
    """ "00:41"."""
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"


def seconds_of(run: RunShown) -> float:
    """Where it is: the moment of a replay, else how long it has gone on."""
    return run.player.seconds if run.player is not None else run.seconds


def run_note(run: RunShown) -> str:
    """ "recording 00:41", or where a replay is; the time alone before anything can be recorded."""
    at = clock(seconds_of(run))
    if run.player is not None:
        return f"replay {at} of {clock(run.player.length)}"
    if run.path is None:
        return f"not recorded {at}" if run.complaint else at
    if run.complaint:
        return f"recorded in part {at}"
    return f"recording {at}" if run.live else f"recorded {at}"


def run_details(state: RunState) -> tuple[str, ...]:
    """ "step 3 of 20", "backward"."""
    if state.header is None:
        return ()
    of = f" of {state.header.steps}" if state.header.steps else ""
    step = (f"step {state.step}{of}",) if state.step else ()
    phase = (state.phase,) if state.phase and not state.over else ()
    return (*step, *phase) or ("before the first step",)


def run_activity(run: RunShown) -> str:
    """How it stands, at the right of the title."""
    status = run.state.status
    if run.player is not None:
        if status == "failed":
            return status
        fast = f" {run.player.speed}x" if run.player.speed > 1 else ""
        held = "paused" if run.player.paused else "ended" if run.player.ended else "playing"
        return held + fast
    return run.waits_for or {"waiting": "starting"}.get(status, status)


def run_fraction(run: RunShown) -> float | None:
    """How much of it is done."""
    if run.player is not None:
        return run.player.seconds / run.player.length if run.player.length else None
    header = run.state.header
    if header is None or not header.steps or run.state.over:
        return None
    return min(1.0, len(run.state.steps) / header.steps)


def controls_of(run: RunShown) -> list[Control]:
    """The buttons, and what each would do now."""
    if run.player is not None:
        word = "play" if run.player.paused else "pause"
        at = SPEEDS.index(run.player.speed)
        by = 1 if at + 1 < len(SPEEDS) else -at
        return [
            Control("Space", word, "pause"),
            Control("s", "step", "step"),
            Control(".", f"{run.player.speed}x", f"speed({by})"),
            Control("x", "close", "stop"),
        ]
    held = run.paused or run.waits_for in ("pausing", "one step")
    hold = "resume" if run.live and held else "pause"
    return [
        Control("r", "run", "run", enabled=not run.live),
        Control("Space", hold, "pause", enabled=run.live),
        Control("s", "step", "step"),
        Control("x", "stop" if run.live or not run.there else "clear", "stop", enabled=run.there),
    ]
