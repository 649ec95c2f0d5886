"""The subject of a panel: a tensor of the model, or the captured input or output of its module;
unchanged, or with an injected outlier."""

from __future__ import annotations

from typing import Any

from qtui.engine.requests import Injection
from qtui.report.numbers import format_value
from qtui_core.dataclass import dataclass

WEIGHT, INPUT, OUTPUT = "weight", "input", "output"


@dataclass(frozen=True)
class Subject:
    """`source` is the stored tensor (WEIGHT), or the captured INPUT or OUTPUT of the module whose
    weight it is."""

    tensor: str
    source: str = WEIGHT
    inject: Injection | None = None

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of every request about a tensor; defaults are left out."""
        params: dict[str, Any] = {"tensor": self.tensor}
        if self.source != WEIGHT:
            params["source"] = self.source
        if self.inject is not None:
            params["inject"] = self.inject
        return params

    @property
    def title(self) -> str:
        """The name of the tensor; for an activation, "input of" and the name of the module."""
        if self.source == WEIGHT:
            return self.tensor
        return f"{self.source} of {self.tensor.removesuffix('.weight')}"

    @property
    def words(self) -> tuple[str, ...]:
        """The changes to the values, each in a few words."""
        put = self.inject
        if put is None:
            return ()
        where = f"column {put.column:,}" if put.row is None else f"({put.row:,}, {put.column:,})"
        return (f"outlier {format_value(put.value, 4)} injected at {where}",)
