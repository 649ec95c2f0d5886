"""How the Quantize panel reads a model and a tensor, and what it says in the meantime."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from typing import Literal

from qtui.engine.client import EngineLost, EngineState
from qtui.screen.messages import DeviceSeen, ModelFailed, ModelOpened
from qtui.screen.panel.asking import OPENING, Phase
from qtui.screen.tensors.data import TensorNumbers
from qtui.screen.tensors.list import TensorEntry
from qtui.screen.tensors.subject import WEIGHT, Injection
from qtui.tui.opening import device_of
from qtui.tui.panels.quantize.feed import QuantizeFeed
from qtui.tui.panels.quantize.loading import Explanation, Look, SchemeErrors, findings
from qtui.tui.panels.quantize.shown import Shown
from qtui.tui.panels.quantize.telling import TellingPanel
from qtui_core.errors import QtuiError
from qtui_core.models.quoting import printable
from qtui_core.schemes.scheme import Scheme

FIRST_SCHEMES = ("int4", "nf4")
# Someone who holds an arrow key down wants the tensor they stop at.
PAUSE_SECONDS = 0.08
# What comes sooner replaces what was before it without a blank between them.
GRACE_SECONDS = 0.25


class LookingPanel(TellingPanel):
    """One model and one tensor, and what reads them.

    `opening` is the model that is on its way; until it has come, the one before it stays.
    """

    def on_mount(self) -> None:
        self.feed = QuantizeFeed(self.qtui.engine)
        self.opening: str | None = None
        self._looks = 0

    # Opening a model

    def open_model(self, model: str) -> None:
        self.workers.cancel_group(self, "tensor")
        self.opening = model
        self.shown.refusal = ""
        self._say(Phase.OPENING, f"Opening {printable(model)}", keep_picture=self._has_picture)
        self.do(partial(self._open, model), OPENING)

    @property
    def _has_picture(self) -> bool:
        return self.body.heatmap.grid is not None

    async def _open(self, model: str) -> None:
        if self.qtui.engine.state is EngineState.LOST:
            await self.qtui.engine.restart()  # another model is another try
        if not self.shown.schemes:
            self.shown.schemes = [Scheme.parse(text) for text in FIRST_SCHEMES]
        self.body.controls.show(self.shown.schemes, self.shown.active)
        try:
            index = await self.feed.open(model, self._show_headers)
        except EngineLost:
            raise
        except QtuiError as error:
            if self.shown.entry is None:
                raise
            self.post_message(ModelFailed(model, str(error)))
            self._keep_model(str(error))
            return
        for group in ("tensor", "element"):
            self.workers.cancel_group(self, group)
        self.stop_ranking()
        self.opening = None
        self.shown = Shown(model, index, schemes=self.shown.schemes, active=self.shown.active)
        self.qtui.looked_at = None
        self.body.clear()
        self.body.side.load(index.tensors)
        self._speak("")
        self._show_numbers()
        self.post_message(ModelOpened(model, index.headline))
        self.do(self._ask_device, "device")
        if not index.tensors:
            self._say(Phase.FAILED, index.note or f"{printable(model)} has no tensors.")
            return
        if index.note:
            self.qtui.tell(index.note)  # it is quantized already: its codes are not values
        self.body.side.list.select(index.first_choice.name)

    def _keep_model(self, why: str) -> None:
        """Go on with the model that is open, and say why it is not another one."""
        self.opening = None
        self.refused(why)
        self._look()

    async def _ask_device(self) -> None:
        self.post_message(DeviceSeen(await device_of(self.qtui.engine)))

    # Looking at a tensor

    def look_at(
        self, *, source: str | None = None, inject: Injection | Literal["keep"] | None = "keep"
    ) -> None:
        """Look at something else of the chosen tensor: another source, another injection
        (None: none)."""
        shown = self.shown
        if shown.entry is None:
            return
        wanted = shown.inject if inject == "keep" else inject
        source = shown.source if source is None else source
        if (source, wanted) == (shown.source, shown.inject):
            return
        shown.look_at(source, wanted)
        self._forget_refusal()
        self.refresh_bindings()
        self._look(pause=True)

    def look_again(self, *, pause: bool = False) -> None:
        """Look at the same subject anew: what a view asks for has changed. With a pause, once
        things have found their new places."""
        self._forget_refusal()
        self._look(pause=pause)

    def _look(self, *, pause: bool = False) -> None:
        """Read the chosen tensor under the schemes; what was being read gives up."""
        entry, shown = self.shown.entry, self.shown
        if entry is None or not shown.schemes:
            return
        self.qtui.looked_at = (shown.model, shown.subject)
        self.body.show_title(entry, shown.subject)
        self._show_numbers()
        if self.qtui.engine.state is EngineState.LOST:
            # Not started by itself: what ended it may have been this tensor, or the next.
            self.engine_lost(self.qtui.engine.detail)
        elif self.opening is not None:
            self._say(Phase.OPENING, f"Opening {printable(self.opening)}")
        elif not entry.readable:
            self._say(Phase.FAILED, f"{printable(entry.dtype)} is a dtype that is not read yet.")
        elif not entry.elements:
            self._say(Phase.FAILED, "This tensor is empty: there is nothing to quantize.")
        else:
            self._looks += 1
            shown.explained = False
            self._say(Phase.WORKING, "", keep_picture=True)
            self.set_timer(GRACE_SECONDS, partial(self._clear_stale, entry, self._looks))
            self.do(partial(self._read, entry, pause), "tensor")

    def _clear_stale(self, entry: TensorEntry, look: int) -> None:
        """Take away what is of another tensor or scheme, if its successor is long in coming."""
        shown = self.shown
        if look != self._looks or self.phase is not Phase.WORKING:
            return
        title = printable(shown.subject.title)
        if shown.source == WEIGHT:
            all_of, of_title = f"all {entry.elements:,} elements", f" of {title}"
        else:
            all_of, of_title = f"the {title}", ""
        if not shown.explained:
            self._speak(f"Computing what {shown.scheme} does to {all_of}{of_title}.")
        self.body.view.overdue(f"Reading {all_of}")

    async def _read(self, entry: TensorEntry, pause: bool) -> None:
        shown = self.shown
        if pause:
            await asyncio.sleep(PAUSE_SECONDS)
        look = Look(
            model=shown.model,
            subject=shown.subject,
            schemes=tuple(map(str, shown.schemes)),
            active=shown.active,
        )
        await self.body.view.look(look, self._show_activity)
        async for finding in findings(self.feed, look, self._show_activity):
            match finding:
                case SchemeErrors():
                    shown.errors[finding.slot] = finding.numbers
                case TensorNumbers():
                    shown.numbers = finding
                case Explanation():
                    shown.explained = True
                    self._speak(finding.sentence)
            self._show_numbers()
        self._say(Phase.READY, "", keep_picture=True)
        if not gc.get_freeze_count():
            # What is alive now stays: going through all of it again and again, as the collector
            # does, would hold up a key by 30 ms and more each time.
            gc.freeze()

    def _show_headers(self, fraction: float, _: object) -> None:
        self._show_activity("headers", fraction)

    def _show_activity(self, label: str, fraction: float) -> None:
        self.body.title_line.activity = label
        self.body.title_line.fraction = fraction

    def read_element(self) -> None:
        """Find out about the element under the cursor of the maps."""
        self.do(self._read_element, "element")

    def make_room(self) -> None:
        """Give the view the room it needs now."""
        self.body.make_room()

    async def _read_element(self) -> None:
        """The element under the cursor."""
        shown = self.shown
        if shown.map is None or shown.entry is None:
            return
        row, column = shown.map.element_at(*self.body.heatmap.cursor)
        element = await self.feed.element(
            shown.model, shown.subject, str(shown.scheme), row, column
        )
        shown.element = element
        self.body.histogram.ticks = element.levels
        self.body.histogram.marker = element.value
        self.body.histogram.note = f"{len(element.levels)} levels" if element.levels else ""
        self._show_numbers()

    # Stopping, starting again

    def action_stop(self) -> None:
        if self.end_silent():
            return
        self.stop_ranking()
        if self.phase not in (Phase.OPENING, Phase.WORKING):
            return
        for group in (OPENING, "tensor", "view"):
            self.workers.cancel_group(self, group)
        shown, entry = self.shown, self.shown.entry
        if self.opening is not None:
            opening = printable(self.opening)
            if entry is not None:
                self._keep_model(f"Opening {opening} was stopped.")
            else:
                self._say(Phase.STOPPED, f"Opening {opening} was stopped; r goes on")
            return
        if not self.body.maps.is_current(shown):
            shown.map = None  # it is of the scheme before
        self._say(Phase.STOPPED, "Stopped; r goes on", keep_picture=shown.map is not None)
        if entry is not None and not shown.explained:
            self._speak(
                f"Stopped before all of {printable(shown.subject.title)} was measured under "
                f"{shown.scheme}; r goes on."
            )

    def action_restart(self) -> None:
        self.end_silent()
        if self.qtui.engine.state is EngineState.LOST:
            self._say(Phase.OPENING, "Starting the engine")
            self.do(self._restart, OPENING)
        else:
            self._begin_again()

    async def _restart(self) -> None:
        await self.qtui.engine.restart()
        self._begin_again()

    def _begin_again(self) -> None:
        if self.opening is not None or self.shown.entry is None:
            self.open_model(self.opening or self.shown.model)
        else:
            self._look()
