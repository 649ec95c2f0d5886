"""How far quantized candidates are from the original model on a text."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from qtui.engine.answers.evaluation import EvaluationProgress
from qtui.engine.operations.session import Session
from qtui.engine.requests import EvaluationRequest
from qtui.engine.task import OperationTable, Task
from qtui_core.evaluation.results import Evaluation, EvaluationBegun, PartScored
from qtui_core.evaluation.summary import summarize
from qtui_core.extras import require
from qtui_core.job import Job

#: Makes the progress of an event.
Told = Callable[[EvaluationBegun | PartScored], EvaluationProgress]


def evaluate_model(session: Session, task: Task[EvaluationRequest]) -> None:
    """Evaluates candidates. An EvaluationBegun and each finished part are reported as progress."""

    def told(event: EvaluationBegun | PartScored) -> EvaluationProgress:
        if isinstance(event, EvaluationBegun):
            return EvaluationProgress(begun=event)
        return EvaluationProgress(part=event)

    _evaluate(session, task, told, task.asked.done)


def evaluation_so_far(session: Session, task: Task[EvaluationRequest]) -> Evaluation:
    """The same for a screen: the result so far is reported at the beginning and after each part.
    Parts that this process has computed on the same windows are not computed again, so that another
    scheme costs no more than itself and the original."""
    parts: dict[tuple[int, int], PartScored] = {}
    so_far: Evaluation | None = None

    def told(event: EvaluationBegun | PartScored) -> EvaluationProgress:
        nonlocal so_far
        begun = event if so_far is None else so_far.begun
        assert isinstance(begun, EvaluationBegun)
        known, candidates = session.scored(begun), begun.candidates
        if isinstance(event, PartScored):
            known[event.batch, candidates[event.candidate]] = event
        numbers = {candidate: number for number, candidate in enumerate(candidates)}
        for (batch, candidate), part in known.items():
            if candidate in numbers:
                number = numbers[candidate]
                parts[batch, number] = replace(part, candidate=number)
        so_far = summarize(begun, list(parts.values()))
        return EvaluationProgress(found=so_far)

    _evaluate(session, task, told, parts)
    assert so_far is not None
    return summarize(so_far.begun, list(parts.values()), "done")


def _evaluate(
    session: Session, task: Task[EvaluationRequest], told: Told, done: Collection[tuple[int, int]]
) -> None:
    require("An evaluation", "torch", "transformers")
    # Imported here, because torch takes seconds to import and few sessions need it.
    from qtui_core.evaluation.evaluate import evaluate

    doing = ""
    fraction = 0.0

    def report(done: float, total: float, words: str) -> None:
        nonlocal doing, fraction
        fraction = done / total
        task.progress(fraction, EvaluationProgress(words) if words != doing else None)
        doing = words

    def tell(event: EvaluationBegun | PartScored) -> None:
        task.progress(fraction, replace(told(event), doing=doing))

    model, job = session.models.source(task.asked.model), Job(report, task.is_cancelled)
    evaluate(model, task.asked.settings, tell, done=done, job=job)


OPERATIONS: OperationTable = {
    "evaluate": (evaluate_model, "capture", EvaluationRequest),
    # A lane of its own, so that captures do not wait for it, which may take minutes.
    "evaluation_so_far": (evaluation_so_far, "evaluation", EvaluationRequest),
}
