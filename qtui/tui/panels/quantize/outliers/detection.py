"""How outliers are detected: by sigma, by threshold or by column, each with its limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from qtui.engine.answers.outliers import By
from qtui.report.numbers import format_value
from qtui_core.answers import OUTLIER_SIGMA
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

ORDER: tuple[By, ...] = ("sigma", "threshold", "column")
#: The limits that keys choose: below 3 sigma are no outliers, and beyond 12 a threshold says more;
#: ratios to the median column, of which hardly any Gaussian column is beyond 4.
SIGMAS: Final = tuple(map(float, range(3, 13)))
RATIOS: Final = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)


@dataclass(frozen=True)
class Detection:
    """A way to detect outliers (`by`), and the limit of each way.

    Attributes:
        sigma: elements further than this many standard deviations from the mean.
        threshold: elements of at least this magnitude, also for LLM.int8(); None: the engine
            chooses it.
        ratio: columns larger than this many times the median column.
    """

    by: By = "sigma"
    sigma: float = OUTLIER_SIGMA
    threshold: float | None = None
    ratio: float = 4.0

    @property
    def limit(self) -> float | None:
        """The limit of the current way."""
        return {"sigma": self.sigma, "threshold": self.threshold, "column": self.ratio}[self.by]

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the request."""
        return {"detection": self.by, "limit": self.limit}

    def turned(self, direction: int) -> Detection:
        """The next (1) or previous (-1) way; each keeps its limit."""
        return replace(self, by=ORDER[(ORDER.index(self.by) + direction) % len(ORDER)])

    def stepped(self, direction: int) -> Detection:
        """The next higher (1) or lower (-1) limit, by sigma or by column. Raises UsageError at the
        ends."""
        limits = SIGMAS if self.by == "sigma" else RATIOS
        now = self.sigma if self.by == "sigma" else self.ratio
        beyond = [limit for limit in limits if (limit - now) * direction > 0]
        if not beyond:
            unit = "sigma" if self.by == "sigma" else "times the median"
            raise UsageError(f"The limit is {limits[0]:g} to {limits[-1]:g} {unit}.")
        limit = min(beyond) if direction > 0 else max(beyond)
        return replace(self, sigma=limit) if self.by == "sigma" else replace(self, ratio=limit)


def beyond_text(by: By, limit: float) -> str:
    """The limit as a part of a sentence about the outliers that were found."""
    if by == "sigma":
        return f"beyond {limit:g} sigma"
    if by == "threshold":
        return f"of |x| >= {format_value(limit)}"
    return f"over {limit:g} times the median"
