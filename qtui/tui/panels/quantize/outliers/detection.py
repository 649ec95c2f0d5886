"""How outliers are detected: by sigma, by threshold or by column, each with its limit."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from qtui.engine.answers.outliers import By
from qtui.report.numbers import format_value
from qtui.tui.panels.quantize.outliers.injection import LARGEST
from qtui_core.answers.tensors import OUTLIER_SIGMA
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

ORDER: tuple[By, ...] = ("sigma", "threshold", "column")
LEAST_SIGMA, MOST_SIGMA = 3.0, 12.0
#: The limits of detection by column, as ratios to the median column. Hardly any Gaussian column is
#: beyond 4.
RATIOS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
EXAMPLES = "for example 8 sigma, |x| >= 0.5 or 6 times"

_NUMBER = r"(?P<value>[0-9.]+(?:e[-+]?[0-9]+)?)"
_LIMITS: tuple[tuple[By | None, re.Pattern[str]], ...] = (
    ("sigma", re.compile(rf"{_NUMBER}\s*(?:sigmas?|s|σ)", re.I)),
    ("column", re.compile(rf"{_NUMBER}\s*(?:x|×|times)", re.I)),
    ("threshold", re.compile(rf"(?:\|x\||t|>=|=|\s)+{_NUMBER}", re.I)),
    (None, re.compile(_NUMBER, re.I)),
)


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
        if self.by == "sigma":
            sigma = math.floor(self.sigma) if direction > 0 else math.ceil(self.sigma)
            return self.with_limit("sigma", float(sigma + direction))
        beyond = [r for r in RATIOS if (r - self.ratio) * direction > 0]
        if not beyond:
            raise UsageError(
                f"Keys choose limits from {RATIOS[0]:g} to {RATIOS[-1]:g} times the median; type "
                f"another limit."
            )
        return replace(self, ratio=min(beyond) if direction > 0 else max(beyond))

    def with_limit(self, by: By, limit: float) -> Detection:
        """This detection by another way and limit. Raises UsageError for an impossible limit."""
        if by == "sigma":
            if not LEAST_SIGMA <= limit <= MOST_SIGMA:
                raise UsageError(
                    f"The limit is {LEAST_SIGMA:g} to {MOST_SIGMA:g} sigma, not {limit:g}: below "
                    f"that are no outliers, and beyond it detect by threshold."
                )
            return replace(self, by=by, sigma=limit)
        if by == "threshold":
            if not 1e-38 <= limit <= LARGEST:
                raise UsageError(f"A threshold is a magnitude above 0 in float32; got {limit:g}.")
            return replace(self, by=by, threshold=limit)
        if not 1 <= limit <= LARGEST:
            raise UsageError(f"A limit of columns is at least 1 times the median; got {limit:g}.")
        return replace(self, by=by, ratio=limit)

    def typed(self, text: str) -> Detection:
        """The detection that a typed text names; a number alone is a limit of the current way.
        Raises UsageError for any other text."""
        for by, pattern in _LIMITS:
            match = pattern.fullmatch(text.strip())
            if match is None:
                continue
            try:
                return self.with_limit(by or self.by, float(match["value"]))
            except ValueError:
                break
        raise UsageError(f"{text.strip() or 'Nothing'!r} is no limit: type {EXAMPLES}.")


def limit_text(by: By, limit: float) -> str:
    """A text that `typed` reads as this detection: `6 sigma`, `|x| >= 0.5`, `4 times`."""
    if by == "sigma":
        return f"{limit:g} sigma"
    if by == "threshold":
        return f"|x| >= {limit:.9g}"
    return f"{limit:g} times"


def beyond_text(by: By, limit: float) -> str:
    """The limit as a part of a sentence about the outliers that were found."""
    if by == "sigma":
        return f"beyond {limit:g} sigma"
    if by == "threshold":
        return f"of |x| >= {format_value(limit)}"
    return f"over {limit:g} times the median"
