"""How far quantized candidates are from the original model on a text."""

from __future__ import annotations

from qtui.engine.answers.evaluation import EvaluationProgress
from qtui.engine.operations.session import Session
from qtui.engine.requests import EvaluationRequest
from qtui.engine.task import OperationTable, Task
from qtui_core.evaluation.results import EvaluationBegun, PartScored


def evaluate_model(session: Session, task: Task[EvaluationRequest]) -> None:
    """Evaluates candidates. An EvaluationBegun and each finished part are reported as progress."""
    # Imported here, because torch takes seconds to import and few sessions need it.
    from qtui_core.evaluation.evaluate import evaluate

    asked = task.asked
    doing = ""
    fraction = 0.0

    def advance(done: float, words: str) -> None:
        nonlocal doing, fraction
        fraction = done
        task.progress(done, EvaluationProgress(words) if words != doing else None)
        doing = words

    def tell(event: EvaluationBegun | PartScored) -> None:
        if isinstance(event, EvaluationBegun):
            task.progress(fraction, EvaluationProgress(doing, begun=event))
        else:
            task.progress(fraction, EvaluationProgress(doing, part=event))

    evaluate(
        session.models.source(asked.model),
        asked.settings,
        tell,
        done=asked.done,
        advance=advance,
        cancelled=task.is_cancelled,
    )


OPERATIONS: OperationTable = {"evaluate": (evaluate_model, "capture", EvaluationRequest)}
