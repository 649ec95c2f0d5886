"""The sentence of the Model view in each of its states, and what an evaluation costs."""

from __future__ import annotations

from typing import Final

from qtui.tui.panels.quantize.model.run import EvaluationState, ModelRun
from qtui_core.evaluation.settings import WINDOW
from qtui_core.models.quoting import printable
from qtui_core.quantities import phrase, plural

#: Operations a second of one core (two for each parameter and token), measured on the demo with six
#: schemes, with the time to quantize the weights.
_RATE: Final = 8e10


def model_sentence(run: ModelRun, parameters: int | None) -> str:
    """What is known and what to do. `parameters` is None before the model is known."""
    if parameters is None:
        return ""
    if run.state is EvaluationState.NOTHING:
        return f"r lets {_readers(run, parameters)}: then the divergence of each stands here."
    if run.state is EvaluationState.FAILED:
        return f"{run.trouble}{' d goes back to the CPU.' if run.gpu else ''}"
    if run.state is EvaluationState.RUNNING:
        return _running(run)
    if run.found is None:
        lost = "The engine ended" if run.state is EvaluationState.LOST else "Stopped"
        return f"{lost} before a scheme had read a window: r begins again."
    return f"{run.found.conclusion}{_next(run, parameters)}"


def _running(run: ModelRun) -> str:
    reading, found = run.reading, run.found
    if reading is None or found is None:
        return "The engine loads torch and the model, which takes seconds; Esc stops it."
    which = f"windows {reading.first} to {reading.last}"
    if reading.first == reading.last:
        which = f"window {reading.first}"
    said = (
        f"{reading.name} reads {which} of "
        f"{found.begun.text.windows}; Esc stops and keeps what is done."
    )
    return f"{said} So far: {found.conclusion}" if len(found.rows) > 1 else said


def _next(run: ModelRun, parameters: int) -> str:
    """What r does after an evaluation; empty if nothing is left to do."""
    if run.state is EvaluationState.LOST:
        return " The engine ended, and with it what it had read: r begins again."
    if run.state is EvaluationState.STOPPED:
        return " r goes on."
    if run.missing:
        are = "is" if len(run.missing) == 1 else "are"
        cost = _cost(run, parameters)
        return f" {phrase(run.missing)} {are} not read yet: r does it, {cost}."
    if run.found is not None and run.found.windows == 1:
        return " + reads more."
    if run.taken_out:
        return f" That counts {phrase(run.taken_out)}, taken out since: r concludes without."
    return ""


def beginning(run: ModelRun, parameters: int) -> list[str]:
    """The paragraphs below a list of which nothing was read yet."""
    return [
        f"r lets {_readers(run, parameters)}. The engine does it, and the screen goes on "
        f"meanwhile; Esc stops and keeps what is done. Torch is loaded first, which takes seconds.",
        f"The text is {printable(run.text or 'one inside qtui')} (i), read on the "
        f"{'GPU' if run.gpu else 'CPU'} (d). b adds schemes, x takes one out, + and - "
        f"change the windows.",
    ]


def _readers(run: ModelRun, parameters: int) -> str:
    count = run.window_count(parameters)
    return (
        f"the original and {plural(len(run.schemes), 'scheme')} read {plural(count, 'window')} of "
        f"{WINDOW} tokens, {_cost(run, parameters)}"
    )


def _cost(run: ModelRun, parameters: int) -> str:
    if run.gpu:
        return "on the GPU"
    tokens = run.window_count(parameters) * WINDOW
    seconds = 2 * parameters * tokens * (1 + len(run.missing)) / _RATE
    for size, unit in ((3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {unit} on one core of a CPU"
    return "a second or two"
