"""A budget as people write it: bits per parameter, or bytes."""

from __future__ import annotations

import math
import re

from qtui_core.errors import UsageError

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
          "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
_BUDGET = re.compile(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", re.IGNORECASE)
#: A number without a unit is bits per parameter, and nothing is stored in more than this.
MAX_BITS = 64


def parse_budget(text: str, parameters: int) -> int:
    """Bytes for `4.25` (bits of each of so many parameters) or `3.2GiB`, `500 MB`, `1200B`.

    Raises UsageError for anything else.
    """
    match = _BUDGET.fullmatch(text.strip())
    number = float(match.group(1)) if match else 0.0
    unit = match.group(2).lower() if match else ""
    if match is None or (unit and unit not in _UNITS) or not 0 < number < math.inf:
        raise UsageError(
            f"{text!r} is no budget: write bits per parameter, such as 4.25, or bytes with a "
            f"unit, such as 3.5GiB or 900MB."
        )
    if unit:
        return int(number * _UNITS[unit])
    if number > MAX_BITS:
        raise UsageError(
            f"A budget of {number:g} bits per parameter is more than anything is stored in: for "
            f"bytes add a unit, such as {number:g}MB."
        )
    return int(number * parameters / 8)
