"""What a panel needs of the app that it is in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from qtui.screen.widgets.drawing import Drawing

if TYPE_CHECKING:
    from qtui.engine.client import EngineClient
    from qtui.screen.plan.shown import GpuChoice
    from qtui.screen.tensors.subject import Subject
    from qtui_core.memory.plan.run_plan import RunPlan

Severity = Literal["information", "warning", "error"]


class Host(Protocol):
    """The app, as panels know it."""

    drawing: Drawing
    model: str
    looks_ahead: bool
    """Whether processes are started before anything is asked of them."""
    recording: Path | None
    """A recording that the Train panel is still to open."""
    chosen: tuple[RunPlan, GpuChoice | None] | None
    """The plan and the GPU that the panels about memory share; None before one chose."""
    looked_at: tuple[str, Subject] | None
    """The model and what of it the Quantize panel looks at; None while that is nothing."""
    farewell: str
    """What is said once the app is left: where the last run is recorded."""

    @property
    def engine(self) -> EngineClient:
        """The child process that owns torch."""

    @property
    def estimator(self) -> EngineClient:
        """The child processes that estimate memory, without torch."""

    @property
    def panel(self) -> Any:
        """The panel that is shown."""

    def set_device(self, text: str) -> None:
        """The right end of the header line."""

    def tell(self, text: str, severity: Severity = "information") -> None:
        """Shows a sentence for a few seconds and writes it to the log."""
