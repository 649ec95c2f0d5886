"""What panels that ask the engine share: waiting for it, and losing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from textual.worker import Worker

from qtui.engine.client import EngineLost, EngineState, RequestCancelled
from qtui.tui.messages import ModelFailed
from qtui.tui.panels.base import Panel
from qtui_core.errors import ModelError, QtuiError, UsageError

OPENING = "open"
"""The group of the work that opens a model."""

Work = Callable[[], Awaitable[None]]


class EnginePanel(Panel):
    """A panel whose work may fail in three ways, each with a hook of its own.

    (Textual calls `on_mount` of every class of a widget: subclasses must not call this one.)
    """

    def on_mount(self) -> None:
        self._unsubscribe = self.qtui.engine.subscribe(self._engine_changed)

    def on_unmount(self) -> None:
        self._unsubscribe()

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
                if self.qtui.engine.state is EngineState.LOST:
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
        if state is EngineState.LOST:
            self.engine_lost(detail)

    def refused(self, sentence: str) -> None:
        """What was asked for is not possible; what is shown stays true."""
        self.sentence = sentence

    def failed(self, sentence: str) -> None:
        """What was asked for could not be had."""

    def engine_lost(self, sentence: str) -> None:
        """The engine's process is gone, and with it everything in flight. May be called again
        for the same loss."""
