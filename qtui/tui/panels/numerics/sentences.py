"""The sentence of the Numerics panel in each of its states."""

from __future__ import annotations

from qtui.report.lab.document import conclusion_of, cost_text
from qtui.report.numbers import plural
from qtui.tui.panels.numerics.lab_run import LabPhase, LabRun
from qtui.tui.panels.numerics.shown import NumericsShown


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
    where = f" on {shown.model}" if experiment.takes_model else ""
    cost = cost_text(experiment)
    changed = shown.changes.get(experiment.name)
    cost += " as its settings usually are" if changed else ""
    return f"{experiment.question} r runs it{where}: {cost} on two idle cores."


def _said(run: LabRun) -> str:
    phase, verdict = run.phase, run.result.findings.verdict if run.result else ""
    if phase is LabPhase.STARTING:
        return f"{run.experiment.question} Its process starts and loads torch, which takes seconds."
    if phase in (LabPhase.RUNNING, LabPhase.PLAYING):
        return f"{_done(run)}{'; so far: ' + verdict if verdict else '.'}"
    if phase is LabPhase.PAUSED:
        return f"Paused: {_done(run)}. Space resumes.{' So far: ' + verdict if verdict else ''}"
    if phase is LabPhase.STOPPING:
        return f"Stopping after the current step: {_done(run)}."
    more = " c runs the remaining parts." if run.can_go_on and run.jobs else ""
    if phase is LabPhase.FAILED:
        said = f"The experiment failed: {run.fault}" if run.fault else "The experiment failed."
        return f"{said}{more}{' ' + verdict if verdict else ''}"
    if run.result is None:
        return f"Stopped before there was a result.{more}"
    return conclusion_of(run.result, more)


def _done(run: LabRun) -> str:
    count = len(run.begun.jobs) if run.begun else 0
    told = ""
    if run.phase is LabPhase.PLAYING:
        told = "The recording is paused, Space resumes: " if run.paused else "The recording plays: "
    return f"{told}{len(run.jobs)} of {plural(count, 'part')} are done"
