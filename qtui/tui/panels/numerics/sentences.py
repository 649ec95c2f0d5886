"""The sentence of the Numerics panel in each of its states."""

from __future__ import annotations

from qtui.report.lab.document import conclusion_of
from qtui.tui.panels.numerics.lab_run import LabPhase, LabRun
from qtui.tui.panels.numerics.shown import NumericsShown
from qtui_core.lab.catalog import cost_text
from qtui_core.quantities import plural


def sentence_of(shown: NumericsShown) -> str:
    """The sentence of the current run; without one, the experiment's question and cost."""
    run = shown.run
    if run is None:
        return _nothing(shown)
    said = _said(run)
    if run.complaint:
        said = f"{said} {run.complaint}"
    return said


def _nothing(shown: NumericsShown) -> str:
    experiment = shown.experiment
    if shown.missing_weights:
        return f"{experiment.question} {shown.missing_weights}"
    cost = cost_text(experiment.seconds)
    changed = shown.changes.get(experiment.name)
    cost += " as its settings usually are" if changed else ""
    return f"{experiment.question} r runs it on {shown.model}: {cost}, by how busy two cores are."


def _said(run: LabRun) -> str:
    phase, verdict = run.phase, run.result.findings.verdict if run.result else ""
    if phase is LabPhase.STARTING:
        return f"{run.experiment.question} Its process starts and loads torch, which takes seconds."
    if phase in (LabPhase.RUNNING, LabPhase.PLAYING):
        return _so_far(run, verdict)
    if phase is LabPhase.PAUSED:
        return f"Paused after {_parts(run)}; Space resumes. {verdict}".strip()
    if phase is LabPhase.STOPPING:
        return f"Stopping after the current step: {_parts(run)} {_are(run)} done."
    more = " c runs the remaining parts." if run.can_go_on and run.jobs else ""
    if phase is LabPhase.FAILED:
        said = f"The experiment failed: {run.fault}" if run.fault else "The experiment failed."
        return f"{said}{more}{' ' + verdict if verdict else ''}"
    if run.result is None:
        return f"Stopped before there was a result.{more}"
    return conclusion_of(run.result, more)


def _so_far(run: LabRun, verdict: str) -> str:
    """The sentence of a run that goes on, with little before the verdict so far: it is short."""
    plays = ""
    if run.phase is LabPhase.PLAYING:
        plays = "The recording is paused, Space resumes" if run.paused else "The recording plays"
    if not verdict:
        return f"{plays + ': ' if plays else ''}{_parts(run)} {_are(run)} done."
    return f"{plays + ', after' if plays else 'After'} {_parts(run)}: {verdict}"


def _parts(run: LabRun) -> str:
    return f"{len(run.jobs)} of {plural(_count(run), 'part')}"


def _are(run: LabRun) -> str:
    return "is" if _count(run) == 1 else "are"


def _count(run: LabRun) -> int:
    return len(run.begun.jobs) if run.begun else 0


def title_note(run: LabRun | None, kept: int) -> str:
    """The number of the run if there are several, and whether it is a recording."""
    if run is None:
        return ""
    number = f"run {run.number}" if kept > 1 else ""
    return ", ".join(filter(None, (number, "recorded" if run.recorded else "")))
