"""The centre of the Quantize panel: several views of one tensor, of which one is shown.

A view is a container with what it draws. The panel tells it what to look at (`look`) and what
became known meanwhile (`show`); it answers with its picture and its sentence. Keys of a view
stand in `KEYS` and work wherever the focus of the panel is, while the view is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Container
from textual.message import Message
from textual.reactive import reactive

from qtui.screen.panel.view import View
from qtui.tui.panels.quantize.loading import Activity, Look
from qtui.tui.panels.quantize.shown import QuantizeShown

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel


class TensorView(View[QuantizeShown], Container):
    """One way to look at the subject under the schemes.

    `sentence` is what its picture means, computed from the data; while it is empty the panel's
    own sentence about the error stands there. `panel` asks the engine by its `feed`, its `shown`
    is what is looked at, `do(work, "view")` runs work that may fail, and `look_at` changes the
    subject.
    """

    HELP: ClassVar[str] = ""
    NUMBERS: ClassVar[bool] = True
    """Whether the numbers of the schemes stand beside it."""

    DEFAULT_CSS = """
    TensorView { height: 1fr; }
    """

    panel: QuantizePanel
    sentence: reactive[str] = reactive("", init=False, repaint=False)

    class Spoke(Message):
        """The sentence of the view changed."""

    def __init__(self, panel: QuantizePanel) -> None:
        Container.__init__(self, id=f"view-{self.TITLE.lower()}")
        View.__init__(self, panel)
        self.drawing = panel.drawing

    def watch_sentence(self) -> None:
        self.post_message(self.Spoke())

    def with_numbers(self) -> bool:
        """The same of what is shown now."""
        return self.NUMBERS

    def opened(self) -> None:
        self.panel.reader.look()

    def meaning(self, shown: QuantizeShown) -> str:
        return self.sentence or shown.explanation

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
