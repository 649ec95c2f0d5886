"""The screen of the picker: a field, the rows that match it, and a line about the chosen one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Final

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.screen import ModalScreen
from textual.widgets import Input

from qtui.screen.picker.list import PickerList
from qtui.screen.picker.matching import Letters, folded
from qtui.screen.picker.picking import PickerRow, Picking
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.field import Field
from qtui.screen.widgets.sentence import Sentence
from qtui_core.errors import UsageError
from qtui_core.models.quoting import printable

#: Keys of the field -> what they do to the list.
_MOVES: Final[Mapping[str, str]] = {
    "up": "up",
    "ctrl+p": "up",
    "down": "down",
    "ctrl+n": "down",
    "pageup": "page_up",
    "pagedown": "page_down",
    "enter": "take",
    "tab": "complete",
}


class PickerField(Field):
    """Handles the keys of the picker in the order in which they were pressed."""

    async def on_key(self, event: events.Key) -> None:
        screen = self.screen
        if event.key in _MOVES and isinstance(screen, PickerScreen):
            event.stop()
            event.prevent_default()
            screen.act(_MOVES[event.key])
        else:
            await super().on_key(event)


class PickerScreen(ModalScreen[int | str | None]):
    """Asks for one of many names. Its result is the place of a name, or a text (see Picking); None
    if nothing was picked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape",
            "dismiss",
            "Leave",
            id="picker.leave",
            priority=True,
            tooltip="Leave everything as it was",
        ),
    ]
    AUTO_FOCUS = ""
    DEFAULT_CSS = """
    PickerScreen {
        align: center middle;
        background: transparent;
        PickerField { margin: 0 1; }
        Sentence { background: $surface; height: 2; margin: 1 0 0 0; }
    }
    """

    def __init__(self, drawing: Drawing, picking: Picking) -> None:
        super().__init__()
        self.drawing = drawing
        self.picking = picking
        self.field = PickerField(compact=True, placeholder=picking.hint)
        self.list = PickerList(
            drawing, self._text_of, lambda at: self._row_of(at).facts, self._take
        )
        self._note = Sentence(ellipsis=drawing.glyphs.ellipsis)
        self._entries: Sequence[int | str] = range(len(picking.names))
        self._found: Sequence[int] = self._entries
        self._letters = Letters("")
        self._text = ""
        self._refusal = ""
        self._rows: dict[int | str, PickerRow] = {}

    @cached_property
    def _folded(self) -> list[str]:
        return [folded(name) for name in self.picking.names]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -picker") as dialog:
            dialog.border_subtitle = "Enter takes it, Tab completes, Esc leaves"
            yield self.field
            yield self.list
            yield self._note

    def on_mount(self) -> None:
        self.set_focus(self.field)
        self._search("")
        # Before the first letter is typed, and after the first picture.
        self.call_after_refresh(lambda: self._folded)

    # What matches

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._follow()

    def _follow(self) -> None:
        """Shows what matches the field, if it changed."""
        if self.field.value != self._text:
            self._search(self.field.value)

    def _search(self, text: str) -> None:
        picking, letters = self.picking, Letters(text)
        self._text = text
        narrower = bool(self._letters.words) and _narrows(self._letters.words, letters.words)
        if letters.words:
            candidates = sorted(self._found) if narrower else range(len(picking.names))
            self._found = letters.among(self._folded, candidates)
        else:
            self._found = range(len(picking.names))
        self._letters = letters
        self._rows.clear()
        self._refusal = ""
        completed = [each for each in picking.completed(text) if each != text]
        self._entries = [*self._found, *completed] if completed else self._found
        self._offer(text.strip())
        at = 0 if letters.words else picking.at
        self.list.show(len(self._entries), at, letters)
        self._tell()

    def _offer(self, text: str) -> None:
        """Adds the text itself to the rows, if it means something and is not there."""
        if not text or any(self._name_of(entry) == text for entry in self._entries[:1]):
            return
        try:
            row = self.picking.typed(text)
        except UsageError as error:
            self._refusal = str(error)
            return
        if row is not None:
            others = [each for each in self._entries if self._name_of(each) != text]
            self._entries = [*others, text] if row.below else [text, *others]

    def _name_of(self, entry: int | str) -> str:
        return entry if isinstance(entry, str) else self.picking.names[entry]

    def _text_of(self, at: int) -> str:
        return self._name_of(self._entries[at])

    def _row_of(self, at: int) -> PickerRow:
        entry = self._entries[at]
        if entry not in self._rows:
            if isinstance(entry, str):
                self._rows[entry] = self.picking.typed(entry) or PickerRow()
            else:
                self._rows[entry] = self.picking.row(entry)
        return self._rows[entry]

    def _tell(self) -> None:
        """Says what the chosen row is, or why there is none, and how many there are."""
        listed, count = len(self._entries), len(self.picking.names)
        many = f"{listed:,}" if listed >= count else f"{listed:,} of {count:,}"
        dialog = self.query_one(Vertical)
        dialog.border_title = f"{self.picking.title} ({many})"
        if self._entries:
            self._note.text = printable(self._row_of(self.list.index).note)
        else:
            self._note.text = printable(self._refusal or self.picking.none)

    # Keys and clicks

    def act(self, what: str) -> None:
        """Does what a key of the field means."""
        self._follow()  # the field's message about letters of the same packet is still to come
        page = max(1, self.list.size.height - 1)
        match what:
            case "take":
                self._take(self.list.index)
            case "complete" if self._entries:
                self._complete()
            case "up" | "down" | "page_up" | "page_down":
                by = {"up": -1, "down": 1, "page_up": -page, "page_down": page}[what]
                self.list.go(self.list.index + by)
                self._tell()

    def _complete(self) -> None:
        """Takes what all completions of the text begin with, or else the chosen row, into the
        field."""
        text, at = self._text, self.list.index
        others = [each for each in self._entries if isinstance(each, str) and each != text]
        common = _common(others)
        longer = at == 0 and common.startswith(text) and len(common) > len(text)
        self.field.value = common if longer else self._text_of(at)
        self.field.cursor_position = len(self.field.value)

    def _take(self, at: int) -> None:
        """Picks a row, once: a burst of keys and clicks may arrive before the screen is gone."""
        if self._entries and self.is_active:
            self.dismiss(self._entries[at])


async def pick(
    node: DOMNode, drawing: Drawing, picking: Picking, taken: Callable[[int | str], None]
) -> None:
    """Shows a picker over the screen, and calls `taken` with what was picked. Keys that arrive
    with the one that opened it are typed into its field."""

    def closed(picked: int | str | None) -> None:
        if picked is not None:
            taken(picked)

    await node.app.push_screen(PickerScreen(drawing, picking), closed)


def _common(texts: Sequence[str]) -> str:
    """What all of the texts begin with."""
    first, last = min(texts, default=""), max(texts, default="")
    same = (at for at, letter in enumerate(first) if letter != last[at])
    return first[: next(same, len(first))]


def _narrows(before: Sequence[str], after: Sequence[str]) -> bool:
    """Whether every name with the words `after` has the words `before`."""
    return len(after) >= len(before) and all(
        new.startswith(old) for old, new in zip(before, after, strict=False)
    )
