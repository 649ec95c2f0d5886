"""What concerns the terminal besides the screen: its colours, an error that ends the app, and the
log, which must never reach it."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from logging.handlers import RotatingFileHandler
from traceback import format_exception
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter

from qtui.screen.depth import Depth
from qtui.tui.config import log_file
from qtui_core.models.quoting import printable_lines

_RICH_SYSTEM = {Depth.TRUECOLOR: "truecolor", Depth.C256: "256"}


@contextmanager
def no_color(wanted: bool) -> Iterator[None]:
    """Sets NO_COLOR for Textual (which reads it once, when an app is made), and restores it
    afterwards."""
    before = os.environ.pop("NO_COLOR", None)
    if wanted:
        os.environ["NO_COLOR"] = "1"
    try:
        yield
    finally:
        os.environ.pop("NO_COLOR", None)
        if before is not None:
            os.environ["NO_COLOR"] = before


class Printable(LineFilter):
    """The last filter before the terminal, through which every line of every widget passes: no
    segment sends a character that is not printable. Names are made printable where they are shown;
    everything else from a file, a server or a child is made so here. A character keeps its number
    of cells: an invisible one is removed, others become question marks."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [
            Segment("".join(c if c.isprintable() else "?" * cell_len(c) for c in text), style, more)
            for text, style, more in segments
        ]


PRINTABLE: Final = Printable()


class Colourless(LineFilter):
    """Bold, dim, underlined and reversed, but no colour, not even grey (no-color.org).

    A text with its own background, such as the current line of a list, is reversed instead.
    Textual's styles for such a line have no reverse.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, None if style is None else _without_color(style), control)
            for text, style, control in segments
        ]


@lru_cache(maxsize=4096)
def _without_color(style: Style) -> Style:
    own_ground = style.bgcolor is not None and not style.bgcolor.is_default
    return style.without_color + Style(reverse=True) if own_ground else style.without_color


def terminal_console(depth: Depth) -> Console:
    """The console that determines for which colours Textual writes escapes. It prints nothing
    itself."""
    return Console(
        # Without a colour system there would be no bold either.
        color_system=_RICH_SYSTEM.get(depth, "standard"),  # type: ignore[arg-type]
        file=io.StringIO(),
        force_terminal=True,
        highlight=False,
        emoji=False,
        legacy_windows=False,
        safe_box=False,
        _environ={},
    )


class _Lines(logging.Formatter):
    """Makes lines printable, as a log is also read in a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


class _LogFile(RotatingFileHandler):
    """Leaves out what the disk does not take: logging would print a traceback in the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def start_log(debug: bool) -> str | None:
    """Sends the log to its file. Returns a sentence if that file cannot be written, else None."""
    path = log_file()
    root = logging.getLogger("qtui")
    root.propagate = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, maxBytes=1_000_000, backupCount=1, encoding="utf-8")
    except OSError as error:
        root.addHandler(logging.NullHandler())
        return f"There will be no log: {error}."
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    return None


class Failure(Exception):
    """An unexpected error, told in our own words where Textual would print its traceback."""

    def __init__(self, error: Exception, whole: bool) -> None:
        super().__init__()
        self.text = (
            "".join(format_exception(error))
            if whole
            else f"qtui stopped: {type(error).__name__}: {one_line(error)}\n"
            f"The details are in {log_file()}; --debug shows them here."
        )

    def __rich__(self) -> Text:
        return Text(printable_lines(self.text))


def one_line(error: Exception) -> str:
    """The message of an error, or its class if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
