"""What is looked at: a tensor of the model or what flows through its module, as it is or with
an outlier put in."""

from __future__ import annotations

from typing import Any

from qtui.engine.requests import Injection
from qtui.report.numbers import format_value
from qtui_core.dataclass import dataclass

WEIGHT, INPUT, OUTPUT = "weight", "input", "output"


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
            params["inject"] = self.inject
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
        put = self.inject
        if put is None:
            return ()
        where = f"column {put.column:,}" if put.row is None else f"({put.row:,}, {put.column:,})"
        return (f"outlier {format_value(put.value, 4)} injected at {where}",)
