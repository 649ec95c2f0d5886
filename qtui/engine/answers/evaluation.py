"""The progress of an evaluation."""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.results import Evaluation, EvaluationBegun, PartScored


@dataclass(frozen=True)
class EvaluationProgress:
    """Progress of an evaluation: the current activity, and how it begins or a finished part; or in
    their place the result so far."""

    doing: str = ""
    begun: EvaluationBegun | None = None
    part: PartScored | None = None
    found: Evaluation | None = None
