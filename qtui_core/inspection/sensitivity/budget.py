"""Parses a budget as people write it: bits per parameter, or bytes."""

from __future__ import annotations

import math
import re

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.models.quoting import quoted
from qtui_core.quantities import BINARY_UNITS

_UNITS = BINARY_UNITS | {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BUDGET = re.compile(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", re.IGNORECASE)
#: A number without a unit is bits per parameter; no dtype stores more than this.
MAX_BITS = 64


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
    unit = match.group(2).lower() if match else ""
    number = float(match.group(1)) * _UNITS.get(unit, 1) if match else 0.0
    if match is None or (unit and unit not in _UNITS) or not 0 < number < math.inf:
        raise UsageError(
            f"{quoted(text)} is no budget: write bits per parameter, such as 4.25, or bytes with a "
            f"unit, such as 3.5GiB or 900MB."
        )
    if unit:
        return Budget(number, is_bits=False)
    if number > MAX_BITS:
        raise UsageError(
            f"A budget of {number:g} bits per parameter is more than anything is stored in: for "
            f"bytes add a unit, such as {number:g}MB."
        )
    return Budget(number, is_bits=True)
