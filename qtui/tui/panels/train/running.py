"""Runs the steps of the Train panel, or plays a recording."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qtui.engine.run.client import WORKER, run_client
from qtui.screen.command_line import Command, model_word
from qtui.screen.messages import DeviceSeen
from qtui.screen.plan.command import plan_words
from qtui.screen.plan.shown import USUAL_TOKENS
from qtui.screen.run_process import RunProcess
from qtui.tui.config import log_file
from qtui.tui.panels.train.recordings import Player, run_keeper
from qtui.tui.panels.train.sentences import how_recorded
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView
from qtui.tui.panels.train.views.adapters_view import AdaptersView
from qtui.tui.panels.train.views.ranges_view import RangesView
from qtui_core.errors import UsageError
from qtui_core.live.snapshot import End, Fault
from qtui_core.live.state import RunEvent, after, read_recording
from qtui_core.models.quoting import printable
from qtui_core.quantities import format_bytes
from qtui_core.training.run.request import NOT_BEGUN, RunRequest

if TYPE_CHECKING:
    from qtui.tui.panels.train.panel import TrainPanel

RUN, RECORDING = "run", "recording"
#: The command of the child process, which has a low priority, so that the screen stays fast.
COMMAND = (*WORKER, "behind")


class TrainRun:
    """Starts a run, reads its messages and controls it, or plays a recording in its place. `shown`
    is its state, and `process` its child process."""

    def __init__(self, panel: TrainPanel) -> None:
        self._panel = panel
        self.shown = RunShown()
        self.process = RunProcess(
            panel, lambda: run_client(COMMAND, log=log_file().with_name("run.log"))
        )

    def tick(self) -> None:
        """Called twice a second: draws the news if the panel is shown."""
        run, process = self.shown, self.process
        if run.player is not None and run.player.advance():
            run.state, process.news = run.player.state, True
        drawn = process.tick()
        run.silence = process.silence
        if drawn:
            self._see_device()
            self._panel.painter.news()
        elif run.live and process.looked_at:
            self._panel.painter.title()

    def _see_device(self) -> None:
        """Shows the used memory of a live run's GPU in the header line."""
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
        """Starts a run of the plan, if there are weights or a configuration alone, which gets
        random ones; `hold` pauses it after one step."""
        facts = self._panel.shown.facts
        if facts is not None and facts.cannot_run:
            self._panel.tell(facts.cannot_run)
            return
        refused = self.shown.state.fault
        taking = refused is not None and refused.kind == NOT_BEGUN
        self.shown = self._fresh()
        self.shown.live, self.shown.began = True, time.monotonic()
        self._panel.refusal = ""

        async def work() -> None:
            await self._go(self.shown, hold, taking)

        self._panel.do(work, RUN)
        self._panel.draw()

    async def _go(self, run: RunShown, hold: bool, taking: bool) -> None:
        def hear(event: RunEvent) -> None:
            nonlocal hold
            if hold:
                self.process.child.control("step")
                hold = False
            if isinstance(event, Fault) and event.kind == NOT_BEGUN:
                event = replace(event, text=f"{event.text} r runs it all the same.")
            run.state = after(run.state, event)

        with run_keeper() as keeper:
            try:
                await self.process.follow(self._request(taking), run, keeper, hear)
            finally:
                if not run.state.over:  # the app quits, which ends the run
                    keeper.write(End(run.seconds, "stopped"))
                run.live, run.silence = False, ""
                self._panel.qtui.farewell = how_recorded(run)
        self._panel.draw()

    def _request(self, taking: bool) -> RunRequest:
        run, plan = self.shown, self._panel.shown
        text = run.text or None
        device = self._device()
        return RunRequest(plan.model, plan.wanted, run.steps, run.data, device, text, taking=taking)

    def _device(self) -> str:
        """The chosen GPU if this machine has it; else the first GPU, or the CPU."""
        gpu, live = self._panel.shown.gpu, self._panel.shown.live
        return f"cuda:{live.index(gpu)}" if gpu is not None and gpu in live else "auto"

    def command_line(self, view: TrainView) -> Command:
        """The command that runs the same steps, or replays the recording."""
        run, plan = self.shown, self._panel.shown
        if run.player is not None and run.path is not None:
            return ("replay", str(run.path.absolute()))
        if run.steps is None:
            return "No command runs until it is stopped: say how many steps."
        given = {
            "--seq": str(USUAL_TOKENS) * (plan.as_long and plan.plan.sequence == USUAL_TOKENS),
            "--steps": str(run.steps),
            "--data": run.data and model_word(run.data),
            "--device": "" if self._device() == "auto" else self._device(),
            "--prompt": run.text if isinstance(view, AdaptersView) else "",
        }
        words = (word for flag, text in given.items() if text for word in (flag, text))
        ranges = ("--ranges",) * isinstance(view, RangesView)
        return ("train", model_word(plan.model), *plan_words(plan.plan), *words, *ranges)

    def stop(self) -> None:
        """Asks the run to stop; its process is killed if it does not."""
        if self.process.busy:
            self.shown.wish = "stopping"
            self.process.child.stop()

    def forget(self) -> None:
        """Closes the run, and shows the estimate of the plan again."""
        self.shown = self._fresh()

    def _fresh(self) -> RunShown:
        """A state without a run, which keeps the settings of the next run."""
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
    """Reads a recording, and makes it ready to play. Raises UsageError if it cannot be read."""
    player = Player(read_recording(path))
    player.read_through()
    return player
