"""How far candidates are from the original on a text."""

from __future__ import annotations

from qtui.engine.answers.evaluation import EvaluationProgress
from qtui.engine.operations.session import Session
from qtui.engine.requests import EvaluationRequest
from qtui.engine.task import OperationTable, Task
from qtui_core.evaluation.results import EvaluationBegun, PartScored


def evaluate_model(session: Session, task: Task[EvaluationRequest]) -> None:
    """Tells an EvaluationBegun and each part as progress."""
    # Imported here, because the import of torch takes seconds that few sessions need.
    from qtui_core.evaluation.evaluate import evaluate

    asked = task.asked
    heard = ""
    fraction = 0.0

    def advance(done: float, words: str) -> None:
        nonlocal heard, fraction
        fraction = done
        task.progress(done, EvaluationProgress(words) if words != heard else None)
        heard = words

    def tell(told: EvaluationBegun | PartScored) -> None:
        if isinstance(told, EvaluationBegun):
            task.progress(fraction, EvaluationProgress(heard, begun=told))
        else:
            task.progress(fraction, EvaluationProgress(heard, part=told))

    evaluate(
        session.models.source(asked.model),
        asked.settings,
        tell,
        done=asked.done,
        advance=advance,
        cancelled=task.is_cancelled,
    )


OPERATIONS: OperationTable = {"evaluate": (evaluate_model, "capture", EvaluationRequest)}
