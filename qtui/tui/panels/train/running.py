"""The run of the Train panel: its process or its recording, and the clock by which it is drawn."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from qtui.engine.run.client import WORKER, RunClient
from qtui.engine.waiting import EXIT_SECONDS
from qtui.report.numbers import format_bytes
from qtui.screen.messages import DeviceSeen
from qtui.tui.config import log_file
from qtui.tui.panels.train.recordings import Player, run_keeper
from qtui.tui.panels.train.sentences import how_recorded
from qtui.tui.panels.train.shown import RunShown
from qtui_core.errors import UsageError
from qtui_core.live.recording import read_recording
from qtui_core.live.snapshot import End
from qtui_core.live.state import after
from qtui_core.models.quoting import printable
from qtui_core.training.run.controls import Control
from qtui_core.training.run.request import RunRequest

if TYPE_CHECKING:
    from qtui.tui.panels.train.panel import TrainPanel

#: Seconds between two pictures of what goes on: more would be seen by nobody, and cost whoever is
#: far away.
DRAWN_SECONDS = 0.5
RUN, RECORDING = "run", "recording"
#: The child, which gives way to the screen where both need the processor.
COMMAND = (*WORKER, "behind")


class TrainRun:
    """Starts a run, hears it, and controls it, or plays a recording in its place; what is known of
    it is `shown`."""

    def __init__(self, panel: TrainPanel) -> None:
        self._panel = panel
        self.shown = RunShown()
        self.client: RunClient | None = None
        """The process; None while there is none."""
        self._gone = asyncio.Event()
        """Set while no child is there."""
        self._gone.set()
        self._news = False

    async def end(self) -> None:
        """Ends it at once: nobody looks any more."""
        self.kill()
        await self._until_gone()

    async def _until_gone(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gone.wait(), EXIT_SECONDS)

    async def finish(self) -> None:
        """Ends it in order."""
        self.stop()
        await self._until_gone()

    def tick(self) -> None:
        """Twice a second: draws what became known meanwhile, if it is looked at."""
        run = self.shown
        if run.player is not None and run.player.advance():
            run.state, self._news = run.player.state, True
        silence = "" if self.client is None else self.client.child.silence()
        if silence != run.silence:
            run.silence, self._news = silence, True
        if self._panel.qtui.panel is not self._panel:
            return
        if self._news:
            self._news = False
            self._see_device()
            self._panel.painter.news()
        elif run.live:
            self._panel.painter.title()

    def _see_device(self) -> None:
        """The header line says what is in use on the GPU of a live run."""
        run = self.shown
        header, sample = run.state.header, run.state.sample
        if not run.live or header is None or sample is None or sample.device_used_bytes is None:
            return
        device = header.device
        if device.capacity_bytes:
            used, total = map(format_bytes, (sample.device_used_bytes, device.capacity_bytes))
            self._panel.post_message(DeviceSeen(f"{device.name}  HBM {used} of {total}"))

    # Running

    def start(self, *, hold: bool = False) -> None:
        """A new run of the plan that is chosen; `hold` takes one step and waits."""
        self.shown = self._fresh()
        self.shown.live, self.shown.began = True, time.monotonic()
        self._panel.refusal = ""

        async def work() -> None:
            await self._go(self.shown, hold)

        self._panel.do(work, RUN)
        self._panel.draw()

    async def _go(self, run: RunShown, hold: bool) -> None:
        self._gone.clear()
        client = self.client = RunClient(COMMAND, log=log_file().with_name("run.log"))
        try:
            with run_keeper() as keeper:
                try:
                    async for told in client.run(self._request()):
                        if hold:
                            client.child.control("step")
                            hold = False
                        keeper.write(told)
                        if keeper.complaint and not run.complaint:
                            self._panel.qtui.tell(keeper.complaint, "warning")
                        run.path, run.complaint = keeper.path, keeper.complaint
                        run.state = after(run.state, told)
                        self._news = True
                finally:
                    if not run.state.over:  # the app ends, and with it the run
                        keeper.write(End(run.seconds, "stopped"))
        finally:
            client.child.kill()
            run.live, run.silence = False, ""
            self._panel.qtui.farewell = how_recorded(run)
            if self.client is client:
                self.client = None
                self._gone.set()
        self._panel.draw()

    def _request(self) -> RunRequest:
        run, plan = self.shown, self._panel.shown
        text = run.text or None
        return RunRequest(plan.model, plan.plan, run.steps, run.data, self._device(), text)

    def _device(self) -> str:
        """The chosen GPU, if it is one of this machine; else the first, or the CPU."""
        gpu, live = self._panel.shown.gpu, self._panel.shown.live
        return f"cuda:{live.index(gpu)}" if gpu is not None and gpu in live else "auto"

    def control(self, word: Control) -> None:
        if self.client is not None:
            self.client.child.control(word)

    def stop(self) -> None:
        """Asks the run to end; it is ended if it does not."""
        if self.client is not None:
            self.shown.wish = "stopping"
            self.client.child.stop()

    def kill(self) -> None:
        if self.client is not None:
            self.client.child.kill()

    def forget(self) -> None:
        """Back to the estimate of the plan."""
        self.shown = self._fresh()

    def _fresh(self) -> RunShown:
        """Nothing ran yet; what was set for the next run stays."""
        before = self.shown
        return RunShown(
            steps=before.steps, data=before.data, text=before.text,
            largest=before.largest, largest_of=before.largest_of, from_zero=before.from_zero,
        )  # fmt: skip

    # Recordings

    def open_recording(self, path: Path) -> None:
        """Plays a recording from its start."""

        async def work() -> None:
            self._panel.tell(f"Reading {printable(str(path))}.")
            try:
                player = await asyncio.to_thread(_player_of, path)
            except UsageError as error:
                self._panel.tell(str(error))
                return
            run = self._fresh()
            player.restart()
            run.player, run.path, run.state = player, path, player.state
            self.shown = run
            self._panel.refusal, run.complaint = "", player.recording.complaint
            self._panel.draw()

        self._panel.do(work, RECORDING)


def _player_of(path: Path) -> Player:
    """A recording, read and ready to play. Raises UsageError."""
    player = Player(read_recording(path))
    player.read_through()
    return player
