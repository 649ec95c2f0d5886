"""The child process of a panel's run, from its start to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from qtui.engine.child_lines import ChildLines, RunClient
from qtui.engine.waiting import EXIT_SECONDS
from qtui.screen.keeper import Keeper
from qtui.screen.panel.asking import AskingPanel

#: Seconds between two drawings of a run: more would be too many for a slow connection.
DRAWN_SECONDS: Final = 0.5


class RunProcess:
    """Starts runs one at a time, each in the process of a client that `make` returns; reads and
    records its messages, and ends it.

    Attributes:
        leaving: whether the app is about to quit, so that no process is started any more.
        silence: the sentence that the process does not answer; "" while it does.
        news: whether there are messages that are not drawn yet.
    """

    def __init__(self, panel: AskingPanel, make: Callable[[], RunClient[Any]]) -> None:
        self._panel, self._make = panel, make
        self._client = make()
        self._gone = asyncio.Event()
        self._gone.set()
        self.leaving = self.news = False
        self.silence = ""

    @property
    def child(self) -> ChildLines:
        """The process of the current run; without one, that of the next run."""
        return self._client.child

    @property
    def busy(self) -> bool:
        """Whether a run is under way."""
        return not self._gone.is_set()

    @property
    def looked_at(self) -> bool:
        return self._panel.qtui.panel is self._panel

    def tick(self) -> bool:
        """Called every DRAWN_SECONDS: returns whether the panel is shown and has news to draw."""
        silence = self.child.silence() if self.busy else ""
        if silence != self.silence:
            self.silence, self.news = silence, True
        drawn = self.news and self.looked_at
        self.news = self.news and not drawn
        return drawn

    async def warm(self) -> None:
        """Starts the process ahead, so that the next run begins at once."""
        if not self.leaving and not self.busy:
            with suppress(OSError):  # the start of the run reports it
                await self.child.warm()

    async def follow(
        self, request: Any, run: Any, keeper: Keeper[Any], hear: Callable[[Any], None]
    ) -> None:
        """Runs `request` until its process ends. Each message goes to `hear` and to the recording;
        `path` and `complaint` of the recording are copied to `run`."""
        if self.busy:  # the previous process is still ending
            self._client = self._make()
        client = self._client
        self._gone.clear()
        try:
            async for event in client.run(request):
                hear(event)
                keeper.write(event)
                if keeper.complaint and not run.complaint:
                    self._panel.qtui.tell(keeper.complaint, "warning")
                run.path, run.complaint = keeper.path, keeper.complaint
                self.news = True
        finally:
            client.child.kill()
            if client is self._client:
                self._client, self.silence = self._make(), ""
                self._gone.set()

    async def finish(self) -> None:
        """Asks the run to stop, and waits until it has ended."""
        self.leaving = True
        self.child.stop()
        await self._until_gone()
        await self.end()

    async def end(self) -> None:
        """Kills the process, and waits until it has ended."""
        self.leaving = True
        self.child.kill()
        await self._until_gone()
        await self.child.wait()

    async def _until_gone(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gone.wait(), EXIT_SECONDS)
