"""How far a quantized model is from the original: KL divergence, loss and agreement on a text.

`streamed`, `scores` and `evaluate` run the model and need torch and transformers; the rest needs
numpy at most.
"""

from qtui_core.evaluation.results import (
    EvaluatedText,
    Evaluation,
    EvaluationBegun,
    EvaluationRow,
    PartScored,
)
from qtui_core.evaluation.settings import EvaluationSettings

__all__ = [
    "EvaluatedText",
    "Evaluation",
    "EvaluationBegun",
    "EvaluationRow",
    "EvaluationSettings",
    "PartScored",
]
