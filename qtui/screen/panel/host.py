"""The attributes and methods of the app that panels use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from qtui.screen.widgets.drawing import Drawing

if TYPE_CHECKING:
    from qtui.engine.client import EngineClient
    from qtui.screen.plan.history import Choice, History
    from qtui.screen.tensors.subject import Subject

Severity = Literal["information", "warning", "error"]


class Host(Protocol):
    """The app, with the attributes that panels use."""

    drawing: Drawing
    model: str
    looks_ahead: bool
    """Whether the app starts child processes before their first request."""
    recording: Path | None
    """The recording that the Train panel will open; None if there is none."""
    chosen: Choice | None
    """The plan and the GPU that the panels share; None until one is chosen."""
    plan_of: str
    """The model that the plan was made for."""
    history: History[Choice]
    """The changes of that plan."""
    looked_at: tuple[str, Subject] | None
    """The model and the subject that the Quantize panel shows; None if it shows none."""
    farewell: str
    """The sentence that is printed after the app quits: where the last run is recorded."""

    @property
    def engine(self) -> EngineClient:
        """The child process that owns torch."""

    @property
    def estimator(self) -> EngineClient:
        """The child processes that estimate memory, without torch."""

    @property
    def panel(self) -> Any:
        """The current panel."""

    def set_device(self, text: str) -> None:
        """Sets the text at the right end of the header line."""

    def tell(self, text: str, severity: Severity = "information") -> None:
        """Shows a sentence for a few seconds and writes it to the log."""
