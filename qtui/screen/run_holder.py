"""What a panel holds of a run that goes on: its process, from the start to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from qtui.engine.child_lines import ChildLines
from qtui.engine.lab.client import LabClient
from qtui.engine.run.client import RunClient
from qtui.engine.waiting import EXIT_SECONDS
from qtui.screen.keeper import Keeper
from qtui.screen.panel.asking import AskingPanel

#: Seconds between two pictures of what goes on: more would be seen by nobody, and cost whoever is
#: far away.
DRAWN_SECONDS: Final = 0.5


class RunHolder:
    """Starts a run in the process of a client that `make` makes, hears it, records it, ends it.

    Attributes:
        leaving: whether the app is about to end: no process is started any more.
        silence: that the process gives no sign of life, as a sentence.
        news: whether something became known that was not drawn.
    """

    def __init__(self, panel: AskingPanel, make: Callable[[], RunClient | LabClient]) -> None:
        self._panel, self._make = panel, make
        self._client = make()
        self._gone = asyncio.Event()
        self._gone.set()
        self.leaving = self.news = False
        self.silence = ""

    @property
    def child(self) -> ChildLines:
        """The process of the run that goes on, or else of the next one."""
        return self._client.child

    @property
    def busy(self) -> bool:
        """Whether a run goes on."""
        return not self._gone.is_set()

    @property
    def looked_at(self) -> bool:
        return self._panel.qtui.panel is self._panel

    def tick(self) -> bool:
        """Twice a second: whether there is something to draw, for somebody who looks."""
        silence = self.child.silence() if self.busy else ""
        if silence != self.silence:
            self.silence, self.news = silence, True
        drawn = self.news and self.looked_at
        self.news = self.news and not drawn
        return drawn

    async def warm(self) -> None:
        """Starts the process before anyone asks, so that the next run begins at once."""
        if not self.leaving and not self.busy:
            with suppress(OSError):  # told where a run is asked for
                await self.child.warm()

    async def follow(
        self, request: Any, run: Any, keeper: Keeper[Any], hear: Callable[[Any], None]
    ) -> None:
        """Hears a run until its process is gone; `run` learns where it is recorded (`path`), and
        what is wrong with that (`complaint`)."""
        if self.busy:  # the one before is on its way out
            self._client = self._make()
        client = self._client
        self._gone.clear()
        try:
            async for told in client.run(request):
                hear(told)
                keeper.write(told)
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
        """Ends it in order."""
        self.leaving = True
        self.child.stop()
        await self._until_gone()
        await self.end()

    async def end(self) -> None:
        """Ends it at once: nobody looks any more."""
        self.leaving = True
        self.child.kill()
        await self._until_gone()
        await self.child.wait()

    async def _until_gone(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gone.wait(), EXIT_SECONDS)
