"""What the Train panel shows at the moment, besides the plan and its estimate."""

from __future__ import annotations

import time
from pathlib import Path

from qtui.tui.panels.train.recordings import Player
from qtui_core.dataclass import dataclass
from qtui_core.live.state import RunState

#: Steps of a run that nobody named a number for: enough to see the loss fall.
USUAL_STEPS = 20
#: A text that adapters are compared on.
USUAL_TEXT = "The memory of a training step is"


@dataclass
class RunShown:
    """A run, live or replayed; none where `state` has no header.

    Attributes:
        state: what is known of it.
        live: whether its process is there.
        began: when it was asked for, of time.monotonic; None for what is not live.
        wish: what it was asked and has not done yet: "pausing", "one step", "stopping", or "".
        player: of a recording; None for a run of this panel.
        path: where it is recorded, or was read from.
        complaint: what is wrong with the recording, or why there is none.
        silence: that its process gives no sign of life, as a sentence; empty where it does.
        steps, data, text: of the next run; None steps go on until stopped, None data is the
            built-in text.
        from_zero: whether the picture starts at zero bytes.
        largest: the largest batch that fits, where the plan does not; 0 where none does, None
            where it is not known, and `largest_of` of what that holds.
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
        """Whether there is a run, going on or over, and not only an estimate. One that failed
        before its header has said why."""
        told = self.state.header is not None or self.state.fault is not None
        return self.live or self.player is not None or told

    @property
    def paused(self) -> bool:
        if self.player is not None:
            return self.player.paused
        return self.state.status == "paused"

    @property
    def waits_for(self) -> str:
        """The wish, while it is still one: what takes effect between two steps may take a while."""
        obeyed = self.wish != "stopping" and self.paused
        return "" if obeyed or not self.live or self.state.over else self.wish

    @property
    def seconds(self) -> float:
        """How long it has gone on, also while its process says nothing: importing takes long."""
        if self.live and self.began is not None and not self.state.over:
            return max(self.state.seconds, time.monotonic() - self.began)
        return self.state.seconds
