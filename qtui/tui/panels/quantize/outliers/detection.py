"""What counts as an outlier, and how far it is from there: what the view asks for."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from qtui.engine.answers.outliers import By
from qtui.report.numbers import format_value
from qtui.tui.panels.quantize.outliers.injecting import LARGEST
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

ORDER: tuple[By, ...] = ("sigma", "threshold", "column")
LEAST_SIGMA, MOST_SIGMA = 3.0, 12.0
#: How many times the median column; of Gaussian columns hardly one is beyond 4.
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
    """Elements more than `sigma` standard deviations from the mean; elements of a magnitude of
    at least `threshold` (None: where the engine puts it), which is also that of LLM.int8(); or
    columns whose size is more than `ratio` times that of the median column."""

    by: By = "sigma"
    sigma: float = 6.0
    threshold: float | None = None
    ratio: float = 4.0

    @property
    def limit(self) -> float | None:
        """The one of them that counts."""
        return {"sigma": self.sigma, "threshold": self.threshold, "column": self.ratio}[self.by]

    @property
    def params(self) -> dict[str, Any]:
        """As the engine takes it."""
        return {"detection": self.by, "limit": self.limit}

    def turned(self, direction: int) -> Detection:
        """The next way to detect, each with the limit it had."""
        return replace(self, by=ORDER[(ORDER.index(self.by) + direction) % len(ORDER)])

    def stepped(self, direction: int) -> Detection:
        """A limit that is harder (1) or easier (-1) to reach, by sigma or by column. Raises
        UsageError at the ends."""
        if self.by == "sigma":
            sigma = math.floor(self.sigma) if direction > 0 else math.ceil(self.sigma)
            return self.with_limit("sigma", float(sigma + direction))
        beyond = [r for r in RATIOS if (r - self.ratio) * direction > 0]
        if not beyond:
            raise UsageError(
                f"A column is compared with {RATIOS[0]:g} to {RATIOS[-1]:g} times the median here; "
                f"type another limit."
            )
        return replace(self, ratio=min(beyond) if direction > 0 else max(beyond))

    def with_limit(self, by: By, limit: float) -> Detection:
        """Raises UsageError for a limit that is none of this kind."""
        if by == "sigma":
            if not LEAST_SIGMA <= limit <= MOST_SIGMA:
                raise UsageError(
                    f"Outliers are looked for beyond {LEAST_SIGMA:g} to {MOST_SIGMA:g} sigma, not "
                    f"{limit:g}: nearer ones are no outliers, further ones are found by threshold."
                )
            return replace(self, by=by, sigma=limit)
        if by == "threshold":
            if not 1e-38 <= limit <= LARGEST:
                raise UsageError(f"A threshold is a magnitude above 0 in float32; got {limit:g}.")
            return replace(self, by=by, threshold=limit)
        if not 1 <= limit <= LARGEST:
            raise UsageError(f"A column stands out from 1 time the median on; got {limit:g}.")
        return replace(self, by=by, ratio=limit)

    def typed(self, text: str) -> Detection:
        """The detection and limit that `text` names; a number alone is a limit of this one.
        Raises UsageError for a text that names none."""
        for by, pattern in _LIMITS:
            match = pattern.fullmatch(text.strip())
            if match is None:
                continue
            try:
                return self.with_limit(by or self.by, float(match["value"]))
            except ValueError:
                break
        raise UsageError(f"{text.strip() or 'Nothing'!r} is no limit: give {EXAMPLES}.")


def limit_text(by: By, limit: float) -> str:
    """The text that gives this detection again: `6 sigma`, `|x| >= 0.5`, `4 times`."""
    if by == "sigma":
        return f"{limit:g} sigma"
    if by == "threshold":
        return f"|x| >= {limit:.9g}"
    return f"{limit:g} times"


def beyond_text(by: By, limit: float) -> str:
    """The same as part of a sentence about what is found."""
    if by == "sigma":
        return f"beyond {limit:g} sigma"
    if by == "threshold":
        return f"of |x| >= {format_value(limit)}"
    return f"over {limit:g} times the median"
