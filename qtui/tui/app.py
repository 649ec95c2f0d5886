"""The terminal app: a shell around panels."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.console import RenderableType
from textual import events
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import ContentSwitcher
from textual.widgets._toast import ToastHolder
from textual.worker import Worker

from qtui.screen.depth import NOTHING_SAID, Depth, TerminalSays, depth_of
from qtui.screen.messages import DeviceSeen, ModelFailed, ModelOpened, SendValue
from qtui.screen.panel.base import Panel
from qtui.screen.panel.host import Severity
from qtui.screen.plan.history import Choice, History
from qtui.screen.widgets.drawing import Drawing
from qtui.tui.ascii_only import key_in_ascii, line_filters
from qtui.tui.clipboard import command_copied, copied
from qtui.tui.config import Settings
from qtui.tui.engines import looked, new_engine, new_estimator, try_model
from qtui.tui.first import screen as first_screen
from qtui.tui.header import HeaderLine, TabBar
from qtui.tui.keymap import APP_BINDINGS, checked_keymap, key_name
from qtui.tui.leaving import MISSING, LeaveScreen, leave
from qtui.tui.panels import panel_entry, widget_id
from qtui.tui.screens import HelpScreen, ShellScreen, working_keys
from qtui.tui.state import LastSession
from qtui.tui.terminal import Failure, no_color, terminal_console
from qtui.tui.theme import AUTO, ThemeChoice, theme_variable_defaults, themes
from qtui_core.errors import QtuiError
from qtui_core.models.quoting import printable, printable_lines

if TYPE_CHECKING:
    from qtui.engine.client import EngineClient
    from qtui.screen.tensors.subject import Subject

log = logging.getLogger("qtui.tui")

#: From the first picture until the engine uses a processor: what of it was drawn late, is by then.
LOOK_AHEAD_SECONDS = 0.04
#: The panel to which values are sent.
FORMATS = "formats"
NOT_OPENED = "could not be opened"
#: Between two looks which panel is shown, which is kept.
LOOK_SECONDS = 5.0


class QtuiApp(App[None], inherit_bindings=False):
    """See what every bit costs.

    `model` is what the user typed: a hub id, a folder, a file, "demo". `color` is one of
    depth.COLOR_CHOICES. `look_ahead` starts the engine once the first screen is drawn, before
    anything needs it. `recording` is the recording of a run to play in the Train panel. `says` is
    what the terminal answered before. Raises UsageError for a configuration with unknown names.
    """

    TITLE = "qtui"
    CSS_PATH = "app.tcss"
    BINDINGS: ClassVar[list[BindingType]] = APP_BINDINGS
    ENABLE_COMMAND_PALETTE = False  # Textual's: here the picker lists the commands

    def __init__(
        self,
        model: str = "demo",
        *,
        config: Settings | None = None,
        color: str = "auto",
        ascii: bool = False,
        start_panel: str | None = None,
        debug: bool = False,
        look_ahead: bool = True,
        recording: Path | str | None = None,
        session: LastSession | None = None,
        says: TerminalSays = NOTHING_SAID,
    ) -> None:
        self.config = config or Settings()
        self.session = session or LastSession()
        depth, _ = depth_of(color if color != "auto" else self.config.color, os.environ, says)
        keymap = checked_keymap(self.config.keys)
        with no_color(depth is Depth.NONE):
            super().__init__()
        self.console = terminal_console(depth)
        self.drawing = Drawing(depth, ascii=ascii or self.config.ascii)
        self.model = model
        self.model_opened = False
        self.model_failure = ""
        """Why `model` could not be opened; "" if it was."""
        self.recording = Path(recording) if recording is not None else None
        """The recording that the Train panel will open; None if there is none."""
        self.history: History[Choice] = History()
        self.chosen: Choice | None = None
        """The plan and the GPU that the panels share; None until one is chosen."""
        self.plan_of = model
        """The model that the plan was made for."""
        self.looked_at: tuple[str, Subject] | None = None
        """The model and the subject that the Quantize panel shows; None if it shows none."""
        self.ended_by = 0  # the signal that ended the app; 0 without one
        self.farewell = ""
        """The sentence that is printed after the app quits: where the last run is recorded."""
        self.show_tracebacks = debug
        self.looks_ahead = look_ahead
        self.drawn = False  # whether anything is
        self._start_panel = start_panel or self.session.panel(self.config, self.recording)
        for theme in themes(depth):
            self.register_theme(theme)
        self.theme_choice = ThemeChoice(self, depth, says)
        self.theme_choice.choose(self.config.theme)
        if (last := self.session.theme(self.config)) == AUTO or self.theme_choice.offers(last):
            self.theme_choice.choose(last)
        self._parsed_with = self.get_css_variables()
        self.stylesheet.set_variables(self._parsed_with)
        self.set_keymap(dict(keymap))

    # The engine

    @cached_property
    def engine(self) -> EngineClient:
        """The child process that has torch. It starts at its first request."""
        return new_engine()

    @cached_property
    def estimator(self) -> EngineClient:
        """The child processes that estimate memory, without torch. They start likewise."""
        return new_estimator()

    async def on_unmount(self) -> None:
        used = {"engine", "estimator"} & self.__dict__.keys()
        await asyncio.gather(*(getattr(self, name).close() for name in used))

    # From session to session

    def exit(self, *result: Any, **options: Any) -> None:
        self._keep_place()
        super().exit(*result, **options)

    def _keep_place(self) -> None:
        """Keeps which panel is shown, if it changed."""
        if self.drawn and self.panel is not None:
            self.session.keep(self.panel.PANEL_ID)

    # Screens and panels

    async def on_event(self, event: events.Event) -> None:
        """Leaves out a click on what is gone since the last picture, at which Textual 8 ends."""
        if isinstance(event, events.MouseDown) and self.screen_stack:
            widget, _ = self.screen.get_widget_and_offset_at(event.x, event.y)
            if widget is not None and not widget.is_attached:
                return
        await super().on_event(event)

    def pop_screen(self) -> AwaitComplete:
        """Closes a dialog, once: a burst of keys may ask it twice before it is gone."""
        return super().pop_screen() if self.screen is not self.shell else AwaitComplete.nothing()

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":
            return found
        from qtui.tui.wire.driver import TerminalDriver

        return first_screen.starting(TerminalDriver)

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        super()._display(screen, renderable)
        if renderable is not None and not self.drawn:
            self.drawn = True
            self.set_timer(LOOK_AHEAD_SECONDS, self._start_looking)

    def get_default_screen(self) -> Screen[Any]:
        panel = self._new_panel(self._start_panel)
        return ShellScreen(panel, self.model, self.size)

    def _new_panel(self, panel_id: str) -> Panel:
        return panel_entry(panel_id).load()(id=widget_id(panel_id))

    def refresh_css(self, animate: bool = True) -> None:
        """Not before the first picture, where Textual asks for the stylesheet to be parsed again
        with the variables that it was just parsed with: that took a sixth of the start."""
        if self.drawn or self._parsed_with != self.get_css_variables():
            super().refresh_css(animate)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme_variable_defaults(self.current_theme)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return line_filters(self.drawing, super().get_line_filters())

    def get_key_display(self, binding: Binding) -> str:
        display = key_name(super().get_key_display(binding))
        return key_in_ascii(display) if self.drawing.ascii else display

    @property
    def shell(self) -> ShellScreen:
        """The screen below any dialog."""
        return cast("ShellScreen", self.screen_stack[0])

    @property
    def panel(self) -> Panel | None:
        """The current panel; None before the first one is shown."""
        return next((panel for panel in self.shell.panels if panel.display), None)

    def end_by(self, signum: int) -> None:
        """Ends the app in order, after a signal: an exception ends the loop, which ends a run."""
        from qtui.ending import begin_way_out

        begin_way_out(signum)
        self.ended_by = signum
        self._leave_or_stay(True)

    def on_mount(self) -> None:
        if not self.is_headless:
            from qtui.ending import ending_signals

            loop = asyncio.get_running_loop()
            for signum in ending_signals():
                loop.add_signal_handler(signum, lambda: None)  # removed with the loop
                # It loses a signal while 278 calls of threads wait, as when much is typed.
                signal.signal(signum, lambda *to: loop.call_soon_threadsafe(self.end_by, to[0]))
        self.theme_changed_signal.subscribe(self, self._restyle)
        if self.session.remark:
            self.tell(self.session.remark)
        self.set_interval(LOOK_SECONDS, self._keep_place)

    async def action_show_panel(self, panel_id: str) -> None:
        """Shows a panel; makes it the first time."""
        shell = self.shell
        switcher = shell.query_one("#panels", ContentSwitcher)
        shell.query_one(TabBar).active = panel_id
        shell.unzoom()
        if not switcher.query_children(f"#{widget_id(panel_id)}"):
            panel = self._new_panel(panel_id)
            await switcher.add_content(panel)
            panel.open_model(self.model)
        switcher.current = widget_id(panel_id)
        shell.set_focus(None)
        if self.panel is not None:
            self.panel.activate()
        shell.refresh_bindings()

    def _restyle(self, theme: Theme) -> None:
        self.session.themed(AUTO if self.theme_choice.follows else theme.name, self.config)
        for panel in self.shell.panels:
            panel.drawing_changed()

    def set_device(self, text: str) -> None:
        """The right end of the header line: "NVIDIA L40S  HBM 3.1/44.5 GiB", or "no GPU"."""
        self.shell.query_one(HeaderLine).device = text

    # The model

    def _start_looking(self) -> None:
        """Reads the model's header and names the device, unless a panel will."""
        if self.looks_ahead and "engine" not in self.__dict__:
            _: Worker[None] = self.run_worker(self._look, group="model", exclusive=True)

    async def _look(self) -> None:
        header = self.shell.query_one(HeaderLine)
        if found := await looked(self.engine, self.model, header, self.tell):
            self.post_message(found)

    def open_model(self, model: str) -> None:
        """Opens `model` for all panels, if it can be opened."""
        _: Worker[None] = self.run_worker(partial(self._open, model), group="model", exclusive=True)

    async def _open(self, model: str) -> None:
        header = self.shell.query_one(HeaderLine)
        try:
            headline = await try_model(model, partial(header.show_opening, model))
        except QtuiError as error:
            header.note = NOT_OPENED if self.model_failure else ""
            self.tell(f"{error}\nWhat was open stays open: {printable(self.model)}.", "error")
            return
        self.model = model
        self._is_open(headline)
        for panel in self.shell.panels:
            panel.open_model(model)

    def _is_open(self, headline: str) -> None:
        self.model_opened, self.model_failure = True, ""
        self.session.opened(self.model)
        header = self.shell.query_one(HeaderLine)
        header.model, header.note = headline, ""

    # Messages

    def on_tab_bar_tab_chosen(self, message: TabBar.TabChosen) -> None:
        self.run_worker(self.action_show_panel(message.panel_id), group="panel", exclusive=True)

    async def on_send_value(self, message: SendValue) -> None:
        await self.action_show_panel(FORMATS)
        panel = self.shell.query_one(f"#{widget_id(FORMATS)}", Panel)
        panel.show_value(message.value, message.origin)

    def on_model_opened(self, message: ModelOpened) -> None:
        if message.model == self.model:
            self._is_open(message.title)

    def on_model_failed(self, message: ModelFailed) -> None:
        if message.model == self.model:
            self.model_failure = message.sentence
            self.shell.query_one(HeaderLine).note = NOT_OPENED
            if self.session.went_on:  # nobody named it today
                self.session.went_on = False
                self.open_model("demo")

    def on_device_seen(self, message: DeviceSeen) -> None:
        self.set_device(message.text)

    def tell(self, text: str, severity: Severity = "information") -> None:
        """Shows a sentence for a few seconds and writes it to the log."""
        log.log(logging.ERROR if severity == "error" else logging.INFO, text)
        self.notify(text, severity=severity, markup=False, timeout=8)

    def on_notify(self) -> None:
        self.shell.make_room_for_toast()

    # The shell's own keys

    def action_help(self) -> None:
        panel = self.panel
        if panel is not None and not isinstance(self.screen, HelpScreen):
            title = f"{panel.NUMBER} {panel.TITLE}"
            self.push_screen(HelpScreen(title, panel.sentence, panel.HELP, working_keys(self)))

    async def action_copy(self) -> None:
        text = self.panel.copy_text() if self.panel is not None else None
        self.tell(*await copied(text, None if self.is_web else self.copy_to_clipboard))

    async def action_copy_command(self) -> None:
        words = self.panel.command_line() if self.panel is not None else ""
        self.tell(*await command_copied(words, None if self.is_web else self.copy_to_clipboard))

    def copy_to_clipboard(self, text: str) -> None:
        """Copies a text; Textual calls this for a selection with the mouse, too."""
        super().copy_to_clipboard(printable_lines(text))

    async def action_export(self) -> None:
        """Exports the panel, once no notification lies over its picture."""
        self.clear_notifications()
        await self.screen.query(ToastHolder).remove()
        self.call_after_refresh(self._export)

    def _export(self) -> None:
        from qtui.tui.exporting import exported

        if self.panel is not None:
            self.tell(*exported(self, self.panel))

    def action_maximise(self) -> None:
        target = self.panel.maximise_target() if self.panel is not None else None
        if target is None:
            self.tell("This panel has no picture to zoom.", "warning")
        else:
            self.shell.zoom(target)

    def action_redraw(self) -> None:
        """Sends the whole screen again, as something else may have written to the terminal."""
        if self._driver is not None and hasattr(self._driver, "redraw"):
            self._driver.redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "pick":
            return not self.screen.is_modal  # a picker has keys of its own
        return action != "maximise" or self.shell.zoomed is None  # else the screen's key unzooms

    def unfinished(self) -> str:
        """What leaving would end, as a sentence; empty if nothing is running."""
        return next(filter(None, (panel.unfinished() for panel in self.shell.panels)), "")

    async def action_quit(self) -> None:
        """Leaves, but asks first if something is running; a second request to quit means yes."""
        if isinstance(self.screen, LeaveScreen):
            self.screen.dismiss(True)
        elif self.unfinished():
            self.push_screen(LeaveScreen(self.unfinished), self._leave_or_stay)
        else:
            self.exit()

    def _leave_or_stay(self, leaves: bool | None) -> None:
        if leaves:
            _: Worker[None] = self.run_worker(partial(leave, self), group="leave")

    async def action_pick(self, what: str) -> None:
        from qtui.tui.picking import pick_a

        await pick_a(what, self)

    def _handle_exception(self, error: Exception) -> None:
        if self._exit and isinstance(getattr(error, "error", error), MISSING):  # of a worker, too
            log.info("missing while the app ends", exc_info=error)
            return
        log.error("unhandled", exc_info=error)
        if not self.is_headless:
            first_screen.leave()
            error = Failure(error, self.show_tracebacks)
        super()._handle_exception(error)
