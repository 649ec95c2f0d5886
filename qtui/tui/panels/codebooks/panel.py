"""Panel 3: NF4, INT4, FP4, E2M1 and others side by side, code by code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from qtui.engine.client import EngineState
from qtui.screen.panel.asking import Phase
from qtui.screen.panel.base import PaletteEntry
from qtui.screen.panel.viewed import ViewedPanel
from qtui.screen.tensors.list import TensorList
from qtui.screen.widgets.text_picture import TextPicture
from qtui.tui.panels.codebooks.body import CodebooksBody
from qtui.tui.panels.codebooks.export import panel_data
from qtui.tui.panels.codebooks.keys import CODEBOOKS_BINDINGS, HELP
from qtui.tui.panels.codebooks.looking import LookingPanel
from qtui.tui.panels.codebooks.shown import ViewName
from qtui_core.errors import UsageError
from qtui_core.schemes.rules import check_side_by_side
from qtui_core.schemes.scheme import Family, Scheme
from qtui_core.schemes.stepping import resize_scheme

BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
NESTED_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class CodebooksPanel(ViewedPanel, LookingPanel):
    """The keys, and what they change."""

    PANEL_ID = "codebooks"
    TITLE = "Codebooks"
    NUMBER = 3
    HELP = HELP
    KEYED_WIDGETS: ClassVar[tuple[type[Widget], ...]] = (TensorList,)
    BINDINGS: ClassVar[list[BindingType]] = CODEBOOKS_BINDINGS

    # What the shell asks for

    def activate(self) -> None:
        self.body.focus_picture()
        self._follow()

    def maximise_target(self) -> Widget | None:
        return self.body.picture

    def drawing_changed(self) -> None:
        self.body.redraw()

    def copy_text(self) -> str | None:
        if self.shown.entry is None or not self.shown.current:
            return None
        return f"{self.shown.entry.name}\n\n{self.body.picture.text}\n\n{self.sentence}"

    def export_data(self) -> dict[str, Any] | None:
        return panel_data(self.shown, self.sentence)

    def palette(self) -> Iterable[PaletteEntry]:
        engine = self.qtui.engine
        if engine.state is EngineState.RUNNING:
            yield PaletteEntry("engine: Stop", "End the engine's process at once", engine.kill)

    # Views and the cursor

    def _show_place(self, place: int) -> None:
        self._show_view(list(ViewName)[place])

    def _show_view(self, view: ViewName) -> None:
        self.shown.view = view
        self._forget_refusal()
        self._draw()

    def action_move(self, by: int) -> None:
        shown = self.shown
        self._forget_refusal()
        if shown.view is ViewName.CONSTRUCTION:
            if shown.construction is not None:
                shown.step = max(0, min(len(shown.construction.steps) - 1, shown.step + by))
        elif shown.column is not None:
            last = len(shown.column.bars) - 1
            shown.code = max(0, min(last, min(shown.code, last) + by))
        self._draw()

    def action_pick(self, by: int) -> None:
        self._forget_refusal()
        count = max(len(self.shown.columns), 1)
        self.shown.chosen = max(0, min(count - 1, self.shown.chosen + by))
        self._draw()

    @on(TextPicture.Picked)
    def _picked(self, message: TextPicture.Picked) -> None:
        """A click on a code of a scheme."""
        message.stop()
        if isinstance(message.pick, tuple):
            self._forget_refusal()
            self.shown.chosen, self.shown.code = message.pick
            self._draw()

    # Tensors

    @on(TensorList.Highlighted)
    def _tensor_changed(self, message: TensorList.Highlighted) -> None:
        message.stop()
        self._forget_refusal()
        self.shown.entry = message.entry
        self._look(pause=True)

    @on(TensorList.Chosen)
    def _tensor_chosen(self, message: TensorList.Chosen) -> None:
        message.stop()
        self.body.focus_picture()
        if self.shown.entry is not message.entry:
            self.body.side.list.open_current()
        elif self.phase is Phase.STOPPED:
            self._look()

    def action_tensor(self, by: int) -> None:
        self.body.side.list.action_move(by)

    def action_tensors(self) -> None:
        self.body.show_list()

    def action_filter(self) -> None:
        self.body.add_class("-listing")
        self.body.side.start_filter()

    # Schemes

    def action_equal_bits(self) -> None:
        self.shown.at_equal_bits = not self.shown.at_equal_bits
        self._schemes_changed()

    def action_type_schemes(self) -> None:
        self.body.start_typing(" ".join(map(str, self.shown.asked)))

    @on(CodebooksBody.Typed)
    def _schemes_typed(self, message: CodebooksBody.Typed) -> None:
        message.stop()
        try:
            schemes = _schemes_of(message.text)
        except UsageError as error:
            self.refused(str(error))
            return
        self.shown.asked, self.shown.chosen = schemes, 0
        nested = (scheme.nested_block for scheme in schemes if scheme.double_quantization)
        self.shown.nested_block = next(nested, self.shown.nested_block)
        self.body.stop_typing()
        self._schemes_changed()

    def action_remove(self) -> None:
        shown = self.shown
        if len(shown.asked) < 2:
            self.refused("The last scheme stays: s types others in its place.")
            return
        # Two that were asked for may have become the same at equal bits.
        column = shown.column
        kept = [
            asked
            for asked, now in zip(shown.asked, self._current_of_asked(), strict=True)
            if column is None or now != column.scheme
        ]
        shown.asked = tuple(kept) or shown.asked
        shown.chosen = min(shown.chosen, len(shown.asked) - 1)
        self._schemes_changed()

    def _current_of_asked(self) -> list[str]:
        """What each scheme that was asked for is now."""
        shown = self.shown
        if len(shown.equal) == len(shown.asked):
            return [row.scheme for row in shown.equal]
        return list(map(str, shown.asked))

    def action_block(self, by: int) -> None:
        if not self.shown.has_blocks:
            self.refused("None of these schemes has blocks or groups whose size can be changed.")
            return
        size = _step(BLOCKS, self.shown.block, by)
        if size == self.shown.block:
            self.refused(f"Blocks and groups here have {BLOCKS[0]} to {BLOCKS[-1]:,} elements.")
            return
        self._resize(size=size)

    def action_nested_block(self, by: int) -> None:
        shown = self.shown
        if not shown.double_quantization and shown.view is not ViewName.BUDGET:
            self.refused("Double quantization is off here: d turns it on.")
            return
        size = _step(NESTED_BLOCKS, shown.nested_block, by)
        if size == shown.nested_block:
            self.refused(
                f"A constant of double quantization is shared by {NESTED_BLOCKS[0]} to "
                f"{NESTED_BLOCKS[-1]:,} scales here."
            )
            return
        shown.nested_block = size
        self._resize(nested=size)

    def action_double_quantization(self) -> None:
        if not any(scheme.family is Family.CODEBOOK for scheme in self.shown.asked):
            self.refused("Double quantization is for nf4 and fp4, and none of these is one.")
            return
        on = not self.shown.double_quantization
        self._resize(double_quantization=on, nested=self.shown.nested_block)

    def _resize(self, **changes: Any) -> None:
        found = (resize_scheme(scheme, **changes) for scheme in self.shown.asked)
        self.shown.asked = tuple(dict.fromkeys(found))
        self._schemes_changed()

    def action_back(self) -> None:
        self.body.leave()


def _schemes_of(text: str) -> tuple[Scheme, ...]:
    """The schemes that were typed, each once. Raises UsageError for a text that is none, and for
    schemes that cannot be shown side by side."""
    words = text.replace(",", " ").split()
    if not words:
        raise UsageError("Type at least one scheme, for example: nf4 int4 int4:group64:asym.")
    schemes = tuple(dict.fromkeys(Scheme.parse(word) for word in words))
    check_side_by_side(schemes)
    return schemes


def _step(sizes: tuple[int, ...], size: int, by: int) -> int:
    """The next larger or smaller one, the outermost at the ends."""
    if by > 0:
        return next((each for each in sizes if each > size), sizes[-1])
    return next((each for each in reversed(sizes) if each < size), sizes[0])
