"""The base of the views in the centre of the Quantize panel, of which one is shown.

A view is a container with its own widgets. The panel calls `look` with the subject, and `show` when
more is known; the view draws its picture and sets its sentence. While the view is shown its `KEYS`
work wherever the focus is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Container
from textual.message import Message
from textual.reactive import reactive

from qtui.screen.command_line import Command, inspect_command
from qtui.screen.panel.view import View
from qtui.tui.panels.quantize.shown import QuantizeShown
from qtui.tui.panels.quantize.tensor_reader import Activity, Look

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel


class TensorView(View[QuantizeShown], Container):
    """One way to show the subject under the schemes.

    `sentence` says what the picture means, computed from the data; while it is empty the panel
    shows its own sentence about the error. Of the panel a view uses `feed` (requests), `shown` (the
    state), `do(work, "view")` (runs work that may fail) and `look_at` (changes the subject).
    """

    HELP: ClassVar[str] = ""
    NUMBERS: ClassVar[bool] = True
    """Whether the numbers of the schemes are shown beside the view."""

    OF_TENSOR: ClassVar[bool] = True
    """Whether the view is about the chosen tensor; else the list of tensors is not shown."""

    OFFERS: ClassVar[frozenset[str]] = frozenset()
    """Actions on the tensors that work though the list is not shown."""

    EXPORTED: ClassVar[str] = ""
    """The name of the view's data in an export; empty for its title."""

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
        """Whether the numbers are shown beside the view in its current state."""
        return self.NUMBERS

    def opened(self) -> None:
        self.panel.reader.look()

    def meaning(self, shown: QuantizeShown) -> str:
        return self.sentence or shown.explanation

    def command_line(self) -> Command:
        shown = self.panel.shown
        if shown.entry is None:
            return "No tensor is shown, so there is no command."
        return inspect_command(shown.model, shown.entry, shown.subject, shown.schemes)

    # Hooks, which the panel calls. By default they do nothing.

    async def look(self, look: Look, activity: Activity) -> None:
        """Called when the subject or a scheme changes, and when the view comes to the screen:
        requests the view's data and shows it. `activity` takes what is being done and its progress,
        0 to 1. It runs in a worker of the panel, which the next look cancels, and may raise what
        the feed raises."""

    def show(self, shown: QuantizeShown) -> None:
        """Called when more is known about the subject: errors, statistics, the element."""

    def ranked(self) -> None:
        """Called when more tensors of the ranking were read, or its reading ended."""

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        """Shows what is being done, or why there is no content (`trouble`). Unless `keep`, the old
        content is removed."""

    def overdue(self, message: str) -> None:
        """Called when answers take long: removes content of another subject, and shows `message` if
        none is left."""

    @property
    def working(self) -> bool:
        """Whether the view runs something that goes on while other views are shown."""
        return False

    def stop(self) -> None:
        """Stops that."""

    @property
    def typing(self) -> bool:
        """Whether a text field of the view has the focus."""
        return False

    def leave(self) -> None:
        """Leaves the text field; the typed text is dropped."""

    def focus_start(self) -> bool:
        """Moves the focus to the main part of the view. Returns whether there is one."""
        return False
