"""Panel 1: the bits of one value in every format at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Input, Label

from qtui.screen.messages import Resized
from qtui.screen.panel.base import Panel
from qtui.screen.panel.hooks import PaletteEntry
from qtui.screen.widgets.bits import BitGrid
from qtui.screen.widgets.choice import Choice
from qtui.screen.widgets.facts import fact_lines
from qtui.screen.widgets.field import Field
from qtui.screen.widgets.number_line import NumberLine
from qtui.screen.widgets.text_picture import Canvas, TextLine, TextPicture
from qtui.tui.panels.formats import state as verbs
from qtui.tui.panels.formats.beside import pair_lines
from qtui.tui.panels.formats.facts import format_picking, interval_of, limit_facts, value_facts
from qtui.tui.panels.formats.keys import FORMATS_BINDINGS, HELP
from qtui.tui.panels.formats.line import ZOOM_RANGE, companions, ruler
from qtui.tui.panels.formats.rows import bit_row, grid_layout, table_text
from qtui.tui.panels.formats.state import FORMAT_LIST, SATURATION, FormatsState, initial_state
from qtui_core.errors import UsageError
from qtui_core.formats import Exact, Rounding
from qtui_core.formats.pair import compare_pair
from qtui_core.formats.summary import summarize
from qtui_core.formats.table import FormatRow
from qtui_core.formats.text import Typed

#: What moves the cursor of the grid, or acts on the bit under it.
OF_GRID = ("move_row", "move_bit", "edge", "page", "flip")


class FormatsPanel(Panel):
    """Shows one value in every format. Everything on the screen is computed from `state`."""

    PANEL_ID = "formats"
    TITLE = "Formats"
    NUMBER = 1
    HELP = HELP
    KEYED_WIDGETS: ClassVar[tuple[type[Widget], ...]] = (Choice,)
    BINDINGS: ClassVar[list[BindingType]] = FORMATS_BINDINGS

    state: reactive[FormatsState] = reactive(initial_state, init=False, repaint=False)
    ranges: reactive[bool] = reactive(False, init=False, repaint=False)
    """Whether a screen without room for all columns shows the ranges and not the values."""

    zoom: reactive[int] = reactive(0, init=False, repaint=False)

    def compose_body(self) -> ComposeResult:
        self.rows: tuple[FormatRow, ...] = ()
        self.grid = BitGrid(id="formats-grid")
        self.grid.glyphs = self.drawing.glyphs
        with Horizontal(id="formats-controls"):
            yield Label("value", classes="control-label")
            yield Field("0.1", compact=True, select_on_focus=True, id="formats-value")
            yield Choice(
                "rounding",
                [mode.value for mode in Rounding],
                tooltip="How a value between two numbers of a format is rounded (R)",
                id="formats-rounding",
            )
            yield Choice(
                "saturate",
                list(SATURATION),
                tooltip="What a value beyond the largest number becomes (C)",
                id="formats-saturate",
            )
            yield Label("", id="formats-origin", markup=False)
        with Container(id="formats-main"):
            yield self.grid
            yield TextPicture(self.drawing, self._facts, id="formats-facts", focus=False)
        yield NumberLine(self.drawing, id="formats-line")

    def on_mount(self) -> None:
        self._show_all()

    def activate(self) -> None:
        self.screen.set_focus(self.grid)

    def maximise_target(self) -> Widget | None:
        return self.grid

    # Showing the state

    def watch_state(self) -> None:
        self._show_all()

    def watch_ranges(self) -> None:
        self._show_rows()
        self.refresh_bindings()

    def watch_zoom(self) -> None:
        self._show_line()

    @on(Resized, "#formats-grid")
    def _grid_resized(self) -> None:
        self._show_rows()

    @on(Resized, "#formats-line")
    def _line_resized(self) -> None:
        self._show_line()

    def _show_all(self) -> None:
        self.rows = self.state.rows()
        self._show_rows()
        self.query_one("#formats-facts", TextPicture).update()
        self._show_line()
        label, origin = self.query_one("#formats-origin", Label), f"from {self.state.origin}"
        if str(label.content) != origin:  # an update makes Textual lay out the whole screen
            label.update(origin)
        self.sentence = self._meaning()
        self.refresh_bindings()

    def _meaning(self) -> str:
        """Of the format under the cursor, and of the pinned one beside it."""
        chosen, pinned = self.chosen_row, self.pinned_row
        return compare_pair(chosen, pinned) if pinned else summarize((chosen,))

    @property
    def chosen_row(self) -> FormatRow:
        return self.rows[FORMAT_LIST.index(self.state.chosen)]

    @property
    def pinned_row(self) -> FormatRow | None:
        pinned = self.state.pinned
        return None if pinned is None else self.rows[FORMAT_LIST.index(pinned)]

    def _show_rows(self) -> None:
        grid, state = self.grid, self.state
        if not grid.size.width:
            return  # not laid out yet; `_grid_resized` calls this again
        layout = grid_layout(grid.size.width, ranges=self.ranges)
        grid.name_width = layout.name_width
        grid.exponent_width = layout.exponent_width
        grid.bits_width = layout.bits_width
        grid.columns = layout.columns
        grid.rows = tuple(
            bit_row(
                row, layout, source=row.format is state.source, pinned=row.format is state.pinned
            )
            for row in self.rows
        )
        grid.chosen = FORMAT_LIST.index(state.chosen)
        grid.bit = min(grid.bit, state.chosen.bits - 1)

    def _facts(self, canvas: Canvas) -> list[TextLine]:
        pinned = self.pinned_row
        if pinned is not None and pinned is not self.chosen_row:
            return pair_lines(self.chosen_row, pinned, canvas)
        columns = max(1, canvas.width // 38) if canvas.width > 60 else 1
        facts = value_facts(self.state, self.chosen_row, canvas.width // columns)
        return fact_lines(facts + limit_facts(self.state.chosen), columns, canvas)

    def _show_line(self) -> None:
        line, row = self.query_one(NumberLine), self.chosen_row
        if not line.size.width:
            return
        shown = {row.format: row.value for row in self.rows}
        beside = companions(row.format, self.state.pinned, line.track_room - 1)
        others = [(fmt, shown[fmt]) for fmt in beside]
        line.ruler = ruler(
            row.format,
            self.state.value,
            row.value,
            interval_of(self.state, row),
            others,
            cells=line.cells,
            zoom=self.zoom,
            pinned=self.pinned_row,
        )

    # Setting the value

    def show_value(self, value: Exact, origin: str) -> None:
        """Shows a value that another panel sent."""
        self._set(verbs.with_value(self.state, value, origin))
        self.screen.set_focus(self.grid)

    def _set(self, state: FormatsState) -> None:
        """Sets the state, and shows its value in the field."""
        self.state = state
        self._show_text()

    def _show_text(self) -> None:
        field = self.query_one(Input)
        with field.prevent(Input.Changed):
            field.value = verbs.value_text(self.state.value)

    # Typing

    def action_edit(self) -> None:
        # focus() acts later, after keys of the same packet.
        self.screen.set_focus(self.query_one(Input))

    def action_leave(self) -> None:
        self.screen.set_focus(self.grid)
        self._set(self.state)
        self.sentence = self._meaning()

    def on_paste(self, event: events.Paste) -> None:
        """Takes text that is pasted outside the field as a value."""
        event.stop()
        self._take(event.text.strip())

    @on(Input.Submitted, "#formats-value")
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        self._take(event.value)

    @on(Input.Blurred, "#formats-value")
    def _left(self) -> None:
        """Drops typed text that was not entered: the field shows the value again."""
        self._show_text()

    def _take(self, text: str) -> None:
        try:
            state = verbs.with_text(self.state, text)
        except UsageError as error:
            self.sentence = str(error)
            return
        self.screen.set_focus(self.grid)
        self._set(state)

    # The bit cursor

    def action_move_bit(self, by: int) -> None:
        self.grid.bit = max(0, min(self.grid.bit + by, self.state.chosen.bits - 1))

    def action_move_row(self, by: int) -> None:
        index = FORMAT_LIST.index(self.state.chosen) + by
        self._choose(max(0, min(index, len(FORMAT_LIST) - 1)))

    def action_edge(self, side: int) -> None:
        self.action_move_row(side * len(FORMAT_LIST))

    def action_page(self, by: int) -> None:
        self.action_move_row(by * max(2, self.grid.size.height - 2))

    def _choose(self, index: int) -> None:
        self.state = verbs.with_chosen(self.state, FORMAT_LIST[index])

    async def action_formats(self) -> None:
        await self.pick(
            format_picking(self.rows, self.state.chosen), lambda at: self._choose(int(at))
        )

    def action_flip(self) -> None:
        bit = min(self.grid.bit, self.state.chosen.bits - 1)  # bounded only where it is drawn
        self._set(verbs.with_bit_toggled(self.state, self.state.chosen, bit))

    def on_bit_grid_row_chosen(self, message: BitGrid.RowChosen) -> None:
        self._choose(message.row)

    def on_bit_grid_bit_clicked(self, message: BitGrid.BitClicked) -> None:
        self.grid.bit = message.bit
        self._set(verbs.with_bit_toggled(self.state, FORMAT_LIST[message.row], message.bit))

    def action_step(self, direction: int) -> None:
        state = verbs.stepped(self.state, up=direction > 0)
        if state is None:
            end = "above" if direction > 0 else "below"
            self.sentence = f"{self.state.chosen.title} has no number {end} this one."
            return
        self._set(state)

    # Settings

    @on(Choice.Changed)
    def _setting_changed(self, event: Choice.Changed) -> None:
        event.stop()
        if event.choice.id == "formats-rounding":
            self.state = verbs.with_rounding(self.state, Rounding(event.value))
        else:
            self.state = replace(self.state, saturate=SATURATION[event.value])

    def action_next_rounding(self) -> None:
        self.query_one("#formats-rounding", Choice).action_step(1)

    def action_next_saturation(self) -> None:
        self.query_one("#formats-saturate", Choice).action_step(1)

    def action_pin(self) -> None:
        self.state = verbs.with_pin(self.state)

    def action_draw(self) -> None:
        self.state = verbs.with_new_draw(self.state)

    def action_ranges(self) -> None:
        self.ranges = not self.ranges

    def action_zoom(self, by: int) -> None:
        self.zoom = max(ZOOM_RANGE.start, min(self.zoom + by, ZOOM_RANGE.stop - 1))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action is possible now; the footer shows only keys of such actions."""
        typing = self.is_mounted and self.query_one(Field).takes_keys
        if typing or action == "leave":
            return typing and action in ("leave", "move_row")
        if self.is_mounted and isinstance(self.screen.focused, Choice) and action in OF_GRID:
            return False  # the keys that move are those of the setting
        if action in ("flip", "move_bit"):
            return not self.ranges or bool(self.grid.bits_width)
        if action == "ranges":
            room = self.grid.size.width if self.is_mounted else 0
            return grid_layout(room, ranges=True) != grid_layout(room, ranges=False)
        if action == "draw":
            return self.state.rounding is Rounding.STOCHASTIC
        return True

    # Hooks of the shell

    def palette(self) -> Iterable[PaletteEntry]:
        for name, value in verbs.landmarks(self.state.chosen):
            title = self.state.chosen.title
            yield PaletteEntry(
                f"value: Set to the {name} of {title}",
                "Every format then shows what it makes of it.",
                partial(self.show_value, value, f"{name} of {title}"),
            )

    def copy_text(self) -> str | None:
        return f"{table_text(self.rows)}\n\n{self.sentence}"

    def command_line(self) -> tuple[str, ...]:
        return ("formats", *self.state.command_words())

    def export_data(self) -> dict[str, Any] | None:
        from qtui.report.formats import value_document

        state = self.state
        typed = Typed(state.value, state.source, state.code)
        return dict(value_document(typed, self.rows, state.rounding, state.saturate).data)
