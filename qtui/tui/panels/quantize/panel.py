"""Panel 2: the error of quantization schemes on a real tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget

from qtui.engine.client import EngineLost
from qtui.screen.command_line import Command
from qtui.screen.messages import DeviceSeen, ModelFailed, ModelOpened, Resized
from qtui.screen.panel.asking import OPENING, TROUBLE, AskingPhase
from qtui.screen.panel.hooks import PaletteEntry
from qtui.screen.panel.view import view_keys
from qtui.screen.picker.picking import text_of
from qtui.screen.picker.schemes import format_picking, scheme_picking
from qtui.screen.tensors.list import TensorList, TensorOrder
from qtui.screen.tensors.panel import TensorPanel
from qtui.screen.tensors.subject import INPUT, OUTPUT, WEIGHT, Injection
from qtui.screen.widgets.heatmap.widget import Heatmap
from qtui.screen.widgets.scheme_bar import SchemeBar
from qtui.tui.engines import device_of
from qtui.tui.panels.quantize.activations.view import ActivationsView
from qtui.tui.panels.quantize.body import QuantizeBody
from qtui.tui.panels.quantize.element import ElementReader
from qtui.tui.panels.quantize.export import panel_data, panel_text
from qtui.tui.panels.quantize.feed import QuantizeFeed
from qtui.tui.panels.quantize.keys import HELP, QUANTIZE_BINDINGS, URGENT_BINDINGS
from qtui.tui.panels.quantize.layers.view import LayersView
from qtui.tui.panels.quantize.maps.view import MapsView
from qtui.tui.panels.quantize.model.view import ModelView
from qtui.tui.panels.quantize.numbers import all_rows, number_lines
from qtui.tui.panels.quantize.outliers.granularity_bars import GranularityBars
from qtui.tui.panels.quantize.outliers.view import OutliersView
from qtui.tui.panels.quantize.ranking import Ranking
from qtui.tui.panels.quantize.schemes import LETTERS, show_schemes
from qtui.tui.panels.quantize.shown import QuantizeShown
from qtui.tui.panels.quantize.tensor_reader import TENSOR, TensorReader
from qtui.tui.panels.quantize.view import TensorView
from qtui_core.errors import QtuiError, UsageError
from qtui_core.models.quoting import printable
from qtui_core.schemes.scheme import Scheme
from qtui_core.schemes.stepping import step_scheme, with_format

FIRST_SCHEMES = ("int4", "nf4")
#: Actions that choose among the tensors, or change what is shown of the chosen one.
OF_TENSORS = ("tensors", "filter", "order", "worst", "source", "clear_injection")


class QuantizePanel(TensorPanel):
    """Shows one tensor of a model under two schemes. The engine computes everything.

    `opening` is the model that is being opened; the previous one stays until then.
    """

    PANEL_ID = "quantize"
    TITLE = "Quantize"
    NUMBER = 2
    VIEWS = (MapsView, OutliersView, ActivationsView, LayersView, ModelView)
    HELP = "\n".join((HELP, *(view.HELP for view in VIEWS)))
    KEYED_WIDGETS: ClassVar[tuple[type[Widget], ...]] = (TensorList, Heatmap, GranularityBars)
    BINDINGS: ClassVar[list[BindingType]] = [
        *URGENT_BINDINGS, *view_keys(PANEL_ID, VIEWS), *QUANTIZE_BINDINGS,
    ]  # fmt: skip

    body: QuantizeBody
    views: tuple[TensorView, ...]
    view: TensorView

    def compose_body(self) -> ComposeResult:
        self.feed = QuantizeFeed(self.engine)
        self.shown = QuantizeShown(self.qtui.model)
        self.opening: str | None = None
        self.reader = TensorReader(self)
        self.ranking = Ranking(self)
        self.element = ElementReader(self)
        self._keep = False
        self.body = QuantizeBody(self)
        yield self.body

    def on_resize(self) -> None:
        self.show_numbers()

    # Hooks of the shell

    def activate(self) -> None:
        self.body.focus_start()

    def maximise_target(self) -> Widget | None:
        return self.view.maximise_target()

    def copy_text(self) -> str | None:
        view = self.view
        of_tensor = panel_text(self.shown, self.sentence) if view.OF_TENSOR else None
        return view.copy_text() or of_tensor

    def command_line(self) -> Command:
        return self.view.command_line()

    def export_data(self) -> dict[str, Any] | None:
        view = self.view
        data = panel_data(self.shown) if view.OF_TENSOR else None
        of_view = view.export_data()
        name = view.EXPORTED or view.TITLE.lower()
        return data if of_view is None else {**(data or {}), name: of_view}

    def export_picture(self) -> str | None:
        return self.view.export_picture()

    def unfinished(self) -> str:
        return self.view_of(ModelView).unfinished()

    def export_table(self) -> Iterable[Sequence[object]] | None:
        return self.view.export_table()

    def palette(self) -> Iterable[PaletteEntry]:
        yield from self.view.palette()
        yield from super().palette()

    # Opening a model

    def open_model(self, model: str) -> None:
        self.give_up(TENSOR)
        self.opening = model
        self.refusal = ""
        has_picture = self.body.heatmap.grid is not None
        self.say(AskingPhase.OPENING, f"Opening {printable(model)}", keep=has_picture)
        self.ask(partial(self._open, model), OPENING)

    async def _open(self, model: str) -> None:
        if not self.shown.schemes:
            self.shown.schemes = [Scheme.parse(text) for text in FIRST_SCHEMES]
        show_schemes(self.body.bar, self.shown.schemes, self.shown.active)
        try:
            index = await self.feed.open(model, partial(self.reader.show_activity, "headers"))
        except EngineLost:
            raise
        except QtuiError as error:
            if self.shown.entry is None:
                raise
            self.post_message(ModelFailed(model, str(error)))
            self.keep_model(str(error))
            return
        self.give_up(TENSOR, ElementReader.GROUP)
        self.ranking.stop()
        self.opening = None
        before = self.shown
        self.shown = QuantizeShown(model, index, schemes=before.schemes, active=before.active)
        self.qtui.looked_at = None
        self.body.clear()
        self.body.side.load(index.tensors)
        self.refusal = ""
        self.explain("")
        self.show_numbers()
        self.post_message(ModelOpened(model, index.headline))
        self.do(self._ask_device, "device")
        if not index.tensors:
            self.failed(index.note or f"{printable(model)} has no tensors.")
            return
        if index.note:
            self.qtui.tell(index.note)  # says that the model is quantized, so it stores codes
        self.body.side.list.select(index.first_choice.name)

    def keep_model(self, why: str) -> None:
        """Keeps the open model, and says why another was not opened."""
        self.opening = None
        self.refused(why)
        self.look()

    async def _ask_device(self) -> None:
        self.post_message(DeviceSeen(await device_of(self.engine)))

    # Looking at a tensor

    def look_at(
        self, *, source: str | None = None, inject: Injection | Literal["keep"] | None = "keep"
    ) -> None:
        """Shows another source of the chosen tensor, or another outlier (None removes it)."""
        shown = self.shown
        if shown.entry is None:
            return
        wanted = shown.inject if inject == "keep" else inject
        source = shown.source if source is None else source
        if (source, wanted) == (shown.source, shown.inject):
            return
        shown.look_at(source, wanted)
        self.refresh_bindings()
        self.look_again(pause=True)

    def look_again(self, *, pause: bool = False) -> None:
        """Reads the same subject again, as a view needs other data; with `pause` after the widgets
        have been laid out."""
        self.forget_refusal()
        self.reader.look(pause=pause)

    def action_stop(self) -> None:
        if self.end_silent():
            return
        if self.view.working:
            self.view.stop()
            return
        self.ranking.stop()
        if not self.busy:
            return
        self.give_up(OPENING, TENSOR, "view")
        shown, entry = self.shown, self.shown.entry
        if self.opening is not None:
            stopped = f"Opening {printable(self.opening)} was stopped"
            if entry is not None:
                self.keep_model(f"{stopped}.")
            else:
                self.say(AskingPhase.STOPPED, f"{stopped}; r continues")
            return
        if not self.body.maps.is_current(shown):
            shown.map = None  # it is of the previous scheme
        self.say(AskingPhase.STOPPED, "Stopped; r continues", keep=shown.map is not None)
        if entry is not None and not shown.explained:
            self.explain(
                f"Stopped before all of {printable(shown.subject.title)} was measured under "
                f"{shown.scheme}; r continues."
            )

    def begin_again(self) -> None:
        if self.opening is not None or self.shown.entry is None:
            self.open_model(self.opening or self.shown.model)
        else:
            self.look()
        if not self.body.side.ranked_by:
            self.ranking.start_if_listed()

    # Showing

    def say(self, phase: AskingPhase, text: str = "", *, keep: bool = False) -> None:
        """Sets the phase. `text` replaces the picture; with `keep` it is in the title instead."""
        self._keep = keep
        super().say(phase, text)

    def show_phase(self) -> None:
        self.body.title_line.activity = self.status if self._keep else ""
        self.body.title_line.fraction = None
        self.body.say(self.way_out or self.status, keep=self._keep, trouble=bool(self.trouble))
        if self.phase in TROUBLE:
            self.explain(self.status)

    def explain(self, sentence: str) -> None:
        self.shown.explanation = sentence
        self.speak()

    def meaning(self) -> str:
        # Trouble matters more than the meaning of older content, but not trouble with a tensor in
        # a view of the whole model.
        shown, view = self.shown, self.view
        elsewhere = self.phase is AskingPhase.FAILED and not view.OF_TENSOR and view.meaning(shown)
        return shown.explanation if self.phase in TROUBLE and not elsewhere else view.meaning(shown)

    def show_numbers(self) -> None:
        if self.shown.schemes:
            self.body.table.show(partial(number_lines, all_rows(self.shown, self.body.brief)))
            self.view.show(self.shown)

    def engine_lost(self, sentence: str) -> None:
        self.ranking.stop()
        super().engine_lost(sentence)

    # Tensors

    def look(self, *, pause: bool = False) -> None:
        self.reader.look(pause=pause)

    @on(Resized, "Heatmap")
    @on(Resized, "Histogram")
    def _room_changed(self) -> None:
        if self.phase in (AskingPhase.READY, AskingPhase.WORKING):
            self.look(pause=True)

    def action_order(self) -> None:
        self.ranking.stop()
        if self.body.side.next_order() is TensorOrder.WORST and self.shown.schemes:
            self.ranking.start()

    def action_worst(self, direction: int) -> None:
        self.ranking.step(direction)

    # The element under the cursor

    @on(Heatmap.CursorMoved)
    def _cursor_moved(self, message: Heatmap.CursorMoved) -> None:
        message.stop()
        self.forget_refusal()
        self.element.read()

    @on(Heatmap.CellChosen)
    def _send_element(self, message: Heatmap.CellChosen) -> None:
        message.stop()
        self.element.send()

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
                self.take_scheme(step_scheme(self.shown.scheme, part, direction))
            except UsageError as error:
                self.refused(str(error))

    async def action_schemes(self) -> None:
        picking = scheme_picking(self.shown.scheme, self.shown.shape)

        def taken(picked: int | str) -> None:
            self.take_scheme(Scheme.parse(text_of(picking, picked)))

        await self.pick(picking, taken)

    async def action_formats(self) -> None:
        picking = format_picking(self.shown.scheme, self.shown.shape)

        def taken(picked: int | str) -> None:
            self.take_scheme(with_format(self.shown.scheme, text_of(picking, picked)))

        await self.pick(picking, taken)

    def take_scheme(self, scheme: Scheme) -> None:
        """Replaces the active scheme."""
        self.history.record(self.choice)
        self.shown.set_scheme(scheme)
        self._schemes_changed()

    @property
    def choice(self) -> tuple[tuple[Scheme, ...], int]:
        """The schemes, and which of them is active."""
        return tuple(self.shown.schemes), self.shown.active

    def take_choice(self, choice: tuple[tuple[Scheme, ...], int]) -> None:
        for at, scheme in enumerate(choice[0]):
            self.shown.active = at
            if scheme != self.shown.scheme:
                self.shown.set_scheme(scheme)
        self.shown.active = choice[1]
        self._schemes_changed()

    def _schemes_changed(self) -> None:
        self.forget_refusal()
        show_schemes(self.body.bar, self.shown.schemes, self.shown.active)
        self.ranking.stop()
        self.ranking.start_if_listed()
        self.look(pause=True)
        self.element.read()

    # Views, and the rest

    def draw(self) -> None:
        self.body.show_view()
        self.refresh_bindings()
        self.speak()

    def focus_view(self) -> None:
        focused = self.screen.focused
        if focused is None or focused not in self.body.side.query("*"):
            self.body.focus_start()

    @on(TensorView.Spoke)
    def _view_spoke(self, message: TensorView.Spoke) -> None:
        message.stop()
        self.speak()

    def action_source(self) -> None:
        sources = (WEIGHT, INPUT, OUTPUT)
        at = sources.index(self.shown.source)
        self.look_at(source=sources[(at + 1) % len(sources)])

    def action_clear_injection(self) -> None:
        self.look_at(inject=None)

    def offers(self, action: str, parameters: tuple[object, ...]) -> bool:
        entry = self.shown.entry
        if action in OF_TENSORS and not (self.view.OF_TENSOR or action in self.view.OFFERS):
            return False
        if action == "restart" and not self.view.OF_TENSOR and entry is not None:
            # That key does the work of the view when only the reading of a tensor ended.
            return self.phase is AskingPhase.LOST or bool(self.silence)
        if action in ("schemes", "formats") and (not self.shown.schemes or self.body.typing):
            return False
        if action == "source":
            return entry is not None and entry.name in self.body.activations.held
        if action == "clear_injection":
            return self.shown.inject is not None
        if action in ("stop", "back"):
            busy = self.ranking.running or self.busy or self.view.working or bool(self.silence)
            leaves = self.body.can_leave or (self.body.beside_list and not busy)
            return leaves if action == "back" else busy and not leaves
        return super().offers(action, parameters)
