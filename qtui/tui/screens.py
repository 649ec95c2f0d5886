"""The app's screens: the shell around a panel, and the help over it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from textwrap import wrap
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Static
from textual.widgets._toast import ToastHolder, ToastRack
from textual.worker import Worker

from qtui.screen.panel.base import Panel
from qtui.screen.widgets.sentence import Sentence, lines_kept
from qtui.tui.config import config_file
from qtui.tui.header import HeaderLine, TabBar
from qtui.tui.key_footer import KeyFooter
from qtui.tui.keymap import SCREEN_BINDINGS
from qtui_core.dataclass import dataclass

SMALLEST = (60, 16)
#: Lines of a screen for each toast.
LINES_OF_A_TOAST = 18
#: What zooming changes.
ZOOMED = ".-zoomed, .-aside"
#: Seconds for which nothing is sent while a panel is laid out again and its pictures are asked for;
#: of each look whether they came, and how many looks in a row find nothing more to wait for.
LONGEST_HOLD, ROUND_SECONDS, CALM_ROUNDS = 0.4, 1 / 60, 3
#: The least cells for the description of a key in the help.
SMALLEST_MEANING = 16

_lay_out = Screen._screen_resized


def _lay_out_newest(screen: Screen[Any], _size: Size) -> None:
    """Textual 8 lays out for the size that is told, and tells the screen: of two sizes told in a
    burst each brings the other back, for ever."""
    _lay_out(screen, screen.app.size)


Screen._screen_resized = _lay_out_newest  # type: ignore[assignment,method-assign]


class ShellScreen(Screen[None], inherit_bindings=False):
    """Header, tabs, the panel, the keys. Below 60x16 it shows only a message."""

    BINDINGS: ClassVar[list[BindingType]] = SCREEN_BINDINGS
    ESCAPE_TO_MINIMIZE = False
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 (Screen declares it an instance variable)
        (0, "-too-narrow"),
        (SMALLEST[0], "-narrow"),
        (116, "-medium"),
        (160, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-too-short"),
        (SMALLEST[1], "-low"),
        (21, "-short"),
        (32, "-tall"),
        (44, "-very-tall"),
    ]
    AUTO_FOCUS = ""

    def __init__(self, first_panel: Panel, model: str, size: Size) -> None:
        super().__init__()
        # The classes that the first Resize would set: otherwise Textual styles everything twice.
        for least in (
            max(each for each in self.HORIZONTAL_BREAKPOINTS if each[0] <= size.width),
            max(each for each in self.VERTICAL_BREAKPOINTS if each[0] <= size.height),
        ):
            self.add_class(least[1])
        self._first_panel = first_panel
        self._switcher = ContentSwitcher(id="panels", initial=first_panel.id)
        self._model = model
        self.zoomed: Widget | None = None
        self._lost_focus: Widget | None = None

    def compose(self) -> ComposeResult:
        yield HeaderLine(id="header")
        yield TabBar(id="tabs")
        with self._switcher:
            yield self._first_panel
        yield KeyFooter(id="keys")
        width, height = SMALLEST
        yield Static(
            f"qtui needs {width}x{height} cells.\nEnlarge the terminal, or q to quit.",
            id="too-small",
        )

    @property
    def panels(self) -> list[Panel]:
        """The panels that were made. One that is being added is none yet: it has no views. None are
        left while the app ends."""
        found = self._switcher.children
        return [each for each in found if isinstance(each, Panel) and each.is_mounted]

    def on_mount(self) -> None:
        # Before the first frame, so that the first key finds the right focus.
        self.query_one(HeaderLine).model = self._model
        self.query_one(TabBar).active = self._first_panel.PANEL_ID
        self._first_panel.open_model(self._model)
        self._first_panel.activate()
        self.watch(self.query_one(ContentSwitcher), "current", self.on_about_changed, init=False)
        self.screen_layout_refresh_signal.subscribe(self, lambda _screen: self._keep_focus())

    def on_resize(self, event: Resize) -> None:
        """Keeps the toasts above the sentence and the keys, and below the tabs."""
        self._send_once()
        below = lines_kept(*event.size) + 1
        for rack in self.query(ToastRack):
            rack.styles.margin = (0, 0, below, 0)
            rack.styles.max_height = max(1, event.size.height - below - 2)

    def make_room_for_toast(self) -> None:
        """Removes the toasts if one more, of 12 lines at most, may not fit above the sentence: the
        older would hide the newer."""
        if len(self.app._notifications) >= max(1, self.size.height // LINES_OF_A_TOAST):
            self.app.clear_notifications()
            self.query(ToastHolder).remove()  # without it an empty one stays, and takes its place

    def on_about_changed(self) -> None:
        """Names in the header what the current panel shows in place of the app's model."""
        panel = self.query_one("#panels", ContentSwitcher).visible_content
        self.query_one(HeaderLine).about = panel.about if isinstance(panel, Panel) else ""

    def _keep_focus(self) -> None:
        """A resize may hide the focused part. Textual then removes the focus, and with it the
        panel's keys: the focus moves to the panel's first part, or, if there had been no room for
        the panel, back to the same part."""
        focused, panels = self.focused, self.query_one("#panels", ContentSwitcher)
        if not self.app.app_focus or (focused is not None and _displayed(focused)):
            return
        if not panels.display:
            self._lost_focus = focused or self._lost_focus
            return
        lost, self._lost_focus = self._lost_focus, None
        if lost is not None and _displayed(lost):
            self.set_focus(lost)
        elif isinstance(panels.visible_content, Panel) and panels.visible_content.is_mounted:
            panels.visible_content.activate()

    def zoom(self, target: Widget) -> None:
        """Gives a part of a panel all the room except the sentence and the keys. Textual's own
        maximised view leaves no room for these."""
        self.unzoom()
        self._send_once()
        self.zoomed = target
        self.add_class("-zooming", update=False)
        node: Widget = target
        while not isinstance(node, Panel):
            node.add_class("-zoomed", update=False)
            parent = node.parent
            assert isinstance(parent, Widget)
            for sibling in parent.children:
                if sibling is not node and not isinstance(sibling, Sentence):
                    sibling.add_class("-aside", update=False)
            node = parent
        self._restyle(self.query(ZOOMED))
        parts = (target, *target.query("*"))
        self.set_focus(next((part for part in parts if part.can_focus and part.display), None))
        self.refresh_bindings()

    def unzoom(self) -> None:
        """Shows everything again."""
        if self.zoomed is None:
            return
        self._send_once()
        self.zoomed = None
        self.remove_class("-zooming", update=False)
        changed = list(self.query(ZOOMED))
        for node in changed:
            node.remove_class("-zoomed", "-aside", update=False)
        self._restyle(changed)
        self.refresh_bindings()

    def _restyle(self, changed: Iterable[Widget]) -> None:
        """Styles these anew and the parts of the shell. What is in them looks as before; Textual
        would style all of it again for each class, which took a third of a second."""
        self.app.stylesheet.update_nodes((*self.query_children("*"), *changed))

    def _send_once(self) -> None:
        """The terminal gets what is drawn now with the pictures that the panel asks for in their
        new sizes, rather than the old ones stretched first."""
        driver: Any = self.app._driver
        if hasattr(driver, "hold"):
            driver.hold(LONGEST_HOLD)
            _: Worker[None] = self.run_worker(
                partial(self._go_on, driver), group="hold", exclusive=True
            )

    async def _go_on(self, driver: Any) -> None:
        rounds = 0
        while rounds < CALM_ROUNDS:
            await asyncio.sleep(ROUND_SECONDS)
            panel = self.query_one("#panels", ContentSwitcher).visible_content
            told = any(node.message_queue_size for node in self.walk_children(with_self=True))
            waits = told or (isinstance(panel, Panel) and panel.busy)
            rounds = 0 if waits else rounds + 1
        driver.go_on()

    def action_unzoom(self) -> None:
        self.unzoom()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.zoomed is not None if action == "unzoom" else True


def _displayed(widget: Widget) -> bool:
    """Whether neither the widget nor any of its ancestors is hidden or removed."""
    return widget.is_attached and all(node.display for node in widget.ancestors_with_self)


@dataclass(frozen=True)
class KeyLine:
    """One action in the help: its keys, what it does, and the id that rebinds it."""

    keys: str
    meaning: str
    id: str


def working_keys(app: App[None]) -> list[KeyLine]:
    """The keys that work on the shell now, each action once, the panel's own first."""
    lines: dict[str, KeyLine] = {}
    for _, binding, enabled, tooltip in app.screen_stack[0].active_bindings.values():
        if enabled and binding.id:
            key = app.get_key_display(binding.with_key(binding.key))
            line = lines.get(binding.id)
            keys = f"{line.keys} {key}" if line else key
            lines[binding.id] = KeyLine(keys, tooltip or binding.description, binding.id)
    return list(lines.values())


class KeyTable(Static):
    """A line for every action. Its id is never cut, as a configuration needs it; the description is
    wrapped if both do not fit."""

    def __init__(self, lines: Sequence[KeyLine]) -> None:
        super().__init__(id="help-keys")
        self._lines = lines

    def on_resize(self, event: Resize) -> None:
        self.update(self._table(event.size.width))

    def _table(self, width: int) -> Content:
        keys = max((len(line.keys) for line in self._lines), default=0)
        ids = max((len(line.id) for line in self._lines), default=0)
        widest = max((len(line.meaning) for line in self._lines), default=0)
        room = max(SMALLEST_MEANING, min(widest, width - keys - ids - 4))
        parts: list[Content | tuple[str, str] | str] = []
        for line in self._lines:
            first, *more = wrap(line.meaning, room) or [""]
            parts.append((f"{line.keys:<{keys}}  ", "bold $primary"))
            parts.append(f"{first:<{room}}  ")
            parts.append((f"{line.id}\n", "$quiet"))
            parts += [f"{'':{keys}}  {rest}\n" for rest in more]
        return Content.assemble(*parts)


class HelpScreen(ModalScreen[None]):
    """What a panel is for and the keys that work in it now."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape,question_mark,f1,q,enter",
            "dismiss",
            "Close",
            id="help.close",  # no priority: the ? that opened it may be followed by one at once
            tooltip="Close the help",
        ),
        Binding("j", "scroll_down", "Down", show=False, id="help.down", tooltip="Scroll down"),
        Binding("k", "scroll_up", "Up", show=False, id="help.up", tooltip="Scroll up"),
        Binding("g", "scroll_home", "First", show=False, id="help.first", tooltip="To the top"),
        Binding("G", "scroll_end", "Last", show=False, id="help.last", tooltip="To the end"),
    ]

    def __init__(self, title: str, sentence: str, text: str, keys: Sequence[KeyLine]) -> None:
        super().__init__()
        self._title = title
        self._sentence = sentence
        self._text = text
        self._keys = keys

    def compose(self) -> ComposeResult:
        # A Markdown parser takes 20 ms of start-up, which a session without help need not pay.
        from textual.widgets import Markdown

        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = self._title
            dialog.border_subtitle = "Esc closes"
            if self._sentence:  # a small screen may have cut it
                yield Static(self._sentence, classes="-first", markup=False)
            yield Markdown(self._text, open_links=False)
            yield KeyTable(self._keys)
            yield Static(
                f"Other keys: {config_file()} gives them by id, for example\n"
                '[keys]\n"formats.next" = "n"',
                classes="-note",
                markup=False,
            )

    def action_scroll_down(self) -> None:
        self.query_one(VerticalScroll).scroll_down()

    def action_scroll_up(self) -> None:
        self.query_one(VerticalScroll).scroll_up()

    def action_scroll_home(self) -> None:
        self.query_one(VerticalScroll).scroll_home()

    def action_scroll_end(self) -> None:
        self.query_one(VerticalScroll).scroll_end()
