"""Panel 2: what a quantization scheme does to a real tensor."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.reactive import reactive
from textual.widget import Widget

from qtui.engine.client import EngineState
from qtui.tui.messages import DeviceSeen, ModelOpened, SendValue
from qtui.tui.panels.base import PaletteEntry
from qtui.tui.panels.engine_panel import EnginePanel
from qtui.tui.panels.quantize_body import QuantizeBody
from qtui.tui.panels.quantize_data import ErrorMap, SchemeParts, TensorNumbers
from qtui.tui.panels.quantize_export import panel_data, panel_text
from qtui.tui.panels.quantize_feed import QuantizeFeed
from qtui.tui.panels.quantize_keys import HELP, QUANTIZE_BINDINGS
from qtui.tui.panels.quantize_loading import Explanation, Look, SchemeErrors, findings
from qtui.tui.panels.quantize_numbers import all_rows
from qtui.tui.panels.quantize_schemes import LETTERS, SchemeControls
from qtui.tui.panels.quantize_shown import Phase, Shown
from qtui.tui.widgets.heatmap import Heatmap
from qtui.tui.widgets.histogram import Histogram, HistogramData
from qtui.tui.widgets.scheme_bar import SchemeBar
from qtui.tui.widgets.tensor_list import Order, TensorEntry, TensorList
from qtui_core.models.quoting import printable

FIRST_SCHEMES = ("int4", "nf4")
# Someone who holds an arrow key down wants the tensor they stop at.
PAUSE_SECONDS = 0.08
# A picture that comes sooner replaces the one before it without a blank between them.
GRACE_SECONDS = 0.25


class QuantizePanel(EnginePanel):
    """Asks the engine and shows what it finds; computes nothing itself."""

    PANEL_ID = "quantize"
    TITLE = "Quantize"
    NUMBER = 2
    HELP = HELP
    KEYED_WIDGETS: ClassVar[tuple[type[Widget], ...]] = (TensorList, Heatmap)
    BINDINGS: ClassVar[list[BindingType]] = QUANTIZE_BINDINGS
    phase: reactive[Phase] = reactive(Phase.OPENING, init=False)

    def compose_body(self) -> ComposeResult:
        self.body = QuantizeBody(self.drawing)
        yield self.body

    def on_mount(self) -> None:
        self.feed = QuantizeFeed(self.qtui.engine)
        self.shown = Shown(self.qtui.model)

    def on_resize(self) -> None:
        self._show_numbers()

    # What the shell asks for

    def activate(self) -> None:
        self.body.focus_start()

    def maximise_target(self) -> Widget | None:
        return self.body.heatmap

    def drawing_changed(self) -> None:
        self.body.redraw()

    def copy_text(self) -> str | None:
        return panel_text(self.shown, self.sentence)

    def export_data(self) -> dict[str, Any] | None:
        return panel_data(self.shown)

    def palette(self) -> Iterable[PaletteEntry]:
        engine = self.qtui.engine
        if engine.state is EngineState.RUNNING:
            yield PaletteEntry("engine: Stop", "End the engine's process at once", engine.kill)

    # Opening a model

    def open_model(self, model: str) -> None:
        for group in ("tensor", "element", "rank"):
            self.workers.cancel_group(self, group)
        self.shown = Shown(model, schemes=self.shown.schemes, active=self.shown.active)
        self.body.side.load(())
        self.body.show_title(None)
        self.sentence = ""
        self._show_numbers()
        self._say(Phase.OPENING, f"Opening {printable(model)}")
        self.do(partial(self._open, model), "open")

    async def _open(self, model: str) -> None:
        shown = self.shown
        if not shown.schemes:
            shown.schemes = [await self.feed.scheme(text) for text in FIRST_SCHEMES]
        self.body.controls.show(shown.schemes, shown.active)
        index = await self.feed.open(model, lambda done, _: self._show_activity("headers", done))
        shown.index = index
        self.post_message(ModelOpened(model, index.headline))
        self.do(self._ask_device, "device")
        if not index.tensors:
            self._say(Phase.FAILED, index.note or f"{printable(model)} has no tensors.")
            return
        if index.note:
            self.qtui.tell(index.note)  # it is quantized already: its codes are not values
        self.body.side.load(index.tensors)
        self.body.side.list.select(index.first_choice.name)

    async def _ask_device(self) -> None:
        self.post_message(DeviceSeen(await self.feed.device()))

    # Looking at a tensor

    @on(TensorList.Highlighted)
    def _tensor_changed(self, message: TensorList.Highlighted) -> None:
        message.stop()
        self._forget_refusal()
        self.shown.choose(message.entry)
        self._look(pause=True)

    @on(TensorList.Chosen)
    def _tensor_chosen(self, message: TensorList.Chosen) -> None:
        message.stop()
        self.body.remove_class("-listing")
        self.body.heatmap.focus()
        if self.phase is Phase.STOPPED:
            self._look()

    @on(Heatmap.CapacityChanged)
    @on(Histogram.CapacityChanged)
    def _room_changed(self) -> None:
        if self.phase in (Phase.READY, Phase.WORKING):
            self._look(pause=True)

    def _look(self, *, pause: bool = False) -> None:
        """Read the chosen tensor under the schemes; what was being read gives up."""
        entry, shown = self.shown.entry, self.shown
        if entry is None or not shown.schemes:
            return
        self.body.show_title(entry)
        self._show_numbers()
        if not entry.readable:
            self._say(Phase.FAILED, f"{printable(entry.dtype)} is a dtype that is not read yet.")
        elif not entry.elements:
            self._say(Phase.FAILED, "This tensor is empty: there is nothing to quantize.")
        else:
            self._say(Phase.WORKING, "", keep_picture=True)
            self.set_timer(GRACE_SECONDS, partial(self._clear_stale, entry))
            self.do(partial(self._read, entry, pause), "tensor")

    def _clear_stale(self, entry: TensorEntry) -> None:
        """Take away what is of another tensor, if its successor is long in coming."""
        if self.shown.entry is not entry or self.phase is not Phase.WORKING:
            return
        if self.shown.map is None:
            self.sentence = ""
            self._say(Phase.WORKING, f"Reading all {entry.elements:,} elements")
        elif self.shown.histogram is None:
            self.body.histogram.show(None)

    async def _read(self, entry: TensorEntry, pause: bool) -> None:
        if pause:
            await asyncio.sleep(PAUSE_SECONDS)
        shown = self.shown
        look = Look(
            model=shown.model,
            tensor=entry.name,
            schemes=tuple(scheme.text for scheme in shown.schemes),
            active=shown.active,
            cells=self.body.heatmap.capacity(entry.rows),
            bins=self.body.histogram.capacity(),
        )
        async for finding in findings(self.feed, look, self._show_activity):
            match finding:
                case ErrorMap():
                    self._show_map(finding)
                case SchemeErrors():
                    shown.errors[finding.slot] = finding.numbers
                case HistogramData():
                    shown.histogram = finding
                    self.body.histogram.show(finding)
                case TensorNumbers():
                    shown.numbers = finding
                    self.body.heatmap.marked_columns = tuple(c for c, _ in finding.outlier_columns)
                case Explanation():
                    shown.explanation = finding.sentence
                    self.sentence = shown.refusal or shown.explanation
            self._show_numbers()
        self._say(Phase.READY, "", keep_picture=True)
        if not gc.get_freeze_count():
            # What is alive now stays: going through all of it again and again, as the collector
            # does, would hold up a key by 30 ms and more each time.
            gc.freeze()

    def _show_activity(self, label: str, fraction: float) -> None:
        self.body.title_line.activity = label
        self.body.title_line.fraction = fraction

    def _show_map(self, found: ErrorMap) -> None:
        same_tensor = self.shown.map is not None and self.shown.map.grid.like(found.grid)
        if self.shown.map is None:
            self.body.heatmap.marked_columns = ()
        self.shown.map = found
        self.body.heatmap.show(found.grid, self.body.heatmap.cursor if same_tensor else None)
        self.do(self._read_element, "element")

    def _show_numbers(self) -> None:
        if self.shown.schemes:
            self.body.table.rows = all_rows(self.shown, brief=self.body.brief)

    # The element under the cursor

    @on(Heatmap.CursorMoved)
    def _cursor_moved(self, message: Heatmap.CursorMoved) -> None:
        message.stop()
        self._forget_refusal()
        self.do(self._read_element, "element")

    async def _read_element(self) -> None:
        shown = self.shown
        if shown.map is None or shown.entry is None:
            return
        row, column = shown.map.element_at(*self.body.heatmap.cursor)
        element = await self.feed.element(
            shown.model, shown.entry.name, shown.scheme.text, row, column
        )
        shown.element = element
        self.body.histogram.ticks = element.levels
        self.body.histogram.marker = element.value
        self.body.histogram.note = f"{len(element.levels)} levels" if element.levels else ""
        self._show_numbers()

    @on(Heatmap.Chosen)
    def _send_element(self, message: Heatmap.Chosen) -> None:
        message.stop()
        self.do(self._send, "send")

    async def _send(self) -> None:
        await self._read_element()
        element, entry = self.shown.element, self.shown.entry
        if element is not None and entry is not None:
            origin = f"{printable(entry.name)} at ({element.row:,}, {element.column:,})"
            self.post_message(SendValue(element.exact, origin))

    # Schemes

    @on(SchemeBar.Turned)
    def _knob_clicked(self, message: SchemeBar.Turned) -> None:
        message.stop()
        self.action_turn(message.part, message.direction)

    @on(SchemeBar.Activated)
    def action_swap(self) -> None:
        if self.shown.schemes:
            self.shown.active = (self.shown.active + 1) % len(LETTERS)
            self._schemes_changed()

    def action_turn(self, part: str, direction: int) -> None:
        if self.shown.schemes:
            self.do(partial(self._turn, part, direction), "scheme")

    async def _turn(self, part: str, direction: int) -> None:
        scheme = await self.feed.step_scheme(self.shown.scheme.text, part, direction)
        self._take_scheme(scheme)

    def action_type_scheme(self) -> None:
        if self.shown.schemes:
            self.body.controls.start_typing(self.shown.scheme.text)

    @on(SchemeControls.Typed)
    def _scheme_typed(self, message: SchemeControls.Typed) -> None:
        message.stop()
        self.do(partial(self._parse_scheme, message.text), "scheme")

    async def _parse_scheme(self, text: str) -> None:
        scheme = await self.feed.scheme(text)
        self.body.controls.stop_typing()
        self.activate()
        self._take_scheme(scheme)

    def _take_scheme(self, scheme: SchemeParts) -> None:
        self.shown.set_scheme(scheme)
        self._schemes_changed()

    def _schemes_changed(self) -> None:
        self._forget_refusal()
        self.body.controls.show(self.shown.schemes, self.shown.active)
        if self.body.side.list.order is Order.WORST:
            self._rank()
        self._look(pause=True)
        self.do(self._read_element, "element")

    # Tensors

    def action_filter(self) -> None:
        self.body.add_class("-listing")
        self.body.side.start_filter()

    def action_tensors(self) -> None:
        self.body.add_class("-listing")
        self.body.side.list.focus()

    def action_match(self, direction: int) -> None:
        self.body.side.list.step_match(direction)

    def action_order(self) -> None:
        if self.body.side.next_order() is Order.WORST:
            self._rank()

    def _rank(self) -> None:
        self.body.side.forget_ranks()
        self.do(self._measure_all, "rank")

    async def _measure_all(self) -> None:
        scheme = self.shown.scheme.text
        sampled = await self.feed.rank(self.shown.model, scheme, self.body.side.add_rank)
        self.body.side.ranks_done(sampled=sampled)

    # Stopping, failing, starting again

    def action_back(self) -> None:
        self.body.leave()

    def action_stop(self) -> None:
        self.workers.cancel_group(self, "tensor")
        known = self.shown.map is not None
        self._say(Phase.STOPPED, "Stopped; r reads it again", keep_picture=known)

    def action_restart(self) -> None:
        if self.phase is Phase.LOST:
            self._say(Phase.OPENING, "Starting the engine")
            self.do(self._restart, "open")
        else:
            self._begin_again()

    async def _restart(self) -> None:
        await self.qtui.engine.restart()
        self._begin_again()

    def _begin_again(self) -> None:
        if self.shown.entry is None:
            self.open_model(self.shown.model)
        else:
            self._look()

    def action_counts(self) -> None:
        self.body.histogram.logarithmic = not self.body.histogram.logarithmic

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can be done now is offered."""
        if not self.is_mounted:
            return True
        if action == "restart":
            return self.phase in (Phase.LOST, Phase.STOPPED, Phase.FAILED)
        if action == "back":
            return self.body.can_leave
        if action == "stop":
            return self.phase is Phase.WORKING and not self.body.can_leave
        return True

    def watch_phase(self) -> None:
        self.refresh_bindings()

    def _say(self, phase: Phase, text: str, *, keep_picture: bool = False) -> None:
        """Go to another phase; `text` stands where the picture is, or in the title."""
        self.phase = phase
        self.body.title_line.activity = text if keep_picture else ""
        self.body.title_line.fraction = None
        self.body.heatmap.message = text
        self.body.heatmap.set_class(phase in (Phase.FAILED, Phase.LOST), "-trouble")
        if not keep_picture:
            self.body.heatmap.show(None)
            self.body.histogram.show(None)
        if phase in (Phase.FAILED, Phase.LOST):
            self.sentence = text

    def refused(self, sentence: str) -> None:
        self.shown.refusal = sentence
        super().refused(sentence)

    def _forget_refusal(self) -> None:
        """Something else is done now: the sentence is about the picture again."""
        if self.shown.refusal:
            self.shown.refusal = ""
            self.sentence = self.shown.explanation

    def failed(self, sentence: str) -> None:
        self._say(Phase.FAILED, sentence)

    def engine_lost(self, sentence: str) -> None:
        self._say(Phase.LOST, f"{sentence}\nr starts it again.")
