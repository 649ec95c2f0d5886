"""A panel that asks a child process, and shows what becomes of each request: answered, refused,
failed, cancelled, or lost with the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeVar

from textual import on
from textual.actions import parse
from textual.app import ComposeResult
from textual.reactive import reactive
from textual.worker import Worker

from qtui.engine.client import EngineClient, EngineLost, EngineState
from qtui.screen.messages import ModelFailed
from qtui.screen.panel.base import Panel
from qtui.screen.panel.hooks import PaletteEntry
from qtui.screen.panel.keys import MANY, key_of
from qtui.screen.panel.view import View
from qtui.screen.widgets.task_title import TaskTitle
from qtui.screen.widgets.view_tabs import ViewTabs
from qtui_core.errors import ModelError, QtuiError, UsageError

#: The group of the work that opens a model.
OPENING: Final = "open"
#: Seconds until a request is sent: while a key is held down, only the last choice is requested.
PAUSE_SECONDS: Final = 0.08
#: Seconds until old content is cleared; an answer that comes sooner replaces it without a blank.
GRACE_SECONDS: Final = 0.25

Work = Callable[[], Awaitable[None]]
ViewT = TypeVar("ViewT", bound=View[Any])


class AskingPhase(StrEnum):
    """The state of the panel. FAILED: the last request failed. LOST: the engine's process ended."""

    OPENING = "opening"
    WORKING = "working"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


TROUBLE: Final = (AskingPhase.FAILED, AskingPhase.LOST)


class AskingPanel(Panel):
    """A panel that asks a child process for its content, and shows it in several views.

    A subclass sends requests with `do` or `ask`, which call `refused`, `failed` or `engine_lost`
    if a request has no answer. The subclass defines what to request, how to draw the answer
    (`show_phase`, `draw`) and its sentence (`meaning`).

    (Textual calls `on_mount` of every class of a widget: subclasses must not call this one.)

    Attributes:
        views: an object of each class in VIEWS, in the order of their tabs.
        view: the view on the screen.
        tabs: the line with the titles of the views; the body lays it out.
        status: the text of the phase: what is being done, or why there is no content.
        refusal: why the last request is impossible; empty after the next action.
    """

    ENGINE: ClassVar[str] = "engine"
    """The process that the panel asks: its name on the screen, and an attribute of the app."""

    VIEWS: ClassVar[tuple[type[View[Any]], ...]]

    views: tuple[View[Any], ...]
    view: View[Any]

    phase: reactive[AskingPhase] = reactive(AskingPhase.OPENING, init=False)

    silence: reactive[str] = reactive("", init=False, repaint=False)
    """The sentence that the engine does not answer; empty while it does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.status = ""
        self.refusal = ""
        self._own_sentence = ""
        self._late = 0

    def compose(self) -> ComposeResult:
        self.views = tuple(view(self) for view in self.VIEWS)
        self.view = self.views[0]
        titles = [view.TITLE for view in self.views]
        self.tabs = ViewTabs(titles, self.drawing.glyphs.pointer)
        yield from super().compose()

    def on_mount(self) -> None:
        self._unsubscribe = self.engine.subscribe(self._engine_changed)

    def on_unmount(self) -> None:
        self._unsubscribe()

    @property
    def engine(self) -> EngineClient:
        """The process that the panel asks."""
        found: EngineClient = getattr(self.qtui, self.ENGINE)
        return found

    # What a subclass defines

    def begin_again(self) -> None:
        """Repeats the requests of the current choice, after a stop, a failure or a lost engine."""

    def show_phase(self) -> None:
        """Shows the phase and the text in `status`."""

    def draw(self) -> None:
        """Draws the view from everything that is known, and sets the sentence."""

    def focus_view(self) -> None:
        """Moves the focus to the main part of the view."""

    def meaning(self) -> str:
        """The sentence: what the content means, why there is none, or what is being done."""
        return ""

    def other_subject(self) -> str:
        """What is shown in place of the app's model, in words; "" if it is the app's model."""
        return ""

    def offers(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Whether an action is possible now; the footer shows only keys of such actions."""
        if action == "restart":
            return self.can_restart
        if action == "in_view":
            _, name, own = parse(str(parameters[1]))
            return parameters[0] == self.view.TITLE and bool(self.view.check_action(name, own))
        return True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("edge", "page"):  # what moves far, moves
            action = "move"
        return self.is_mounted and self.offers(action, parameters)

    # Moving

    def action_move(self, by: int) -> None:
        """Moves by so many lines in what has the cursor."""

    def action_edge(self, side: int) -> None:
        """Goes to the first line (-1) of what has the cursor, or to the last (1)."""
        self.action_move(side * MANY)

    def action_page(self, by: int) -> None:
        focused = self.screen.focused
        self.action_move(by * max(2, focused.size.height - 1 if focused is not None else 0))

    # Asking

    def do(self, work: Work, group: str) -> None:
        """Runs work that waits for the engine. Newer work of the same group cancels it."""

        async def run() -> None:
            try:
                await work()
            except EngineLost as error:
                # `_engine_changed` has shown a loss that happened just now, but not one before this
                # request, nor that another panel restarted the engine.
                if self.busy or self.engine.state is EngineState.LOST:
                    self.engine_lost(str(error))
            except UsageError as error:
                self.refused(str(error))
            except QtuiError as error:
                if group == OPENING and isinstance(error, ModelError):
                    self.post_message(ModelFailed(self.qtui.model, str(error)))
                self.failed(str(error))

        # A function, because a coroutine that is cancelled before it starts is never awaited.
        _: Worker[None] = self.run_worker(run, group=group, exclusive=True)

    def ask(self, work: Work, group: str) -> None:
        """Like `do`, but restarts a lost engine first."""

        async def restarted() -> None:
            if self.engine.state is EngineState.LOST:
                await self.engine.restart()
            await work()

        self.do(restarted, group)

    def if_late(self, clear: Callable[[], None]) -> None:
        """Calls `clear`, which removes the content of an earlier request, if the answer takes
        longer than GRACE_SECONDS."""
        self._late = asked = self._late + 1

        def late() -> None:
            if asked == self._late and self.phase is AskingPhase.WORKING:
                clear()

        self.set_timer(GRACE_SECONDS, late)

    def give_up(self, *groups: str) -> None:
        """Cancels the work of these groups."""
        for group in groups:
            self.workers.cancel_group(self, group)

    def action_restart(self) -> None:
        """Repeats the requests; first restarts the engine if it is lost or does not answer."""
        self.end_silent()
        if self.engine.state is EngineState.LOST:
            self.say(AskingPhase.OPENING, f"Starting the {self.ENGINE}")
            self.do(self._restart, OPENING)
        else:
            self.begin_again()

    async def _restart(self) -> None:
        await self.engine.restart()
        self.begin_again()

    # The phase and the sentence

    @property
    def trouble(self) -> str:
        """Why there is no content; empty if there is no trouble."""
        return self.status if self.phase in TROUBLE else ""

    @property
    def way_out(self) -> str:
        """Why there is no content, and the key that opens another model."""
        if self.phase is not AskingPhase.FAILED:
            return self.trouble
        return f"{self.trouble}\n{key_of(self, 'app.open_model')} opens another model."

    @property
    def view_title(self) -> str:
        return self.view.TITLE

    @property
    def busy(self) -> bool:
        """Whether the panel waits for an answer."""
        return self.phase in (AskingPhase.OPENING, AskingPhase.WORKING)

    @property
    def can_restart(self) -> bool:
        return self.phase in (AskingPhase.STOPPED, *TROUBLE) or bool(self.silence)

    def say(self, phase: AskingPhase, text: str = "") -> None:
        """Sets the phase; `text` says what is being done, or why nothing is."""
        self.phase, self.status = phase, text
        if phase in TROUBLE:
            self.refusal = ""
        self.show_phase()

    def watch_phase(self) -> None:
        self.refresh_bindings()

    def speak(self) -> None:
        """Sets the sentence: the refusal, or else the meaning of the content."""
        self.sentence = self.refusal or self.meaning()
        self.about = self.other_subject()

    def forget_refusal(self) -> None:
        """Removes a refusal, so that the sentence is about the content again."""
        if self.refusal:
            self.refusal = ""
            self.speak()

    def refused(self, sentence: str) -> None:
        """Shows why a request is impossible. The content stays, as it is still correct."""
        self.refusal = sentence
        self.speak()

    def failed(self, sentence: str) -> None:
        """Shows why a request failed, in place of the content."""
        self.say(AskingPhase.FAILED, sentence)

    # A lost or silent engine

    def _engine_changed(self, state: EngineState, detail: str) -> None:
        lost = state is EngineState.LOST
        self.silence = "" if lost else self._named(detail)
        if lost:
            self.engine_lost(detail)

    def engine_lost(self, sentence: str) -> None:
        """Shows that the engine's process ended; all its requests have failed. May be called again
        for the same loss."""
        self.say(AskingPhase.LOST, f"{self._named(sentence)}\nr starts it again.")

    def _named(self, sentence: str) -> str:
        """A sentence of the client, with the name that the screen uses for the process."""
        return sentence.replace("The engine", f"The {self.ENGINE}")

    @property
    def waits_for_engine(self) -> bool:
        """Whether the content comes from the engine, so that it is old while the engine is
        silent."""
        return True

    def validate_sentence(self, sentence: str) -> str:
        """While the engine does not answer, replaces the panel's own sentence by one that says
        so."""
        self._own_sentence = sentence
        if not (self.silence and self.waits_for_engine):
            return sentence
        return (
            f"{self.silence} The screen shows older content. Wait until it answers, or end it with "
            "Esc and start it again with r."
        )

    def watch_silence(self) -> None:
        self.sentence = self._own_sentence
        for title in self.query(TaskTitle):
            title.silent = bool(self.silence) and self.waits_for_engine
        self.refresh_bindings()

    def end_silent(self) -> bool:
        """Ends an engine that does not answer. Returns whether it was silent."""
        silent = bool(self.silence)
        if silent:
            self.engine.kill()
        return silent

    def palette(self) -> Iterable[PaletteEntry]:
        if self.engine.state is EngineState.RUNNING:
            yield PaletteEntry(
                f"{self.ENGINE}: Stop",
                f"End the {self.ENGINE}'s process at once.",
                self.engine.kill,
            )

    # Views

    def view_of(self, kind: type[ViewT]) -> ViewT:
        """The view of this kind."""
        return next(view for view in self.views if isinstance(view, kind))

    def show_view(self, view: View[Any]) -> None:
        """Shows a view, and removes a refusal of the previous one."""
        self.refusal = ""
        self.view = view
        self.tabs.active = self.views.index(view)
        view.opened()
        self.draw()
        self.focus_view()
        self.refresh_bindings()  # the keys of this view, and their words

    def action_view(self, by: int) -> None:
        """Shows the view `by` places further; after the last comes the first."""
        self.show_view(self.views[(self.tabs.active + by) % len(self.views)])

    def action_in_view(self, title: str, action: str) -> None:
        """Runs an action of the view whose title is `title`, unless another one is shown by now."""
        _, name, own = parse(action)
        getattr(self.view, f"action_{name}", lambda *own: None)(*own)

    @on(ViewTabs.Clicked)
    def _tab_clicked(self, message: ViewTabs.Clicked) -> None:
        message.stop()
        self.show_view(self.views[message.index])
