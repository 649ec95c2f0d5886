"""What the Codebooks panel shows at the moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qtui.tui.panels.codebooks.data import (
    Budget,
    CodeColumn,
    Construction,
    EqualRow,
    SweepRow,
)
from qtui.tui.panels.quantize.data import ModelIndex
from qtui.tui.widgets.tensor_list import TensorEntry

#: All take 4.5 bits per parameter but the one with a zero point, which takes 4.5625.
FIRST_SCHEMES = (
    "nf4:block64", "int4:group64", "int4:group64:asym", "fp4:block64", "e2m1:group64", "nvfp4",
)  # fmt: skip
BLOCK, NESTED_BLOCK = 64, 256


def nested_option(nested_block: int) -> str:
    """Double quantization as a scheme says it."""
    return "dq" if nested_block == NESTED_BLOCK else f"dq{nested_block}"


class ViewName(StrEnum):
    """The four pictures, in the order of the key."""

    CODES = "Codes"
    LEVELS = "Levels"
    BUDGET = "Budget"
    CONSTRUCTION = "Construction"


@dataclass
class Shown:
    """Filled piece by piece; None or empty is what is not known yet.

    `asked` are the schemes as they were chosen, `columns` what is known of them on the tensor,
    resized as in `equal` where that is not empty, and `verdict` is the sentence about them.
    `chosen` is the scheme and `code` the bar that the cursor is on; `step` is that of the
    construction.
    """

    model: str
    index: ModelIndex | None = None
    entry: TensorEntry | None = None
    view: ViewName = ViewName.CODES
    asked: tuple[str, ...] = FIRST_SCHEMES
    at_equal_bits: bool = False
    equal: tuple[EqualRow, ...] = ()
    columns: tuple[CodeColumn, ...] = ()
    verdict: str = ""
    budgets: tuple[Budget, ...] = ()
    sweep: tuple[SweepRow, ...] = ()
    construction: Construction | None = None
    chosen: int = 0
    code: int = 0
    step: int = 0
    block: int = BLOCK
    nested_block: int = NESTED_BLOCK
    double_quantization: bool = False

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that are shown."""
        return tuple(column.scheme for column in self.columns)

    @property
    def column(self) -> CodeColumn | None:
        """The scheme that the cursor is on."""
        return self.columns[min(self.chosen, len(self.columns) - 1)] if self.columns else None

    def choose(self, entry: TensorEntry) -> None:
        """Another tensor: what is known is of the one before."""
        self.entry = entry
        self.columns, self.verdict = (), ""
        self.budgets, self.sweep, self.equal = (), (), ()
