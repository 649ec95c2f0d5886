"""The terminal from the key that starts the app until Textual draws: the other screen with its
first lines, and keys that wait unseen until somebody reads them."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from time import sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.drivers.linux_driver import LinuxDriver
    from textual.message import Message

#: Seconds between two checks whether the app is drawn.
LOOK_SECONDS = 0.005
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"

#: The modes of the terminal (termios) before `begin`, until Textual or `leave` takes over.
_before: list[Any] | None = None


def begin(arguments: Sequence[str], commands: Collection[str]) -> None:
    """Draws the first lines of the app if these arguments open it, in a terminal that it can draw
    on. Does nothing if something is wrong: whoever reads it says so in a moment, on the screen as
    it is."""
    global _before
    asked = read_arguments(arguments, commands)
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    if asked is None or sys.platform == "win32" or os.environ.get("TERM", "") in ("", "dumb"):
        return
    if not all(stream is not None and stream.isatty() for stream in streams):
        return
    import termios
    from shutil import get_terminal_size

    from qtui.tui.first.lines import first_lines
    from qtui_core.errors import QtuiError

    model, options = asked
    try:
        color, ascii = options.get("--color", "auto"), "--ascii" in options
        drawn = first_lines(model, color, ascii, *get_terminal_size())
        modes = termios.tcgetattr(0)
    except (QtuiError, termios.error):
        return
    if drawn:
        _before = modes
        termios.tcsetattr(0, termios.TCSANOW, _waiting(modes))
        _write(ENTER + HIDE_CURSOR + drawn)


def leave() -> None:
    """Brings back the screen and the modes from before `begin`, unless Textual took over."""
    global _before
    if _before is not None:
        import termios

        modes, _before = _before, None
        _write(LEAVE + SHOW_CURSOR)
        termios.tcsetattr(0, termios.TCSANOW, modes)


def read_arguments(
    arguments: Sequence[str], commands: Collection[str]
) -> tuple[str, dict[str, str]] | None:
    """The model, "" if none is named, and the options that open the app; None for a command, for
    what prints something and ends, and for what is wrong."""
    words: list[str] = []
    options: dict[str, str] = {}
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if name == "--color":
            options[name] = value if equals else next(rest, "")
        elif word in ("--ascii", "--debug"):
            options[word] = ""
        elif word.startswith("-"):
            return None
        else:
            words.append(word)
    if len(words) > 1 or set(words) & set(commands):
        return None
    return (words or [""])[0], options


def starting(driver: type[LinuxDriver]) -> type[LinuxDriver]:
    """The driver, which goes on with the first screen if there is one: it does not enter the other
    screen again, which would clear it, and brings back the modes from before it. No key is read
    before the app is `drawn`: there would be no panel yet to take it."""

    class Starting(driver):  # type: ignore[valid-type,misc]
        def write(self, data: str) -> None:
            if not (data == ENTER and _before is not None):
                super().write(data)

        def start_application_mode(self) -> None:
            global _before
            super().start_application_mode()
            if _before is not None:
                self.attrs_before, _before = _before, None

        def process_message(self, message: Message) -> None:  # in the thread that reads keys
            while not (self._app.drawn or self.exit_event.is_set()):
                sleep(LOOK_SECONDS)
            super().process_message(message)

    return Starting


def _write(text: str) -> None:
    """To the stream to which Textual writes."""
    stream = sys.__stderr__
    if stream is not None:
        os.write(stream.fileno(), text.encode())


def _waiting(modes: list[Any]) -> list[Any]:
    """The modes in which Textual reads keys, but that Ctrl+C still interrupts."""
    import termios

    iflag, oflag, cflag, lflag, ispeed, ospeed, characters = modes
    iflag &= ~(termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR)
    lflag &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    characters = list(characters)
    characters[termios.VMIN] = 1
    # Stopped or aborted now, the program would leave the terminal as it is.
    for name in (termios.VSUSP, termios.VQUIT):
        characters[name] = b"\0"
    return [iflag, oflag, cflag, lflag, ispeed, ospeed, characters]
