"""The results of a capture: rows and observations of the inputs and outputs of a module, as plain
arrays."""

from __future__ import annotations

from typing import Literal

from qtui_core.activations.observers import Observed
from qtui_core.dataclass import dataclass
from qtui_core.quant.elements import Float32

Side = Literal["input", "output"]


@dataclass(frozen=True, eq=False)
class ActivationRecord:
    """The inputs or the outputs of a module over one text.

    Attributes:
        observed: over all tokens.
        rows: float32 `[kept, features]`, of evenly spaced tokens.
    """

    observed: Observed
    rows: Float32

    @property
    def whole(self) -> bool:
        """Whether the rows are those of all tokens."""
        return self.rows.shape[0] == self.observed.tokens


@dataclass(frozen=True, eq=False)
class ModuleRecord:
    """The inputs and outputs of a module. If no token reached the module, it has no features.

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
    """The inputs of the layer of one weight: `rows`, float32 `[tokens, inputs]`, evenly spaced over
    a text. The weight is [outputs, inputs], or [inputs, outputs] if `transposed` (GPT-2's
    Conv1D)."""

    rows: Float32
    transposed: bool = False
