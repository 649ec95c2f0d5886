"""What the sides of a traced tensor are: letters of the configuration and the plan.

A trace knows sizes of tensors and not where they come from. A side that is as long as a letter says
goes by it; of several letters that first which more tensors have. So a formula of a trace gives its
bytes exactly, and may be of another letter with the same value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qtui_core.memory.formulas.letters import letters_of
from qtui_core.memory.formulas.size import letter
from qtui_core.memory.plan.run_plan import RunPlan

#: Letters that sides are taken for, in this order, and products of two.
_FIRST = ("S", "h", "V", "I", "HD", "GD", "M", "H", "G", "D", "E", "r")
#: Sides this short say nothing of where they come from.
_SHORTEST = 3


class Sides:
    """Letters by how long the sides are that go by them."""

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

    def bytes_of(self, sides: Sequence[int], element: int) -> int:
        """Bytes of a tensor with these sides and bytes an element, as a product of letters."""
        size = element
        for place, side in enumerate(sides):
            batch = not place and side == self._batch and self._sequence in sides[1:]
            size = size * (self._batch if batch else self._by_length.get(side, side))
        return size
