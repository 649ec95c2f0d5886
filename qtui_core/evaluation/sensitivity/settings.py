"""What an assignment makes least, and within which budget; by default by the size of the model, and
by what can run here."""

from __future__ import annotations

import math
import re
from typing import Final, Literal, get_args

from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, UsageError
from qtui_core.extras import require
from qtui_core.models import ModelSource
from qtui_core.models.quoting import quoted
from qtui_core.quantities import BINARY_UNITS, format_count

#: What an assignment makes least: the squared error of the weights; or the KL divergence of the
#: model's predictions, summed over its tensors, as estimated from gradients or as measured.
Objective = Literal["weights", "fisher", "kl"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)
#: Tokens that the model reads for `kl` and `fisher`: 8 windows of 256.
TOKENS: Final = 2048
#: The most operations of an objective that is chosen unasked. A CPU core does some 5 * 10^10 a
#: second, so `kl` takes a minute on two cores, and `fisher` a quarter of an hour.
KL_OPERATIONS: Final = 5 * 10**12
FISHER_OPERATIONS: Final = 10**14
#: Operations for each parameter and token: two forwards; four more backwards, and two for the
#: forward pass of a layer that is run again.
_FORWARD: Final = 2
_BACKWARD: Final = 8

_UNITS = BINARY_UNITS | {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BUDGET = re.compile(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", re.IGNORECASE)
#: A number without a unit is bits per parameter; no dtype stores more than this.
MAX_BITS = 64


def usual_objective(
    source: ModelSource, options: int, *, required: bool = False
) -> tuple[Objective, str]:
    """The objective, and a part of a sentence that says why the model is not run; "" if it is.

    Args:
        options: how many ways to store one tensor there are, of all tensors together.
        required: whether the model must be run, as a text was named for it.
    """
    work = source.parameters * TOKENS
    # Of a changed model, the layers after the changed tensor run: half of them.
    few = _FORWARD * work * options // 2 <= KL_OPERATIONS
    objective: Objective = "kl" if few else "fisher"
    if required:
        return objective, ""
    if not few and _BACKWARD * work > FISHER_OPERATIONS:
        return "weights", (
            f"{format_count(source.parameters)} parameters take longer than a quarter of an hour: "
            f"--objective fisher runs them all the same"
        )
    if source.config is None:
        return "weights", "there is no config.json to run the model by"
    try:
        require(f"--objective {objective}", "torch", "transformers")
    except QtuiError as error:
        return "weights", str(error)
    return objective, ""


@dataclass(frozen=True)
class Budget:
    """A number of bytes, or of bits per parameter if `is_bits`."""

    amount: float
    is_bits: bool

    def nbytes(self, parameters: int) -> int:
        """Whole bytes for a model with this many parameters."""
        return int(self.amount * parameters / 8) if self.is_bits else int(self.amount)


def parse_budget(text: str) -> Budget:
    """A budget from `4.25` (bits per parameter) or `3.2GiB`, `500 MB`, `1200B`.

    Raises UsageError for anything else.
    """
    match = _BUDGET.fullmatch(text.strip())
    unit = match[2].lower() if match else ""
    number = float(match[1]) * _UNITS.get(unit, 1) if match and unit in ("", *_UNITS) else 0.0
    if not 0 < number < math.inf or (not unit and number > MAX_BITS):
        raise UsageError(
            f"{quoted(text)} is no budget: write bits per parameter up to {MAX_BITS}, such as "
            f"4.25, or bytes with a unit, such as 3.5GiB or 900MB."
        )
    return Budget(number, is_bits=not unit)
