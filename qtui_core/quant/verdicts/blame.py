"""What an error is blamed on."""

from __future__ import annotations

from enum import Enum, auto

from qtui_core.dataclass import dataclass


class Blame(Enum):
    """What is at fault, as far as the remedy depends on it."""

    SUBNORMALS = auto()
    OCTAVES = auto()
    MODEL_SCALE = auto()
    SMALLEST_SCALE = auto()
    OUTLIERS = auto()
    CUT_OFF = auto()
    SPREAD = auto()
    LIGHT_TAILS = auto()
    LEVELS = auto()
    OFF_CENTRE = auto()


@dataclass(frozen=True)
class Cause:
    """`columns` is how many columns were named; `hit` the share of groups with an outlier."""

    blame: Blame
    text: str
    columns: int = 0
    hit: float = 1.0
