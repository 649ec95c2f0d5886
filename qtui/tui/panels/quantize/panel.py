"""Panel 2: what a quantization scheme does to a real tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from qtui.engine.client import EngineState
from qtui.screen.messages import SendValue
from qtui.screen.panel.asking import Phase
from qtui.screen.panel.base import PaletteEntry
from qtui.screen.panel.viewed import ViewedPanel
from qtui.screen.tensors.list import Order, TensorList
from qtui.screen.tensors.subject import INPUT, OUTPUT, WEIGHT
from qtui.screen.widgets.heatmap.widget import Heatmap
from qtui.screen.widgets.histogram import Histogram
from qtui.screen.widgets.scheme_bar import SchemeBar
from qtui.tui.panels.quantize.body import VIEWS
from qtui.tui.panels.quantize.export import panel_data, panel_text
from qtui.tui.panels.quantize.keys import HELP, QUANTIZE_BINDINGS, URGENT_BINDINGS
from qtui.tui.panels.quantize.looking import LookingPanel
from qtui.tui.panels.quantize.outliers.bars import GranularityBars
from qtui.tui.panels.quantize.schemes import LETTERS, SchemeControls
from qtui.tui.panels.quantize.views import View, view_bindings
from qtui_core.errors import QtuiError, UsageError
from qtui_core.models.quoting import printable
from qtui_core.schemes.scheme import Scheme
from qtui_core.schemes.stepping import step_scheme


class QuantizePanel(ViewedPanel, LookingPanel):
    """The keys, and what they change. Asks the engine and shows what it finds; computes nothing
    itself."""

    PANEL_ID = "quantize"
    TITLE = "Quantize"
    NUMBER = 2
    HELP = "\n".join((HELP, *(view.HELP for view in VIEWS)))
    KEYED_WIDGETS: ClassVar[tuple[type[Widget], ...]] = (TensorList, Heatmap, GranularityBars)
    BINDINGS: ClassVar[list[BindingType]] = [
        *URGENT_BINDINGS,
        *view_bindings(VIEWS),
        *QUANTIZE_BINDINGS,
    ]

    def on_resize(self) -> None:
        self._show_numbers()

    # What the shell asks for

    def activate(self) -> None:
        self.body.focus_start()

    def maximise_target(self) -> Widget | None:
        return self.body.view.maximise_target()

    def drawing_changed(self) -> None:
        self.body.redraw()

    def copy_text(self) -> str | None:
        return self.body.view.copy_text() or panel_text(self.shown, self.sentence)

    def export_data(self) -> dict[str, Any] | None:
        data, view = panel_data(self.shown), self.body.view
        of_view = view.export_data()
        return data if of_view is None else {**(data or {}), view.VIEW_ID: of_view}

    def export_table(self) -> Iterable[Sequence[object]] | None:
        return self.body.view.export_table()

    def palette(self) -> Iterable[PaletteEntry]:
        yield from self.body.view.palette()
        engine = self.qtui.engine
        if engine.state is EngineState.RUNNING:
            yield PaletteEntry("engine: Stop", "End the engine's process at once", engine.kill)

    # Tensors

    @on(TensorList.Highlighted)
    def _tensor_changed(self, message: TensorList.Highlighted) -> None:
        message.stop()
        self._forget_refusal()
        self.shown.choose(message.entry)
        self._look(pause=True)

    @on(TensorList.Chosen)
    def _tensor_chosen(self, message: TensorList.Chosen) -> None:
        message.stop()
        self.body.show_picture()
        if self.shown.entry is not message.entry:
            self.body.side.list.open_current()
        elif self.phase is Phase.STOPPED:
            self._look()

    @on(Heatmap.CapacityChanged)
    @on(Histogram.CapacityChanged)
    def _room_changed(self) -> None:
        if self.phase in (Phase.READY, Phase.WORKING):
            self._look(pause=True)

    def action_filter(self) -> None:
        self.body.add_class("-listing")
        self.body.side.start_filter()

    def action_tensors(self) -> None:
        self.body.show_list()

    def action_match(self, direction: int) -> None:
        tensors = self.body.side.list
        if not tensors.step_match(direction):
            self.refused(f"No tensor has {printable(tensors.pattern)} in its name.")

    def action_order(self) -> None:
        self.stop_ranking()
        if self.body.side.next_order() is Order.WORST:
            self._rank()

    def _rank(self, direction: int = 0) -> None:
        """Measure all tensors under the active scheme; then go to a worst one, if that was
        asked for."""
        self.body.side.forget_ranks()
        self.ranking = True
        self.do(partial(self._measure_all, direction), "rank")

    async def _measure_all(self, direction: int) -> None:
        side, scheme = self.body.side, str(self.shown.scheme)
        try:
            sampled = await self.feed.rank(self.shown.model, scheme, side.add_rank)
        except QtuiError:
            self.ranking = False
            raise
        self.ranking = False
        side.ranks_done(scheme, sampled=sampled)
        if direction:
            side.step_worst(direction)

    def action_worst(self, direction: int) -> None:
        """Go to the next worst tensor under the active scheme, or to the one before it."""
        if not self.shown.schemes:
            return
        if self.body.side.ranked_by == str(self.shown.scheme):
            self.body.side.step_worst(direction)
        else:
            self._rank(direction)

    def _begin_again(self) -> None:
        super()._begin_again()
        if self.body.side.list.order is Order.WORST and not self.body.side.ranked_by:
            self._rank()

    # The element under the cursor

    @on(Heatmap.CursorMoved)
    def _cursor_moved(self, message: Heatmap.CursorMoved) -> None:
        message.stop()
        self._forget_refusal()
        self.do(self._read_element, "element")

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
            try:
                self._take_scheme(step_scheme(self.shown.scheme, part, direction))
            except UsageError as error:
                self.refused(str(error))

    def action_type_scheme(self) -> None:
        if self.shown.schemes:
            self.body.controls.start_typing(str(self.shown.scheme))

    @on(SchemeControls.Typed)
    def _scheme_typed(self, message: SchemeControls.Typed) -> None:
        message.stop()
        try:
            scheme = Scheme.parse(message.text)
        except UsageError as error:
            self.refused(str(error))
            return
        self.body.controls.stop_typing()
        self.activate()
        self._take_scheme(scheme)

    def _take_scheme(self, scheme: Scheme) -> None:
        """Another scheme in the place of the active one."""
        self.shown.set_scheme(scheme)
        self._schemes_changed()

    def _schemes_changed(self) -> None:
        self._forget_refusal()
        self.body.controls.show(self.shown.schemes, self.shown.active)
        self.stop_ranking()
        if self.body.side.list.order is Order.WORST:
            self._rank()
        self._look(pause=True)
        self.do(self._read_element, "element")

    # Views

    def _show_place(self, place: int) -> None:
        self._forget_refusal()
        self.body.show_view(place)
        self.refresh_bindings()
        self._show_sentence()
        self._look()

    @on(View.Spoke)
    def _view_spoke(self, message: View.Spoke) -> None:
        message.stop()
        self._show_sentence()

    async def action_in_view(self, view_id: str, action: str) -> None:
        await self.app.run_action(action, self.body.view)

    def action_source(self) -> None:
        sources = (WEIGHT, INPUT, OUTPUT)
        at = sources.index(self.shown.source)
        self.look_at(source=sources[(at + 1) % len(sources)])

    def action_clear_injection(self) -> None:
        self.look_at(inject=None)

    # The rest

    def action_back(self) -> None:
        self._forget_refusal()
        self.body.leave()
