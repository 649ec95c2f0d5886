"""The base of panels: a body, one sentence below it, and hooks that the shell calls."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.containers import Container
from textual.reactive import reactive
from textual.widget import Widget

from qtui.screen.messages import AboutChanged
from qtui.screen.panel.hooks import ShellHooks
from qtui.screen.panel.host import Host
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn_lines import DrawnLines
from qtui.screen.widgets.sentence import Sentence

if TYPE_CHECKING:
    from qtui.screen.picker.picking import Picking


class Panel(ShellHooks, Container):
    """The content of one tab.

    A subclass composes its body in `compose_body`, and sets `sentence` whenever its content
    changes. The sentence is computed from the data; it says what the picture means and what to do.
    The ids of its bindings start with PANEL_ID ("quantize.filter").
    """

    PANEL_ID: ClassVar[str]
    TITLE: ClassVar[str]
    NUMBER: ClassVar[int]
    HELP: ClassVar[str] = ""
    """Markdown, shown by `?`. The shell lists the keys below it."""

    KEYED_WIDGETS: ClassVar[tuple[type[Widget], ...]] = ()
    """Widget classes of this panel with bindings of their own, so that users can rebind these."""

    sentence: reactive[str] = reactive("", init=False, repaint=False)

    about: reactive[str] = reactive("", init=False, repaint=False)
    """What the panel is about in place of the app's model: "a recording of gpt2"; "" if nothing."""

    def compose(self) -> ComposeResult:
        with Container(classes="panel-body"):
            yield from self.compose_body()
        yield Sentence(self.sentence, ellipsis=self.drawing.glyphs.ellipsis)

    def compose_body(self) -> ComposeResult:
        """The widgets of the panel, above the sentence."""
        yield from ()

    def watch_sentence(self, sentence: str) -> None:
        for line in self.query(Sentence):
            line.text = sentence

    def watch_about(self) -> None:
        self.post_message(AboutChanged())

    @property
    def qtui(self) -> Host:
        """The app, with the attributes that panels use."""
        return cast("Host", self.app)

    @property
    def drawing(self) -> Drawing:
        """The colour ramps and glyphs of this terminal."""
        return self.qtui.drawing

    def drawing_changed(self) -> None:
        """Draws everything again, as the colours changed."""
        for widget in self.query(Widget):
            if isinstance(widget, DrawnLines):
                widget.redraw()
            widget.refresh()

    async def pick(self, picking: Picking, taken: Callable[[int | str], None]) -> None:
        """Asks for one of many names with the picker, and calls `taken` with the answer."""
        from qtui.screen.picker.screen import pick  # a start need not pay for it

        await pick(self, self.drawing, picking, taken)

    @property
    def view_title(self) -> str:
        """The title of the view that is shown; "" for a panel without views."""
        return ""

    @property
    def busy(self) -> bool:
        """Whether the panel waits for an answer."""
        return False

    # Hooks, which the shell calls. By default they do nothing.

    def activate(self) -> None:
        """Called when the panel's tab is shown: moves the focus to the main part."""

    def open_model(self, model: str) -> None:
        """Called when the app's model changes to `model`, and once when the panel is built."""

    def show_value(self, value: Fraction | float, origin: str) -> None:
        """Called when another panel sends a value; `origin` says in words where it came from."""

    def unfinished(self) -> str:
        """A sentence about running work that quitting would end; empty if there is none."""
        return ""

    async def finish(self) -> None:
        """Called before the app quits: ends running work in order."""
