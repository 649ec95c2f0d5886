"""What a capture leaves: rows and observations of both sides of a module, as plain arrays."""

from __future__ import annotations

from typing import Literal

from qtui_core.activations.observers import Observed
from qtui_core.dataclass import dataclass
from qtui_core.quant.segments.elements import Float32

Side = Literal["input", "output"]
SIDES: tuple[Side, ...] = ("input", "output")


@dataclass(frozen=True, eq=False)
class ActivationRecord:
    """One side of a module over one text.

    Attributes:
        observed: of all tokens.
        rows: float32 `[kept, features]`, evenly spaced tokens.
    """

    observed: Observed
    rows: Float32

    @property
    def whole(self) -> bool:
        """Whether the rows are all tokens there were."""
        return self.rows.shape[0] == self.observed.tokens


@dataclass(frozen=True, eq=False)
class ModuleRecord:
    """Both sides of a module. A module that no token reached has no features either.

    Attributes:
        module: its name in the model that ran.
        kind: its class, "Linear" or "Conv1D"; a Conv1D keeps its weight as [in, out].
    """

    module: str
    kind: str
    input: ActivationRecord
    output: ActivationRecord

    def side(self, name: Side) -> ActivationRecord:
        return self.input if name == "input" else self.output


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """What went into the layer of one weight: `rows`, float32 `[tokens, inputs]`, evenly spread
    over a text. The weight is [outputs, inputs], or with `transposed` [inputs, outputs] (the
    Conv1D of GPT-2)."""

    rows: Float32
    transposed: bool = False
