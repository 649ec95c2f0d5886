"""What is looked at: a tensor of the model or what flows through its module, as it is or with
an outlier put in."""

from __future__ import annotations

from typing import Any

from qtui.report.numbers import format_value
from qtui_core.dataclass import dataclass

WEIGHT, INPUT, OUTPUT = "weight", "input", "output"


@dataclass(frozen=True)
class Injection:
    """`value` in the place of element (row, column), or of the whole column where `row` is
    None."""

    column: int
    value: float
    row: int | None = None

    @property
    def params(self) -> dict[str, Any]:
        """As the engine takes it."""
        return {"row": self.row, "column": self.column, "value": self.value}

    @property
    def words(self) -> str:
        """What was done, for a line that says what is looked at."""
        if self.row is None:
            return f"outlier {format_value(self.value, 4)} injected at column {self.column:,}"
        return f"outlier {format_value(self.value, 4)} injected at ({self.row:,}, {self.column:,})"


@dataclass(frozen=True)
class Subject:
    """`source` is the stored tensor (WEIGHT) or the captured INPUT or OUTPUT of the module
    whose weight it is."""

    tensor: str
    source: str = WEIGHT
    inject: Injection | None = None

    @property
    def params(self) -> dict[str, Any]:
        """What every request about a tensor carries; what is as usual is left out."""
        params: dict[str, Any] = {"tensor": self.tensor}
        if self.source != WEIGHT:
            params["source"] = self.source
        if self.inject is not None:
            params["inject"] = self.inject.params
        return params

    @property
    def title(self) -> str:
        """The name of the tensor, or what of its module is looked at."""
        if self.source == WEIGHT:
            return self.tensor
        return f"{self.source} of {self.tensor.removesuffix('.weight')}"

    @property
    def words(self) -> tuple[str, ...]:
        """What was done to it, in a few words each."""
        return () if self.inject is None else (self.inject.words,)
