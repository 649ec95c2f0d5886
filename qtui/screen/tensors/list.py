"""The list of a model's tensors: choose, filter, sort."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from qtui.engine.answers.tensors import TensorEntry
from qtui.report.numbers import format_decibels
from qtui.screen.picker.matching import Letters, folded
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn_lines import DrawnLines
from qtui_core.models.quoting import printable


class TensorOrder(StrEnum):
    """The order of the list. MODEL: as in the files, in natural order. WORST: lowest SQNR first."""

    MODEL = "model"
    NAME = "name"
    WORST = "worst"


class TensorList(ScrollView, DrawnLines, can_focus=True):
    """One line per tensor. Only visible lines are drawn, so that 100,000 tensors cost no more than
    40.

    A filter is letters that the name has in this order, in any case, as in the picker of tensors;
    of words separated by spaces all must be there.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "tensors--chosen", "tensors--quiet", "tensors--match", "tensors--name",
    }  # fmt: skip
    DEFAULT_CSS = """
    TensorList {
        scrollbar-size-vertical: 1;
        overflow-x: hidden;
        & > .tensors--name { color: $foreground; }
        & > .tensors--quiet { color: $quiet; }
        & > .tensors--match { color: $warning; text-style: bold; }
        & > .tensors--chosen { background: $cursor; color: $foreground; text-style: bold; }
        &:nocolor > .tensors--chosen { text-style: bold reverse; }
        &:nocolor > .tensors--match { text-style: bold underline; }
        &:ansi > .tensors--chosen { text-style: bold reverse; }
        &:ansi > .tensors--match { text-style: bold underline; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "Down", show=False, id="tensors.down",
                tooltip="Next tensor"),
        Binding("up,k", "move(-1)", "Up", show=False, id="tensors.up",
                tooltip="Previous tensor"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="tensors.page_down",
                tooltip="One page down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="tensors.page_up",
                tooltip="One page up"),
        Binding("g,home", "edge(0)", "First", show=False, id="tensors.first",
                tooltip="First tensor"),
        Binding("G,end", "edge(-1)", "Last", show=False, id="tensors.last",
                tooltip="Last tensor"),
        Binding("enter", "choose", "Picture", id="tensors.choose",
                tooltip="Open it and move to its picture"),
    ]  # fmt: skip

    class Highlighted(Message):
        """The cursor moved to another tensor. (Typing a filter only marks one.)"""

        def __init__(self, entry: TensorEntry) -> None:
            super().__init__()
            self.entry = entry

    class Chosen(Message):
        """A tensor was chosen: by Enter, or by a click on the tensor under the cursor."""

        def __init__(self, entry: TensorEntry) -> None:
            super().__init__()
            self.entry = entry

    def __init__(self, drawing: Drawing, **options: str) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.drawing = drawing
        self._entries: tuple[TensorEntry, ...] = ()
        self._shown: list[TensorEntry] = []
        self._order = TensorOrder.MODEL
        self._sqnr: Mapping[str, float | None] = {}
        self._folded: list[str] = []
        self._filter = Letters("")
        self._index = 0
        self._told: TensorEntry | None = None

    # What is listed

    @property
    def current(self) -> TensorEntry | None:
        return self._shown[self._index] if self._shown else None

    @property
    def order(self) -> TensorOrder:
        return self._order

    @property
    def shown(self) -> Sequence[TensorEntry]:
        """The tensors that the filter leaves, in the current order."""
        return self._shown

    @property
    def entries(self) -> tuple[TensorEntry, ...]:
        return self._entries

    def load(self, entries: Iterable[TensorEntry]) -> None:
        """Loads another model's tensors; resets filter and order."""
        self._entries = tuple(entries)
        self._folded = [folded(entry.name) for entry in self._entries]
        self._order, self._filter, self._sqnr = TensorOrder.MODEL, Letters(""), {}
        self._index = 0
        self._told = None
        self._arrange(None)

    def set_order(self, order: TensorOrder, sqnr: Mapping[str, float | None] | None = None) -> None:
        """Sorts again; `sqnr` is in dB by name, for tensors for which it is known."""
        self._order = order
        if sqnr is not None:
            self._sqnr = dict(sqnr)
        self._arrange(self.current)

    def set_filter(self, text: str) -> None:
        """Shows only the tensors whose names match; an empty text shows all. The cursor stays where
        it can, and the highlighted tensor stays the same until `open_current`."""
        self._filter = Letters(text)
        self._arrange(self.current if text else self._told)

    def open_current(self) -> bool:
        """Highlights the tensor under the cursor; False if the filter leaves none."""
        if self.current is None:
            return False
        self._tell(self.current)
        return True

    def select(self, name: str) -> None:
        """Moves the cursor to a tensor, if it is shown."""
        for index, entry in enumerate(self._shown):
            if entry.name == name:
                self._go(index)
                return

    def _arrange(self, keep: TensorEntry | None) -> None:
        found = sorted(self._filter.among(self._folded, range(len(self._folded))))
        shown = [self._entries[at] for at in found]
        if self._order is TensorOrder.NAME:
            shown.sort(key=lambda entry: entry.name)
        elif self._order is TensorOrder.WORST:
            # Tensors without a number go last. The sort is stable, so ties keep the model's order.
            shown.sort(key=lambda entry: sqnr_key(self._sqnr.get(entry.name)))
        self._shown = shown
        place = {entry.name: at for at, entry in enumerate(shown)}
        wanted = [entry.name for entry in (keep, self._told) if entry is not None]
        self._index = next((place[name] for name in wanted if name in place), 0)
        self.virtual_size = Size(0, len(shown))
        self._scroll_to_cursor()
        self.refresh()

    # Moving

    def _go(self, index: int) -> None:
        if not self._shown:
            return
        index = max(0, min(len(self._shown) - 1, index))
        if index != self._index:
            self._index = index
            self._scroll_to_cursor()
            self.refresh()
        self._tell(self._shown[index])

    def _tell(self, entry: TensorEntry) -> None:
        if entry is self._told:
            return
        self._told = entry
        # Textual stops a message at the widget whose handler made it, and a parent of this list
        # handles the filter: the message must name this list as its sender.
        self.post_message(self.Highlighted(entry).set_sender(self))

    def _scroll_to_cursor(self) -> None:
        # Forced, as before the first layout there is no scrollbar yet.
        self.scroll_to_region(Region(0, self._index, 1, 1), animate=False, force=True)

    def on_resize(self) -> None:
        """The line of the cursor stays to be seen; a hidden list had no size to scroll in."""
        self._scroll_to_cursor()

    def action_move(self, lines: int) -> None:
        self._go(self._index + lines)

    def action_page(self, pages: int) -> None:
        self._go(self._index + pages * max(1, self.size.height - 1))

    def action_edge(self, index: int) -> None:
        self._go(index if index >= 0 else len(self._shown) - 1)

    def action_choose(self) -> None:
        if self.current is not None:
            self.post_message(self.Chosen(self.current))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        index = event.y + self.scroll_offset.y
        if index >= len(self._shown):
            return
        if index == self._index:
            self.action_choose()
        else:
            self._go(index)

    # Drawing

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + self.scroll_offset.y
        if not self._shown and self._entries and y == 0:
            return self._no_match(width)
        if index >= len(self._shown):
            return Strip.blank(width, self.base_style)
        entry = self._shown[index]
        chosen = index == self._index
        base = self.get_component_rich_style("tensors--chosen" if chosen else "tensors--name")
        quiet = base if chosen else self.get_component_rich_style("tensors--quiet")
        pointer = f"{self.drawing.glyphs.pointer} " if chosen else "  "
        right = self._right(entry)
        room = width - len(pointer) - len(right) - 1
        name = printable(entry.name).removesuffix(".weight")
        name = shorten(name, room, self.drawing.glyphs.ellipsis)
        if not entry.readable and not chosen:
            base = quiet
        segments = [
            Segment(pointer, base),
            *self._name_segments(name, base),
            Segment(" " * (room - len(name) + 1), base),
            Segment(right, quiet),
        ]
        return Strip(segments).adjust_cell_length(width, base).crop(0, width)

    def _no_match(self, width: int) -> Strip:
        text = f"  no name has {printable(' '.join(self._filter.words))}"
        if len(text) > width:
            text = text[: width - 1] + self.drawing.glyphs.ellipsis
        quiet = self.get_component_rich_style("tensors--quiet")
        return Strip([Segment(text, quiet)]).adjust_cell_length(width, self.base_style)

    def _right(self, entry: TensorEntry) -> str:
        if self._order is TensorOrder.WORST:
            sqnr = self._sqnr.get(entry.name)
            return rank_text(sqnr) if sqnr is not None else ""
        if self.size.width < 34:
            return ""
        times = self.drawing.glyphs.times
        return times.join(str(size) for size in entry.shape) or "scalar"

    def _name_segments(self, name: str, base: Style) -> list[Segment]:
        """The name, with the letters of the filter marked."""
        marked = self._filter.marks(folded(name))
        found = self.get_component_rich_style("tensors--match")
        match = base + Style(bold=found.bold, underline=found.underline)
        if not base.reverse:  # reversed, the match's colour would become its background
            match += Style(color=found.color)
        return [
            Segment("".join(name[at] for at in places), match if of_filter else base)
            for of_filter, places in groupby(range(len(name)), marked.__contains__)
        ]


def shorten(name: str, room: int, ellipsis: str) -> str:
    """A tensor's name in `room` characters. First the final "weight" is dropped, then the parts
    before the number of the layer, which are the same in all layers, then those after it."""
    if len(name) <= room:
        return name
    parts = name.removesuffix(".weight").split(".")
    layer = next((at for at, part in enumerate(parts[:-1]) if part.isdigit()), None)
    head, last = ellipsis, len(parts) - 1
    texts = [".".join(parts)]
    for at in range(1, last + 1):
        if layer is not None and at > layer:
            head = f"{ellipsis}{parts[layer]}{ellipsis}"
        texts.append(head + ".".join(parts[at:]))
    return next((text for text in texts if len(text) <= room), texts[-1][: max(0, room)])


def sqnr_key(sqnr: float | None) -> tuple[bool, float]:
    if sqnr is None or math.isnan(sqnr):
        return True, 0.0
    return False, sqnr


def rank_text(sqnr: float | None) -> str:
    """An SQNR in dB in the ranking; minus infinity means lost values, NaN that none was finite."""
    if sqnr is not None and math.isnan(sqnr):
        return "none finite"
    return "values lost" if sqnr == -math.inf else f"{format_decibels(sqnr)} dB"
