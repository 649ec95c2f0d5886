"""How a checkpoint of any family is stored, from its config.json alone."""

from __future__ import annotations

from typing import Any

from qtui_core.memory.plan.run_plan import Stored
from qtui_core.memory.shape.config_reader import Config, stored_dtype
from qtui_core.memory.shape.packings import packing_of


def stored_as(config: dict[str, Any]) -> Stored:
    packing = packing_of(config)
    return Stored(stored_dtype(Config(config)), None if packing is None else packing.quant)
