"""The current state of the Train panel, besides the plan and its estimate."""

from __future__ import annotations

import time
from pathlib import Path

from qtui.tui.panels.train.recordings import Player
from qtui_core.dataclass import dataclass
from qtui_core.live.state import RunState
from qtui_core.training.run.request import USUAL_STEPS

#: Below this batch every smaller batch is tried; above it, only the steps of the form.
EACH = 32
#: The text that adapters are compared on if the user gives none.
USUAL_TEXT = "The memory of a training step is"


@dataclass
class RunShown:
    """A live run or a replay; no run if `state` has no header.

    Attributes:
        state: what is known of the run.
        live: whether its process is running.
        began: when it was started (time.monotonic); None if it is not live.
        wish: a request that it has not obeyed yet: "pausing", "one step", "stopping", or "".
        player: the player of a recording; None for a run of this panel.
        path: the file that it is recorded in, or was read from.
        complaint: what is wrong with the recording, or why there is none.
        silence: the sentence that its process does not answer; "" while it does.
        steps, data, text: settings of the next run. Without `steps` it runs until it is stopped;
            without `data` it reads the built-in text.
        from_zero: whether the picture starts at zero bytes.
        largest: if the plan does not fit, the largest batch that does; 0 if none does, None while
            it is not known.
        largest_of: the plan and the GPU that `largest` is for.
    """

    state: RunState = RunState()
    live: bool = False
    began: float | None = None
    wish: str = ""
    player: Player | None = None
    path: Path | None = None
    complaint: str = ""
    silence: str = ""
    steps: int | None = USUAL_STEPS
    data: str | None = None
    text: str = USUAL_TEXT
    from_zero: bool = True
    largest: int | None = None
    largest_of: tuple[object, ...] = ()

    @property
    def there(self) -> bool:
        """Whether there is a run, live or over, and not only an estimate. A run that failed before
        its header has a fault."""
        told = self.state.header is not None or self.state.fault is not None
        return self.live or self.player is not None or told

    @property
    def paused(self) -> bool:
        if self.player is not None:
            return self.player.paused
        return self.state.status == "paused"

    @property
    def waits_for(self) -> str:
        """The request that the run has not obeyed yet; it may take until the end of a step."""
        obeyed = self.wish != "stopping" and self.paused
        return "" if obeyed or not self.live or self.state.over else self.wish

    @property
    def seconds(self) -> float:
        """The time since the start; it also advances before the first message, as imports take
        long."""
        if self.live and self.began is not None and not self.state.over:
            return max(self.state.seconds, time.monotonic() - self.began)
        return self.state.seconds
