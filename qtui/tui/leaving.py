"""Leaves the app: asks first if something is running, and ends that before the app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult, ScreenStackError
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.dom import NoScreen
from textual.screen import ModalScreen
from textual.widget import MountError
from textual.widgets import Static

if TYPE_CHECKING:
    from qtui.tui.app import QtuiApp

#: Seconds between two looks whether anything is drawn, and how many there are.
LOOK_SECONDS, LOOKS = 0.02, 250
#: What a handler raises if parts of its screen are missing: while the app ends, screens lose their
#: parts, and Textual still hands them messages.
MISSING = (MountError, NoMatches, NoScreen, ScreenStackError)


async def leave(app: QtuiApp) -> None:
    """Ends what is running, and then the app."""
    # While it exits Textual makes no widgets, and what is being mounted would miss its own.
    for _ in range(LOOKS):
        if app.drawn or app.is_headless:
            break
        await asyncio.sleep(LOOK_SECONDS)
    for panel in app.shell.panels:
        await panel.finish()
    app.exit()


class LeaveScreen(ModalScreen[bool]):
    """Asks whether to leave while something is running; `unfinished` says what is running now."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "dismiss(True)", "Leave", id="leave.leave", tooltip="End the run and leave"),
        Binding("escape", "dismiss(False)", "Stay", id="leave.stay", tooltip="Let the run go on"),
    ]

    def __init__(self, unfinished: Callable[[], str]) -> None:
        super().__init__()
        self._unfinished = unfinished

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -small") as dialog:
            dialog.border_title = "Leave?"
            dialog.border_subtitle = "q ends the run and leaves, Esc lets it go on"
            yield Static(self._unfinished(), classes="-first", markup=False)

    def on_mount(self) -> None:
        self.set_interval(0.5, self._tell)

    def _tell(self) -> None:
        text = self._unfinished()
        self.query_one(Static).update(text or "Nothing is running any more: q leaves, Esc stays.")
