"""The error by granularity as a widget that can be focused: keys change the outlier."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.binding import Binding
from textual.message import Message

from qtui.tui.panels.quantize.outliers.lines import TonedLines


class GranularityBars(TonedLines, can_focus=True):
    """The error by granularity; up and down make the injected outlier larger and smaller."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("up,k", "resize(1)", "Larger outlier", show=False, id="outlier.larger",
                tooltip="Double the injected outlier"),
        Binding("down,j", "resize(-1)", "Smaller outlier", show=False, id="outlier.smaller",
                tooltip="Halve the injected outlier"),
    ]  # fmt: skip

    class Resized(Message):
        """The injected outlier is to be larger (1) or smaller (-1)."""

        def __init__(self, direction: int) -> None:
            super().__init__()
            self.direction = direction

    def action_resize(self, direction: int) -> None:
        self.post_message(self.Resized(direction))
