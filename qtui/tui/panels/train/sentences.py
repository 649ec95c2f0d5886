"""The sentence below the picture: what it means right now, and what to do."""

from __future__ import annotations

import math

from qtui.report.numbers import format_bytes, plural
from qtui.tui.panels.memory.shown import Shown
from qtui.tui.panels.train.levels import error_text
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.texts import gap_of
from qtui.tui.widgets.drawing import Glyphs
from qtui_core.live.explain import explain
from qtui_core.live.measured import measured
from qtui_core.live.snapshot import Fault
from qtui_core.live.state import RunState


def sentence_of(shown: Shown, run: RunShown, glyphs: Glyphs) -> str:
    """Of a run where there is one, else of the estimate."""
    if run.there:
        return of_run(run, glyphs)
    return before_run(shown, run)


def before_run(shown: Shown, run: RunShown) -> str:
    """Whether it fits, and what would."""
    answer = shown.answer
    if answer is None or not shown.current:
        return ""
    if answer.fit is None or answer.fit.verdict == "fits":
        return shown.around.sentence if shown.around is not None else ""
    fit = answer.fit
    need, have = format_bytes(answer.process_bytes), format_bytes(fit.capacity_bytes)
    text = f"This run will not fit {fit.gpu}: it needs {need}, and that has {have}."
    if fit.verdict == "tight":
        more = format_bytes(answer.uncertainty_bytes)
        text = f"This run is tight on {fit.gpu}: it needs {need}, give or take {more}, of {have}."
    if run.largest is None or run.largest_of != shown.asked:
        return f"{text} The largest batch that fits is being looked for."
    if run.largest == 0:
        best = shown.around.advice[0].change if shown.around and shown.around.advice else ""
        return f"{text} Not even batch 1 fits{f'; {best} would save most' if best else ''}."
    return f"{text} The largest batch that fits is {run.largest}: b takes it."


def of_run(run: RunShown, glyphs: Glyphs) -> str:
    """How a run goes, or how it went."""
    state = run.state
    fault = state.fault
    if fault is not None and fault.fatal:
        again = "" if run.player is not None else "r runs again."
        return f"{of_fault(fault)} {again}".rstrip()
    if state.header is None:
        return "The process of the run is starting; it reads the model and estimates it first."
    if not state.steps:
        if state.over:
            return "The run was stopped before its first step was over."
        predicted = state.header.predicted
        warning = predicted.warning if predicted is not None else state.header.why_not
        now = f"Before the first step: {state.phase or 'it starts'}."
        return " ".join(filter(None, (_progress(state) if state.step else now, warning)))
    parts = [_progress(state)]
    if fault is not None:
        parts.append(fault.text)
    else:
        parts += [_loss(state, glyphs), _peak(state, glyphs)]
    if state.over:
        parts.append(explain(gap_of(state)))
    return " ".join(filter(None, parts))


def of_fault(fault: Fault) -> str:
    """What happened, and the change that saves most."""
    text = fault.text if fault.text.endswith(".") else f"{fault.text}."
    if not fault.advice:
        return text
    change, saves = fault.advice[0]
    return text if change in text else f"{text} {change} saves {format_bytes(saves)}."


def _progress(state: RunState) -> str:
    header = state.header
    assert header is not None
    asked = f" of {header.steps}" if header.steps else ""
    if state.status == "paused":
        return f"Held after step {len(state.steps)}{asked}: Space goes on, s takes one step."
    if state.over:
        taken = len(state.steps)
        how = "" if state.status == "done" else " before it was stopped"
        count = (
            f"{taken} of {plural(header.steps, 'step')}" if header.steps else plural(taken, "step")
        )
        return f"{count} {'was' if taken == 1 else 'were'} run{how}."
    return f"Step {state.step}{asked} is in {state.phase}."


def _loss(state: RunState, glyphs: Glyphs) -> str:
    known = [loss for loss in state.losses if loss is not None]
    if not known:
        return ""
    if not math.isfinite(known[-1]):
        return "The loss is no number."
    if len(known) == 1:
        return f"The loss is {known[0]:.3f}."
    word = "fell" if known[-1] < known[0] else "rose"
    return f"The loss {word} from {known[0]:.3f} to {known[-1]:.3f}."


def _peak(state: RunState, glyphs: Glyphs) -> str:
    found = measured(state)
    header = state.header
    if found.peak is None or header is None:
        return ""
    what = "Live tensors" if found.counted == "tensors" else "Allocated bytes"
    peak, place = found.peak.peak_allocated_bytes, found.peak.phase
    text = f"{what} peak at {format_bytes(peak)} in {place}"
    if header.predicted is None:
        return f"{text}; {header.why_not}" if header.why_not else f"{text}."
    estimated = header.predicted.peak_allocated_bytes
    error = error_text(peak, estimated, glyphs.minus)
    other = header.predicted.peak_phase
    where = "" if other == place else f", in {other}"
    return f"{text}, {format_bytes(estimated)} was estimated{where} ({error})."
