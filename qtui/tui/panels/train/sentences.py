"""The sentences of the Train panel: about the estimate before a run, and about the run."""

from __future__ import annotations

import math
from shlex import quote

from qtui.report.pictures.glyphs import Glyphs
from qtui.report.train.conclusion import DOING
from qtui.screen.plan.levels import signed
from qtui.screen.plan.shown import Shown
from qtui.tui.panels.train.levels import gap_of, gap_text
from qtui.tui.panels.train.shown import EACH, RunShown
from qtui_core.live.compare import WORTH, explanation, largest_unexplained, too_early
from qtui_core.live.snapshot import Fault
from qtui_core.live.state import RunState, measured
from qtui_core.models.quoting import printable
from qtui_core.quantities import format_bytes, plural


def before_run(shown: Shown, run: RunShown) -> str:
    """Whether the plan fits, and the largest batch that does."""
    answer = shown.answer
    if answer is None or not shown.current:
        return ""
    if answer.fit is None or answer.fit.verdict == "fits":
        said = shown.around.sentence if shown.around is not None else ""
        return f"{shown.remark} {said}".strip()
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
    of = (
        "The largest batch"
        if shown.plan.batch <= EACH
        else "Of the batches of the form the largest"
    )
    return f"{text} {of} that fits is {run.largest}: B takes it."


def first_of_all(run: RunShown) -> str:
    """The sentence that comes before those of all views: that the run does not answer, what ended
    it, or that no step is over; empty otherwise."""
    state = run.state
    if run.silence:
        ends = "It is ended." if run.wish == "stopping" else "x ends it."
        return f"{run.silence} The screen shows older content. {ends}"
    fault = state.fault
    if fault is not None and fault.fatal:
        again = "" if run.player is not None else "r runs again."
        return f"{of_fault(fault)} {again}".rstrip()
    if state.header is None:
        return "The process of the run is starting; it reads the model and estimates it first."
    if not state.steps:
        return _before_a_step(run)
    return "" if fault is None else f"{progress(run)} {fault.text}"


def how_it_goes(run: RunShown, glyphs: Glyphs) -> str:
    """The progress of a run, its loss and its peak."""
    state = run.state
    parts = [progress(run), loss_words(state), _peak(state, glyphs)]
    if state.over:
        parts.append(_difference(state, glyphs))
    return " ".join(filter(None, parts))


def why_it_differs(run: RunShown) -> str:
    """What explains the gap to the estimate; empty while that is not known."""
    state = run.state
    if too_early(state):
        return ""
    return explanation(state, gap_of(state)) or progress(run)


def going_on(run: RunShown, model: str) -> str:
    """The step of the running run, and whether it is recorded; shown before the app quits."""
    state = run.state
    if state.header is None or not state.step:
        where = "is before its first step"
    else:
        asked = f" of {state.header.steps}" if state.header.steps else ""
        where = (
            f"is paused after step {len(state.steps)}{asked}"
            if state.status == "paused"
            else f"is in step {state.step}{asked}"
        )
    name = model if state.header is None else state.header.model
    where = f"The run of {printable(name)} {where}."
    return f"{where} {recorded_in(run)}".rstrip()


def recorded_in(run: RunShown) -> str:
    """Where the run is recorded, or why it is not; empty before it has begun."""
    where = "" if run.path is None else f"It is recorded in {printable(str(run.path))}."
    return f"{where} {run.complaint}".strip()


def how_recorded(run: RunShown) -> str:
    """The sentence after the app has quit: how many steps were run, where the recording is, and the
    command that plays it; empty if the run never began."""
    state = run.state
    if state.header is None:
        return ""
    asked = state.header.steps
    taken = len(state.steps)
    count = f"{taken} of {plural(asked, 'step')}" if asked else plural(taken, "step")
    verb = "was" if taken == 1 else "were"
    told = f"qtui: {count} of {printable(state.header.model)} {verb} run. {recorded_in(run)}"
    return told if run.path is None else f"{told} `qtui replay {quote(str(run.path))}` plays it."


def _before_a_step(run: RunShown) -> str:
    state = run.state
    if state.over:
        return "The run was stopped before its first step was over: r runs it again."
    header = state.header
    predicted = header.predicted if header is not None else None
    warning = predicted.warning if predicted is not None else header.why_not if header else ""
    doing = DOING.get(state.phase, state.phase or "it starts")
    now = progress(run) if state.step else f"Before the first step: {doing}.{_wish(run)}"
    return " ".join(filter(None, (now, warning)))


def _difference(state: RunState, glyphs: Glyphs) -> str:
    """The largest part of the gap in a few words; the view Gap has the details."""
    if too_early(state):
        return "Two whole steps are needed to compare a run with its estimate."
    levels = gap_of(state)
    found = largest_unexplained(levels)
    if found is None:
        return f"No part is off by more than {WORTH:.1%} of that: plans can rely on the estimate."
    _, part = found
    return (
        f"The largest unexplained part is {part.name} ({signed(part.bytes, glyphs.minus)}): Gap "
        "says what to do."
    )


def of_fault(fault: Fault) -> str:
    """What went wrong, and the change that saves most memory."""
    text = fault.text if fault.text.endswith(".") else f"{fault.text}."
    if not fault.advice:
        return text
    change, saves = fault.advice[0]
    return text if change in text else f"{text} {change} saves {format_bytes(saves)}."


def _wish(run: RunShown) -> str:
    """The words for a request that the run has not obeyed yet."""
    return {
        "pausing": " It pauses before the next step; Space cancels that.",
        "one step": " It takes one step and pauses; Space cancels that.",
        "stopping": " It is stopping.",
    }.get(run.waits_for, "")


def progress(run: RunShown) -> str:
    """The progress of the run as a sentence."""
    state = run.state
    header = state.header
    assert header is not None
    asked = f" of {header.steps}" if header.steps else ""
    if state.status == "paused":
        return f"Paused after step {len(state.steps)}{asked}: Space resumes, ] takes one step."
    if state.over:
        taken = len(state.steps)
        how = " before it was stopped" if state.status == "stopped" else ""
        count = (
            f"{taken} of {plural(header.steps, 'step')}" if header.steps else plural(taken, "step")
        )
        return f"{count} {'was' if taken == 1 else 'were'} run{how}."
    return f"Step {state.step}{asked} is in {state.phase}.{_wish(run)}"


def loss_words(state: RunState) -> str:
    """The loss at the first step and now; empty at inference."""
    known = [loss for loss in state.losses if loss is not None]
    if not known:
        return ""
    lost = [at for at, loss in enumerate(state.losses, 1) if loss is not None
            and not math.isfinite(loss)]  # fmt: skip
    if lost:
        many = "" if len(lost) == 1 else f", and in {len(lost)} of {len(known)} steps"
        return f"The loss is no finite number in step {lost[0]:,}{many}."
    if len(known) == 1:
        return f"The loss is {known[0]:.3f}."
    if f"{known[0]:.3f}" == f"{known[-1]:.3f}":
        return f"The loss is {known[-1]:.3f}, as it was at first."
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
    if too_early(state):
        if state.over:
            return f"{text}; {format_bytes(estimated)} is estimated for whole steps."
        return f"{text} so far; {format_bytes(estimated)} is estimated for the steps that follow."
    gap = gap_text(peak, estimated, glyphs.minus)
    other = header.predicted.peak_phase
    where = "" if other == place else f", in {other}"
    return f"{text}, {format_bytes(estimated)} was estimated{where} (gap {gap})."
