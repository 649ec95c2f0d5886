"""The centre of the Quantize panel: several views of one tensor, of which one is shown.

A view is a container with what it draws. The panel tells it what to look at (`look`) and what
became known meanwhile (`show`); it answers with its picture and its sentence. Keys of a view
stand in `KEYS` and work wherever the focus of the panel is, while the view is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.binding import Binding
from textual.containers import Container
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from qtui.screen.panel.base import Panel
from qtui.screen.panel.hooks import PaletteEntry
from qtui.screen.widgets.drawing import Drawing
from qtui.tui.panels.quantize.loading import Activity, Look
from qtui.tui.panels.quantize.shown import QuantizeShown

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel


class TensorView(Container):
    """One way to look at the subject under the schemes.

    `sentence` is what its picture means, computed from the data; while it is empty the panel's
    own sentence about the error stands there.
    """

    VIEW_ID: ClassVar[str]
    TITLE: ClassVar[str]
    HELP: ClassVar[str] = ""
    """Markdown, added to the help of the panel."""

    KEYS: ClassVar[tuple[Binding, ...]] = ()
    """Bindings of actions of this view, with ids that start with "quantize."."""

    NUMBERS: ClassVar[bool] = True
    """Whether the numbers of the schemes stand beside it."""

    DEFAULT_CSS = """
    TensorView { height: 1fr; }
    """

    def with_numbers(self) -> bool:
        """The same of what is shown now."""
        return self.NUMBERS

    sentence: reactive[str] = reactive("", init=False, repaint=False)

    class Spoke(Message):
        """The sentence of the view changed."""

    def __init__(self, drawing: Drawing) -> None:
        super().__init__(id=f"view-{self.VIEW_ID}")
        self.drawing = drawing
        # Kept, because an answer may still come when the app is left and the view taken out.
        self._panel: QuantizePanel | None = None

    def watch_sentence(self) -> None:
        self.post_message(self.Spoke())

    @property
    def panel(self) -> QuantizePanel:
        """The panel: its `feed` asks the engine, its `shown` is what is looked at, `do(work,
        "view")` runs work that may fail, and `look_at` changes the subject."""
        if self._panel is None:
            found = next(node for node in self.ancestors if isinstance(node, Panel))
            self._panel = cast("QuantizePanel", found)
        return self._panel

    # Hooks. The panel calls them; each does nothing unless the view has something to do.

    async def look(self, look: Look, activity: Activity) -> None:
        """The subject or a scheme changed, or the view has come to the screen: ask for what it
        shows, and show it. `activity` takes what is being done and how far it is (0..1). Runs
        in a worker of the panel, which is cancelled by the next look; may raise what the feed
        raises."""

    def show(self, shown: QuantizeShown) -> None:
        """More became known of what is looked at: errors, statistics, the element."""

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        """What is being done, or why there is nothing (`trouble`); unless `keep`, what is
        shown is no longer true and goes away."""

    def overdue(self, message: str) -> None:
        """What was asked for is long in coming: take away what is of another subject. `message`
        stands where nothing is left."""

    @property
    def typing(self) -> bool:
        """Whether keys are text for a field of the view."""
        return False

    def leave(self) -> None:
        """Leave that field; nothing that was typed takes effect."""

    def focus_start(self) -> bool:
        """Move the focus to where work starts; whether there is such a place."""
        return False

    def drawing_changed(self) -> None:
        """The theme changed: restyle what caches colours."""

    # What the shell's own keys ask for.

    def palette(self) -> Iterable[PaletteEntry]:
        """Entries beyond the keys."""
        return ()

    def copy_text(self) -> str | None:
        """What `y` copies in place of the numbers of the panel."""
        return None

    def export_data(self) -> dict[str, Any] | None:
        """What `e` writes under the id of the view, beside the numbers of the panel."""
        return None

    def export_table(self) -> Iterable[Sequence[object]] | None:
        """What `e` writes as CSV: a header and rows of texts and numbers."""
        return None

    def maximise_target(self) -> Widget | None:
        """What `z` fills the screen with."""
        return None


def view_bindings(views: Iterable[type[TensorView]]) -> list[Binding]:
    """The keys of all views as keys of the panel, whose `action_in_view` runs them."""
    return [
        replace(key, action=f"in_view({view.VIEW_ID!r}, {key.action!r})")
        for view in views
        for key in view.KEYS
    ]
