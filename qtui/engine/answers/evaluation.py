"""What the engine tells while it evaluates a model."""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.results import EvaluationBegun, PartScored


@dataclass(frozen=True)
class EvaluationProgress:
    """A report of an evaluation: how it begins, a part that is done, or what is done now."""

    doing: str = ""
    begun: EvaluationBegun | None = None
    part: PartScored | None = None
