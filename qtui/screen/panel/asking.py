"""What panels that ask the engine share: waiting for it, and losing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, ClassVar

from textual.reactive import reactive
from textual.worker import Worker

from qtui.engine.client import EngineClient, EngineLost, EngineState, RequestCancelled
from qtui.screen.messages import ModelFailed
from qtui.screen.panel.base import Panel
from qtui.screen.widgets.task_title import TaskTitle
from qtui_core.errors import ModelError, QtuiError, UsageError

OPENING = "open"
"""The group of the work that opens a model."""

Work = Callable[[], Awaitable[None]]


class Phase(StrEnum):
    """Where the panel is. `failed` concerns what was asked for, `lost` the engine itself."""

    OPENING = "opening"
    WORKING = "working"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


class EnginePanel(Panel):
    """A panel whose work may fail in three ways, each with a hook of its own.

    (Textual calls `on_mount` of every class of a widget: subclasses must not call this one.)
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._own_sentence = ""

    silence: reactive[str] = reactive("", init=False, repaint=False)
    """That the engine does not answer, as a sentence; empty while it does."""

    ENGINE: ClassVar[str] = "engine"
    """What the process that the panel asks is called on the screen."""

    def on_mount(self) -> None:
        self._unsubscribe = self.engine.subscribe(self._engine_changed)

    def on_unmount(self) -> None:
        self._unsubscribe()

    @property
    def engine(self) -> EngineClient:
        """The process that the panel asks."""
        return self.qtui.engine

    def do(self, work: Work, group: str) -> None:
        """Run what waits for the engine; newer work of the group takes its place."""

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

    def _engine_changed(self, state: EngineState, detail: str) -> None:
        lost = state is EngineState.LOST
        self.silence = "" if lost else self.named(detail)
        if lost:
            self.engine_lost(detail)

    def named(self, sentence: str) -> str:
        """What a client says of its process, in the word of the screen."""
        return sentence.replace("The engine", f"The {self.ENGINE}")

    # An engine that does not answer

    @property
    def waits_for_engine(self) -> bool:
        """Whether what is shown is from the engine, and old where that does not answer."""
        return True

    def validate_sentence(self, sentence: str) -> str:
        """What is computed from data gives way while the data are old."""
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

    def refused(self, sentence: str) -> None:
        """What was asked for is not possible; what is shown stays true."""
        self.sentence = sentence

    def failed(self, sentence: str) -> None:
        """What was asked for could not be had."""

    def engine_lost(self, sentence: str) -> None:
        """The engine's process is gone, and with it everything in flight. May be called again
        for the same loss."""
