"""What every panel is: a body, one sentence below it, and the hooks the shell calls."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.containers import Container
from textual.reactive import reactive
from textual.widget import Widget

from qtui.screen.panel.hooks import ShellHooks
from qtui.screen.panel.host import Host
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn import DrawnLines
from qtui.screen.widgets.sentence import Sentence


class Panel(ShellHooks, Container):
    """One tab's content.

    A subclass names itself, composes its body in `compose_body`, and writes `sentence` whenever
    what it shows changes: one line, computed from the data, that says what the picture means and
    what to do about it. Bindings carry ids that start with PANEL_ID ("quantize.filter").
    """

    PANEL_ID: ClassVar[str]
    TITLE: ClassVar[str]
    NUMBER: ClassVar[int]
    HELP: ClassVar[str] = ""
    """Markdown, shown by `?`. The keys are listed below it by the shell."""

    KEYED_WIDGETS: ClassVar[tuple[type[Widget], ...]] = ()
    """Widgets of this panel that declare bindings of their own, so that these can be rebound."""

    sentence: reactive[str] = reactive("", init=False, repaint=False)

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

    @property
    def qtui(self) -> Host:
        """The app, as panels know it."""
        return cast("Host", self.app)

    @property
    def drawing(self) -> Drawing:
        """Ramps and glyphs of this terminal."""
        return self.qtui.drawing

    def drawing_changed(self) -> None:
        """The colours of the terminal changed: everything is drawn anew."""
        for widget in self.query(Widget):
            if isinstance(widget, DrawnLines):
                widget.redraw()
            widget.refresh()

    # Hooks. The shell calls them; each does nothing unless the panel has something to do.

    def activate(self) -> None:
        """The panel's tab is now shown. Move the focus to where work starts."""

    def open_model(self, model: str) -> None:
        """The app's model is now `model` (also called once, when the panel is first built)."""

    def show_value(self, value: Fraction | float, origin: str) -> None:
        """Another panel sent a value; `origin` says in words where it came from."""

    def unfinished(self) -> str:
        """What goes on that leaving would end, as a sentence; empty where nothing does."""
        return ""

    async def finish(self) -> None:
        """Ends what is unfinished, in order: the app is about to leave."""
