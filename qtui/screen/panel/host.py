"""The attributes and methods of the app that panels use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from qtui.screen.widgets.drawing import Drawing

if TYPE_CHECKING:
    from qtui.engine.client import EngineClient
    from qtui.screen.panel.base import Panel
    from qtui.screen.plan.history import Choice, PlanHistory
    from qtui.screen.tensors.subject import Subject

Severity = Literal["information", "warning", "error"]


class LastLooks(Protocol):
    """The views that were on the screen."""

    def leaving(self, panel: Panel | None) -> None:
        """Another view comes next: what is on the screen is the last look at this panel."""


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
    history: PlanHistory
    """The changes of that plan."""
    looked_at: tuple[str, Subject] | None
    """The model and the subject that the Quantize panel shows; None if it shows none."""
    visits: LastLooks
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
