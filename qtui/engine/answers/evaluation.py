"""The progress of an evaluation."""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.results import EvaluationBegun, PartScored


@dataclass(frozen=True)
class EvaluationProgress:
    """Progress of an evaluation: how it begins, a finished part, or the current activity."""

    doing: str = ""
    begun: EvaluationBegun | None = None
    part: PartScored | None = None
