"""Expresses the dimensions of a traced tensor by letters of the configuration and the plan.

A trace knows the sizes of tensors but not where they come from. A dimension that is as large as a
letter's value is taken to be that letter; if several letters have the value, the first in the list,
which is the most frequent one, is taken. So a formula of a trace always evaluates to the traced
bytes, but it may name another letter of the same value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qtui_core.memory.formulas.size import letter, letters_of
from qtui_core.memory.plan.run_plan import RunPlan

#: Letters, and products of two letters, that a dimension is compared with, in this order.
_FIRST = ("S", "h", "V", "I", "HD", "GD", "M", "H", "G", "D", "E", "r")
#: Smaller dimensions say nothing about where they come from.
_SHORTEST = 3


class Dimensions:
    """Letters by the size of the dimensions that they stand for."""

    def __init__(self, config: Mapping[str, Any], plan: RunPlan) -> None:
        known = letters_of(config.get("text_config") or config)
        self._batch = letter("B", plan.batch)
        known |= {"S": letter("S", plan.sequence), "r": letter("r", plan.lora_rank)}
        if "D" not in known and {"h", "H"} <= set(known):
            known["D"] = letter("D", known["h"] // known["H"])
        tokens = self._batch * known["S"]
        self._by_length: dict[int, int] = {}
        for name in (*_FIRST, *known):
            if all(part in known for part in name):
                size = known[name[0]] if len(name) == 1 else known[name[0]] * known[name[1]]
                if size >= _SHORTEST:
                    self._by_length.setdefault(int(size), size)
        self._by_length.setdefault(int(tokens), tokens)
        self._sequence = plan.sequence

    def bytes_of(self, dimensions: Sequence[int], element: int) -> int:
        """The bytes of a tensor with these dimensions and so many bytes per element, as a product
        of letters."""
        size = element
        for place, side in enumerate(dimensions):
            batch = not place and side == self._batch and self._sequence in dimensions[1:]
            size = size * (self._batch if batch else self._by_length.get(side, side))
        return size
