"""The terminal app: a shell around panels."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console
from textual.app import App
from textual.binding import BindingType
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from qtui.tui.ascii_only import AsciiOnly
from qtui.tui.clipboard import copy_text
from qtui.tui.config import Config, load_config, log_file
from qtui.tui.depth import Depth, detect_depth, resolve_depth
from qtui.tui.keymap import APP_BINDINGS, checked_keymap
from qtui.tui.messages import DeviceSeen, ModelOpened, SendValue, Severity
from qtui.tui.palette import QtuiCommands
from qtui.tui.panels import panel_entry
from qtui.tui.panels.base import Panel
from qtui.tui.screens import HelpScreen, KeyLine, OpenModelScreen, ShellScreen
from qtui.tui.theme import theme_variable_defaults, themes
from qtui.tui.widgets.drawing import Drawing
from qtui.tui.widgets.header import HeaderLine, TabBar
from qtui_core.errors import UsageError

if TYPE_CHECKING:
    from qtui.engine.client import EngineClient, EngineState

log = logging.getLogger("qtui.tui")

_RICH_SYSTEM = {Depth.TRUECOLOR: "truecolor", Depth.C256: "256", Depth.C16: "standard"}


class Failure(Exception):
    """An unforeseen error, told in one line where Textual would print its traceback."""

    def __rich__(self) -> str:
        return (
            f"qtui stopped: {type(self.__cause__).__name__}: {self.__cause__}\n"
            f"The details are in {log_file()}; --debug shows them here."
        )


class QtuiApp(App[None], inherit_bindings=False):
    """See what every bit costs.

    `model` is what the user typed: a hub id, a folder, a file, "demo". `color` is one of
    depth.COLOR_CHOICES. Raises UsageError for a configuration that names unknown things.
    """

    TITLE = "qtui"
    CSS_PATH = "app.tcss"
    COMMANDS: ClassVar[set[Any]] = {QtuiCommands}
    BINDINGS: ClassVar[list[BindingType]] = APP_BINDINGS
    COMMAND_PALETTE_BINDING = "ctrl+p"

    def __init__(
        self,
        model: str = "demo",
        *,
        config: Config | None = None,
        color: str = "auto",
        ascii: bool = False,
        start_panel: str | None = None,
        debug: bool = False,
    ) -> None:
        self.config = config or Config()
        depth = resolve_depth(color if color != "auto" else self.config.color)
        keymap = checked_keymap(self.config.keys)
        with _no_color(depth is Depth.NONE):
            super().__init__()
        self.console = _console(depth)
        self.drawing = Drawing(depth, ascii=ascii or self.config.ascii)
        self.model = model
        self.show_tracebacks = debug
        self._start_panel = start_panel or self.config.start_panel
        for theme in themes(depth):
            self.register_theme(theme)
        if self.config.theme not in self.available_themes:
            known = ", ".join(sorted(self.available_themes))
            raise UsageError(f"Unknown theme {self.config.theme!r}; known are {known}.")
        self.theme = self.config.theme
        self.set_keymap(dict(keymap))

    # The engine

    @cached_property
    def engine(self) -> EngineClient:
        """The child process that owns torch. It starts on its first request."""
        from qtui.engine.client import EngineClient

        return EngineClient(log=log_file().with_name("engine.log"), on_state=self._engine_state)

    def _engine_state(self, state: EngineState, detail: str) -> None:
        log.info("engine %s %s", state, detail)

    async def on_unmount(self) -> None:
        if "engine" in self.__dict__:
            await self.engine.close()

    # Screens and panels

    def get_default_screen(self) -> Screen[Any]:
        return ShellScreen(self._new_panel(self._start_panel), self.model)

    def _new_panel(self, panel_id: str) -> Panel:
        return panel_entry(panel_id).load()(id=_widget_id(panel_id))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme_variable_defaults(self.current_theme)

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        return [*filters, AsciiOnly()] if self.drawing.ascii else filters

    def offers_theme(self, name: str) -> bool:
        """Whether a theme keeps its colours at this depth; foreign ones only do at 24 bits."""
        if name.startswith("qtui"):
            return True
        theme = self.available_themes[name]
        return self.drawing.depth is Depth.TRUECOLOR and not theme.ansi

    @property
    def shell(self) -> ShellScreen:
        """The screen under any dialog."""
        screen = self.screen_stack[0]
        assert isinstance(screen, ShellScreen)
        return screen

    @property
    def panel(self) -> Panel | None:
        """The panel shown, None before the first one is."""
        switcher = self.shell.query_one("#panels", ContentSwitcher)
        shown = switcher.visible_content
        return shown if isinstance(shown, Panel) else None

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda _theme: self._restyle())

    async def action_show_panel(self, panel_id: str) -> None:
        """Shows a panel, building it the first time."""
        shell = self.shell
        switcher = shell.query_one("#panels", ContentSwitcher)
        shell.query_one(TabBar).active = panel_id
        shell.unzoom()
        if not switcher.query_children(f"#{_widget_id(panel_id)}"):
            await switcher.add_content(self._new_panel(panel_id))
            shell.query_one(f"#{_widget_id(panel_id)}", Panel).open_model(self.model)
        switcher.current = _widget_id(panel_id)
        shell.set_focus(None)
        if self.panel is not None:
            self.panel.activate()
        shell.refresh_bindings()

    def _restyle(self) -> None:
        for panel in self.shell.query(Panel):
            panel.drawing_changed()

    def set_device(self, text: str) -> None:
        """The right end of the header line: "NVIDIA L40S  HBM 3.1/44.5 GiB", or "no GPU"."""
        self.shell.query_one(HeaderLine).device = text

    def open_model(self, model: str) -> None:
        """Makes `model` the one that every panel works on."""
        self.model = model
        self.shell.query_one(HeaderLine).model = model
        for panel in self.shell.query(Panel):
            panel.open_model(model)

    # Messages

    def on_tab_bar_chosen(self, message: TabBar.Chosen) -> None:
        self.run_worker(self.action_show_panel(message.panel_id), group="panel", exclusive=True)

    async def on_send_value(self, message: SendValue) -> None:
        from qtui.tui.panels.formats import FormatsPanel

        await self.action_show_panel(FormatsPanel.PANEL_ID)
        self.shell.query_one(FormatsPanel).show_value(message.value, message.origin)

    def on_model_opened(self, message: ModelOpened) -> None:
        if message.model == self.model:
            self.shell.query_one(HeaderLine).model = message.title

    def on_device_seen(self, message: DeviceSeen) -> None:
        self.set_device(message.text)

    def tell(self, text: str, severity: Severity = "information") -> None:
        """Shows a sentence for a few seconds and writes it to the log."""
        log.log(logging.ERROR if severity == "error" else logging.INFO, text)
        self.notify(text, severity=severity, markup=False, timeout=8)

    # The shell's own keys

    def action_help(self) -> None:
        panel = self.panel
        if panel is not None and not isinstance(self.screen, HelpScreen):
            self.push_screen(
                HelpScreen(f"{panel.NUMBER} {panel.TITLE}", panel.HELP, self._key_lines())
            )

    def _key_lines(self) -> list[KeyLine]:
        """The keys that work now, each action once, the panel's own first."""
        lines: dict[str, KeyLine] = {}
        for _, binding, enabled, tooltip in self.shell.active_bindings.values():
            if enabled and binding.id:
                key = self.get_key_display(binding.with_key(binding.key))
                line = lines.get(binding.id)
                keys = f"{line.keys} {key}" if line else key
                lines[binding.id] = KeyLine(keys, tooltip or binding.description, binding.id)
        return list(lines.values())

    async def action_copy(self) -> None:
        panel = self.panel
        text = panel.copy_text() if panel is not None else None
        if not text:
            self.tell("There is nothing to copy here.", "warning")
            return
        try:
            copied = await copy_text(
                text, send_osc52=None if self.is_web else self.copy_to_clipboard
            )
        except OSError as error:
            self.tell(f"Nothing was copied: {error}.", "error")
            return
        self.tell(f"Copied to {copied.where}.")

    def action_export(self) -> None:
        import json

        panel = self.panel
        if panel is None:
            return
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        stem = Path(self.config.export_folder).expanduser() / f"qtui-{panel.PANEL_ID}-{stamp}"
        data = panel.export_data()
        try:
            names = [stem.with_suffix(".svg")]
            names[0].write_text(self.export_screenshot(title="qtui"), encoding="utf-8")
            if data is not None:
                document = {"schema_version": 1, "panel": panel.PANEL_ID, **data}
                names.append(stem.with_suffix(".json"))
                text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
                names[1].write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            self.tell(f"Nothing was exported: {error}.", "error")
            return
        self.tell("Wrote " + " and ".join(str(name) for name in names) + ".")

    def action_maximise(self) -> None:
        shell = self.shell
        if shell.zoomed:
            shell.unzoom()
            return
        target = self.panel.maximise_target() if self.panel is not None else None
        if target is None:
            self.tell("This panel has no picture to zoom.", "warning")
        else:
            shell.zoom(target)

    def action_open_model(self) -> None:
        def opened(model: str | None) -> None:
            if model:
                self.open_model(model)

        self.push_screen(OpenModelScreen(), opened)

    def _handle_exception(self, error: Exception) -> None:
        log.error("unhandled", exc_info=error)
        if self.show_tracebacks or self.is_headless:
            super()._handle_exception(error)
            return
        failure = Failure()
        failure.__cause__ = error
        super()._handle_exception(failure)


def _widget_id(panel_id: str) -> str:
    return f"panel-{panel_id}"


@contextmanager
def _no_color(wanted: bool) -> Iterator[None]:
    """NO_COLOR as Textual reads it (once, when an app is made), and as it was afterwards."""
    before = os.environ.pop("NO_COLOR", None)
    if wanted:
        os.environ["NO_COLOR"] = "1"
    try:
        yield
    finally:
        os.environ.pop("NO_COLOR", None)
        if before is not None:
            os.environ["NO_COLOR"] = before


def _console(depth: Depth) -> Console:
    """The console whose colour system Textual writes escapes for. It prints nothing itself."""
    if depth is Depth.NONE:
        # Greys remain, at what the terminal takes.
        environment = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
        depth = detect_depth(environment)
    return Console(
        color_system=_RICH_SYSTEM.get(depth, "standard"),  # type: ignore[arg-type]
        file=io.StringIO(),
        force_terminal=True,
        highlight=False,
        emoji=False,
        legacy_windows=False,
        safe_box=False,
        _environ={},
    )


def start_log(debug: bool) -> str | None:
    """Sends the log to its file. A sentence when that file cannot be written, else None."""
    path = log_file()
    root = logging.getLogger("qtui")
    root.propagate = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(path, maxBytes=1_000_000, backupCount=1, encoding="utf-8")
    except OSError as error:
        root.addHandler(logging.NullHandler())
        return f"There will be no log: {error}."
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    return None


def run(
    model: str = "demo", *, color: str = "auto", ascii: bool = False, debug: bool = False
) -> int:
    """Runs the app in this terminal and returns its exit code.

    There must be a terminal: the command line sees to that. Raises UsageError for a wrong
    configuration.
    """
    app = QtuiApp(model, config=load_config(), color=color, ascii=ascii, debug=debug)
    no_log = start_log(debug)
    if no_log:
        app.call_later(app.tell, no_log, "warning")
    app.run()
    return app.return_code or 0
