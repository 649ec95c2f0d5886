"""The life of a question: asked, answered, refused, failed, given up, or lost with its process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeVar

from textual import on
from textual.actions import parse
from textual.app import ComposeResult
from textual.reactive import reactive
from textual.worker import Worker

from qtui.engine.client import EngineClient, EngineLost, EngineState, RequestCancelled
from qtui.screen.messages import ModelFailed
from qtui.screen.panel.base import Panel
from qtui.screen.panel.hooks import PaletteEntry
from qtui.screen.panel.view import View
from qtui.screen.widgets.task_title import TaskTitle
from qtui.screen.widgets.view_tabs import ViewTabs
from qtui_core.errors import ModelError, QtuiError, UsageError

#: The group of the work that opens a model.
OPENING: Final = "open"
#: Someone who holds a key down wants what they stop at.
PAUSE_SECONDS: Final = 0.08
#: What comes sooner replaces what was before it without a blank between them.
GRACE_SECONDS: Final = 0.25

Work = Callable[[], Awaitable[None]]
ViewT = TypeVar("ViewT", bound=View[Any])


class AskingPhase(StrEnum):
    """Where the panel is. `failed` concerns what was asked for, `lost` the engine itself."""

    OPENING = "opening"
    WORKING = "working"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


TROUBLE: Final = (AskingPhase.FAILED, AskingPhase.LOST)


class AskingPanel(Panel):
    """A panel that asks a child process for what it shows, and shows it in several views.

    Its work goes through `do` or `ask`; whatever becomes of it ends in `say`, `refused`, `failed`
    or `engine_lost`, so that a subclass has to know what to ask, how to draw it (`show_phase`,
    `draw`) and what it means (`meaning`).

    (Textual calls `on_mount` of every class of a widget: subclasses must not call this one.)

    Attributes:
        views: one of each class in VIEWS, in the order of their tabs.
        view: the one on the screen.
        tabs: their titles on a line, which the body lays out.
        told: what was last said to be done, or why there is nothing.
        refusal: why the last thing asked for is impossible, until something else is done.
    """

    ENGINE: ClassVar[str] = "engine"
    """The process that the panel asks: as it is called on the screen, and by the app."""

    VIEWS: ClassVar[tuple[type[View[Any]], ...]]

    views: tuple[View[Any], ...]
    view: View[Any]

    phase: reactive[AskingPhase] = reactive(AskingPhase.OPENING, init=False)

    silence: reactive[str] = reactive("", init=False, repaint=False)
    """That the engine does not answer, as a sentence; empty while it does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.told = ""
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

    # What a subclass knows

    def begin_again(self) -> None:
        """Asks anew for what is chosen, after a stop, a failure or a loss."""

    def show_phase(self) -> None:
        """Shows the phase and what is `told`."""

    def draw(self) -> None:
        """Shows the view with all that is known, and what it means."""

    def focus_view(self) -> None:
        """Moves the focus to where work starts in the view."""

    def meaning(self) -> str:
        """What is shown means this; or why there is nothing, or what is being done."""
        return ""

    def offers(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Whether an action can be done now; only then is its key shown."""
        if action == "restart":
            return self.can_restart
        if action == "in_view":
            _, name, own = parse(str(parameters[1]))
            return parameters[0] == self.view.TITLE and bool(self.view.check_action(name, own))
        return True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not self.is_mounted or self.offers(action, parameters)

    # Asking

    def do(self, work: Work, group: str) -> None:
        """Runs what waits for the engine; newer work of the group takes its place."""

        async def run() -> None:
            try:
                await work()
            except RequestCancelled:
                pass  # something newer is on its way
            except EngineLost as error:
                # Told already where it was lost just now, but not where it was asked again;
                # and an engine that was closed or restarted is not lost.
                if self.engine.state is EngineState.LOST:
                    self.engine_lost(str(error))
            except UsageError as error:
                self.refused(str(error))
            except QtuiError as error:
                if group == OPENING and isinstance(error, ModelError):
                    self.post_message(ModelFailed(self.qtui.model, str(error)))
                self.failed(str(error))

        # A function, because a coroutine that is replaced before it starts is never awaited.
        _: Worker[None] = self.run_worker(run, group=group, exclusive=True)

    def ask(self, work: Work, group: str) -> None:
        """The same of an engine that is there: another question is another try, and starts one
        that was lost."""

        async def awake() -> None:
            if self.engine.state is EngineState.LOST:
                await self.engine.restart()
            await work()

        self.do(awake, group)

    def if_late(self, clear: Callable[[], None]) -> None:
        """Takes away what is of the question before, if the answer to this one is long in
        coming."""
        self._late = asked = self._late + 1

        def late() -> None:
            if asked == self._late and self.phase is AskingPhase.WORKING:
                clear()

        self.set_timer(GRACE_SECONDS, late)

    def give_up(self, *groups: str) -> None:
        """Ends what waits for an answer in these groups."""
        for group in groups:
            self.workers.cancel_group(self, group)

    def action_restart(self) -> None:
        """Begins again, with another process where that is lost or does not answer."""
        self.end_silent()
        if self.engine.state is EngineState.LOST:
            self.say(AskingPhase.OPENING, f"Starting the {self.ENGINE}")
            self.do(self._restart, OPENING)
        else:
            self.begin_again()

    async def _restart(self) -> None:
        await self.engine.restart()
        self.begin_again()

    # Saying

    @property
    def trouble(self) -> str:
        """Why there is nothing to show; empty where there is."""
        return self.told if self.phase in TROUBLE else ""

    @property
    def busy(self) -> bool:
        """Whether an answer is waited for."""
        return self.phase in (AskingPhase.OPENING, AskingPhase.WORKING)

    @property
    def can_restart(self) -> bool:
        return self.phase in (AskingPhase.STOPPED, *TROUBLE) or bool(self.silence)

    def say(self, phase: AskingPhase, text: str = "") -> None:
        """Goes to another phase; `text` says what is being done, or why nothing is."""
        self.phase, self.told = phase, text
        if phase in TROUBLE:
            self.refusal = ""
        self.show_phase()

    def watch_phase(self) -> None:
        self.refresh_bindings()

    def speak(self) -> None:
        """The sentence: what is impossible, or what is shown means."""
        self.sentence = self.refusal or self.meaning()

    def forget_refusal(self) -> None:
        """Something else is done now: the sentence is about the picture again."""
        if self.refusal:
            self.refusal = ""
            self.speak()

    def refused(self, sentence: str) -> None:
        """What was asked for is not possible; what is shown stays true."""
        self.refusal = sentence
        self.speak()

    def failed(self, sentence: str) -> None:
        """What was asked for could not be had."""
        self.say(AskingPhase.FAILED, sentence)

    # An engine that is lost, or does not answer

    def _engine_changed(self, state: EngineState, detail: str) -> None:
        lost = state is EngineState.LOST
        self.silence = "" if lost else self._named(detail)
        if lost:
            self.engine_lost(detail)

    def engine_lost(self, sentence: str) -> None:
        """The engine's process is gone, and with it everything in flight. May be called again
        for the same loss."""
        self.say(AskingPhase.LOST, f"{self._named(sentence)}\nr starts it again.")

    def _named(self, sentence: str) -> str:
        """What a client says of its process, in the word of the screen."""
        return sentence.replace("The engine", f"The {self.ENGINE}")

    @property
    def waits_for_engine(self) -> bool:
        """Whether what is shown is from the engine, and old where that does not answer."""
        return True

    def validate_sentence(self, sentence: str) -> str:
        """While the engine is silent, its silence is told in place of the panel's own sentence."""
        self._own_sentence = sentence
        if not (self.silence and self.waits_for_engine):
            return sentence
        return (
            f"{self.silence} What is shown is from before. Esc ends it and r starts it anew; where "
            "it answers after all, everything goes on."
        )

    def watch_silence(self) -> None:
        self.sentence = self._own_sentence
        for title in self.query(TaskTitle):
            title.silent = bool(self.silence) and self.waits_for_engine
        self.refresh_bindings()

    def end_silent(self) -> bool:
        """Ends an engine that does not answer; whether it was one."""
        silent = bool(self.silence)
        if silent:
            self.engine.kill()
        return silent

    def palette(self) -> Iterable[PaletteEntry]:
        if self.engine.state is EngineState.RUNNING:
            yield PaletteEntry(
                f"{self.ENGINE}: Stop", f"End the {self.ENGINE}'s process at once", self.engine.kill
            )

    # Views

    def view_of(self, kind: type[ViewT]) -> ViewT:
        """The view of this kind."""
        return next(view for view in self.views if isinstance(view, kind))

    def show_view(self, view: View[Any]) -> None:
        """Turns to a view; what was refused in the one before is forgotten."""
        self.refusal = ""
        self.view = view
        self.tabs.active = self.views.index(view)
        view.opened()
        self.draw()
        self.focus_view()

    def action_view(self, by: int) -> None:
        """The view `by` places further, from the last on to the first."""
        self.show_view(self.views[(self.tabs.active + by) % len(self.views)])

    def action_in_view(self, title: str, action: str) -> None:
        """An action of the view with this title, which is shown."""
        _, name, own = parse(action)
        getattr(self.view, f"action_{name}")(*own)

    @on(ViewTabs.Clicked)
    def _tab_clicked(self, message: ViewTabs.Clicked) -> None:
        message.stop()
        self.show_view(self.views[message.index])
