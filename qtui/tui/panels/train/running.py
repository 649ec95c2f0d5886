"""The run of the Train panel: its process or its recording, and the clock by which it is drawn."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from textual import events, on

from qtui.engine.client import EXIT_SECONDS
from qtui.engine.run.client import WORKER, Control, RunClient
from qtui.report.numbers import format_bytes
from qtui.screen.messages import DeviceSeen
from qtui.screen.plan.changing import ChangingPanel
from qtui.tui.config import log_file
from qtui.tui.panels.train.kept import Keeper
from qtui.tui.panels.train.player import Player
from qtui.tui.panels.train.sentences import going_on, how_recorded
from qtui.tui.panels.train.shown import RunShown
from qtui_core.errors import UsageError
from qtui_core.live.recording import read_recording
from qtui_core.live.snapshot import End
from qtui_core.live.state import after
from qtui_core.models.quoting import printable

#: Seconds between two pictures of what goes on: more would be seen by nobody, and cost whoever is
#: far away.
DRAWN_SECONDS = 0.5
RUN, RECORDING = "run", "recording"
#: The child, which gives way to the screen where both need the processor.
COMMAND = (*WORKER, "behind")


class RunningPanel(ChangingPanel):
    """Starts a run, hears it, and controls it, or plays a recording in its place."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.run_shown = RunShown()
        self._client: RunClient | None = None
        self._gone = asyncio.Event()
        """Set while no child is there."""
        self._gone.set()
        self._news = False

    def on_mount(self) -> None:
        self.set_interval(DRAWN_SECONDS, self._tick)

    @on(events.Unmount)
    async def _end_run(self) -> None:
        self._kill()
        await self._until_gone()

    async def _until_gone(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gone.wait(), EXIT_SECONDS)

    @property
    def waits_for_engine(self) -> bool:
        return not self.run_shown.there  # a run tells of itself

    def unfinished(self) -> str:
        run = self.run_shown
        return going_on(run, self.shown.model) if run.live else ""

    async def finish(self) -> None:
        self._stop()
        await self._until_gone()

    def _tick(self) -> None:
        """Twice a second: draws what became known meanwhile, if it is looked at."""
        run = self.run_shown
        if run.player is not None and run.player.advance():
            run.state, self._news = run.player.state, True
        silence = "" if self._client is None else self._client.silence()
        if silence != run.silence:
            run.silence, self._news = silence, True
        if self.qtui.panel is not self:
            return
        if self._news:
            self._news = False
            self._see_device()
            self._draw_news()
        elif run.live:
            self._draw_title()

    def _draw_title(self) -> None:
        """The line that says how long it has gone on."""

    def _draw_news(self) -> None:
        """What a run that goes on changes on the screen."""
        self._draw()

    def _see_device(self) -> None:
        """The header line says what is in use on the GPU of a live run."""
        run = self.run_shown
        header, sample = run.state.header, run.state.sample
        if not run.live or header is None or sample is None or sample.device_used_bytes is None:
            return
        device = header.device
        if device.capacity_bytes:
            used, total = map(format_bytes, (sample.device_used_bytes, device.capacity_bytes))
            self.post_message(DeviceSeen(f"{device.name}  HBM {used} of {total}"))

    # Running

    def _start(self, *, hold: bool = False) -> None:
        """A new run of the plan that is chosen; `hold` takes one step and waits."""
        self.run_shown = self._fresh()
        self.run_shown.live, self.run_shown.began = True, time.monotonic()
        self.refusal = ""

        async def work() -> None:
            await self._go(self.run_shown, hold)

        self.do(work, RUN)
        self._draw()

    async def _go(self, run: RunShown, hold: bool) -> None:
        self._gone.clear()
        client = self._client = RunClient(COMMAND, log=log_file().with_name("run.log"))
        try:
            with Keeper() as keeper:
                try:
                    async for told in client.run(self._request()):
                        if hold:
                            client.control("step")
                            hold = False
                        keeper.write(told)
                        if keeper.complaint and not run.complaint:
                            self.qtui.tell(keeper.complaint, "warning")
                        run.path, run.complaint = keeper.path, keeper.complaint
                        run.state = after(run.state, told)
                        self._news = True
                finally:
                    if not run.state.over:  # the app ends, and with it the run
                        keeper.write(End(run.seconds, "stopped"))
        finally:
            client.kill()
            run.live, run.silence = False, ""
            self.qtui.farewell = how_recorded(run)
            if self._client is client:
                self._client = None
                self._gone.set()
        self._draw()

    def _request(self) -> dict[str, Any]:
        run = self.run_shown
        return {
            "model": self.shown.model,
            "plan": asdict(self.shown.plan),
            "steps": run.steps,
            "data": run.data,
            "device": self._device(),
            "text": run.text or None,
        }

    def _device(self) -> str:
        """The chosen GPU, if it is one of this machine; else the first, or the CPU."""
        gpu, live = self.shown.gpu, self.shown.live
        return f"cuda:{live.index(gpu)}" if gpu is not None and gpu in live else "auto"

    def _control(self, word: Control) -> None:
        if self._client is not None:
            self._client.control(word)

    def _stop(self) -> None:
        """Asks the run to end; it is ended if it does not."""
        if self._client is not None:
            self.run_shown.wish = "stopping"
            self._client.stop()

    def _kill(self) -> None:
        if self._client is not None:
            self._client.kill()

    def _forget_run(self) -> None:
        """Back to the estimate of the plan."""
        self.run_shown = self._fresh()

    def _fresh(self) -> RunShown:
        """Nothing ran yet; what was set for the next run stays."""
        before = self.run_shown
        return RunShown(
            view=before.view, steps=before.steps, data=before.data, text=before.text,
            largest=before.largest, largest_of=before.largest_of, from_zero=before.from_zero,
        )  # fmt: skip

    # Recordings

    def open_recording(self, path: Path) -> None:
        """Plays a recording from its start."""

        async def work() -> None:
            self._tell(f"Reading {printable(str(path))}.")
            try:
                player = await asyncio.to_thread(_player_of, path)
            except UsageError as error:
                self._tell(str(error))
                return
            run = self._fresh()
            player.restart()
            run.player, run.path, run.state = player, path, player.state
            self.run_shown = run
            self.refusal, run.complaint = "", player.recording.complaint
            self._draw()

        self.do(work, RECORDING)


def _player_of(path: Path) -> Player:
    """A recording, read and ready to play. Raises UsageError."""
    player = Player(read_recording(path))
    player.read_through()
    return player
