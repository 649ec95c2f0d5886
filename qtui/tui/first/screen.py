"""The terminal from the key that starts the app until Textual draws: the other screen with its
first lines, and keys that wait unseen until somebody reads them."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Any

from qtui.screen.depth import TerminalSays
from qtui.tui.first.asking import (
    FIRST_WAIT,
    FOLLOW_SCHEME,
    LAST_WAIT,
    LISTENER,
    UNFOLLOW_SCHEME,
    to_ask,
    told_beside,
)
from qtui.tui.theme import AUTO

if TYPE_CHECKING:
    from textual.drivers.linux_driver import LinuxDriver
    from textual.message import Message

    from qtui.tui.config import Settings

#: Seconds between two checks whether the app is drawn.
LOOK_SECONDS = 0.005
#: Seconds after which a key that may begin a longer one is taken for itself, as in Textual.
READ_SECONDS = 0.1
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

    from qtui.tui.config import load_config
    from qtui.tui.first.lines import first_lines
    from qtui_core.errors import QtuiError

    model, options = asked
    color, ascii = options.get("--color", "auto"), "--ascii" in options
    measure_terminal()
    size = get_terminal_size()
    try:
        # Drawn without answers, it tells whether anything is.
        config = load_config()
        drawn = first_lines(model, color, ascii, *size)
        modes = termios.tcgetattr(0)
    except (QtuiError, termios.error):
        return
    if drawn:
        _before = modes
        termios.tcsetattr(0, termios.TCSANOW, _waiting(modes))
        LISTENER.typed += _typed_before(modes)
        # On the other screen, which is cleared: whatever a terminal prints of questions that it
        # does not know is gone.
        _write(ENTER + HIDE_CURSOR + _questions(color, config))
        LISTENER.listen(0, FIRST_WAIT)
        says = heard(color, config)
        _write(first_lines(model, color, ascii, *size, says))


def measure_terminal() -> None:
    """From now on the terminal alone tells its size. One that tells none (a serial line, a
    container) gets that of COLUMNS and LINES, or the usual one, until its first real change.

    Of two sizes that differ Textual's driver takes one and its screen the other, and each drawing
    would ask for one more, without end.
    """
    stdin = sys.stdin
    if sys.platform == "win32" or stdin is None:
        return
    import termios
    from shutil import get_terminal_size

    with suppress(OSError, ValueError, termios.error):  # no terminal, or none that has sizes
        if 0 in termios.tcgetwinsize(stdin.fileno()):
            columns, lines = get_terminal_size()
            termios.tcsetwinsize(stdin.fileno(), (lines, columns))
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)


def _questions(color: str, config: Settings) -> str:
    from qtui.tui.state import LastSession

    theme = LastSession.of(config).theme(config)
    return LISTENER.ask(*to_ask(os.environ, _setting(color, config), theme))


def heard(color: str, config: Settings) -> TerminalSays:
    """What the terminal answered by now, with what tmux and terminfo say."""
    stdin = sys.__stdin__
    if stdin is None or not stdin.isatty():  # in the page of a browser
        return LISTENER.says
    LISTENER.listen(0, 0)
    LISTENER.says = told_beside(os.environ, _setting(color, config), LISTENER.says)
    return LISTENER.says


def ask(color: str) -> TerminalSays:
    """What the terminal answers with a setting of colours, where no app is. Keys that are typed
    meanwhile are lost."""
    import termios

    streams = (sys.__stdin__, sys.__stdout__)
    if os.environ.get("TERM", "") not in ("", "dumb") and all(s and s.isatty() for s in streams):
        modes = termios.tcgetattr(0)
        termios.tcsetattr(0, termios.TCSANOW, _waiting(modes))
        try:
            os.write(1, LISTENER.ask(*to_ask(os.environ, color, AUTO)).encode())
            LISTENER.listen(0, LAST_WAIT)
            os.write(1, b"\r\x1b[K")  # what a terminal prints of questions that it does not know
        finally:
            termios.tcsetattr(0, termios.TCSANOW, modes)
    return told_beside(os.environ, color, LISTENER.says)


def _setting(color: str, config: Settings) -> str:
    return color if color != "auto" else config.color


def leave() -> None:
    """Brings back the screen and the modes from before `begin`, unless Textual took over."""
    global _before
    if _before is not None:
        import termios

        modes, _before = _before, None
        if LISTENER.waits:
            LISTENER.listen(0, LAST_WAIT)
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
    screen again, which would clear it, and brings back the modes from before it. No key is taken
    before the app is `drawn`: there would be no panel yet to take it. What the terminal answers is
    no key."""
    from codecs import getincrementaldecoder
    from select import select

    from qtui.tui.wire.key_parser import KeyParser

    class Starting(driver):  # type: ignore[valid-type,misc]
        def write(self, data: str) -> None:
            if not (data == ENTER and _before is not None):
                super().write(data)

        def start_application_mode(self) -> None:
            global _before
            super().start_application_mode()
            if _before is not None:
                self.attrs_before, _before = _before, None
            if self._app.theme_choice.follows:
                self.follow_background()

        def follow_background(self) -> None:
            """The app hears of the background from now on, also of its changes."""
            self.write(FOLLOW_SCHEME)
            if LISTENER.says.background is None and LISTENER.asked is None:
                self.write(LISTENER.ask(*to_ask(os.environ, "none", AUTO)))

        def stop_application_mode(self) -> None:
            self.write(UNFOLLOW_SCHEME)
            while LISTENER.waits:  # the thread that reads keys still does
                sleep(LOOK_SECONDS)
            super().stop_application_mode()

        def run_input_thread(self) -> None:
            parser = KeyParser(self._debug)
            decode = getincrementaldecoder("utf-8")("replace").decode
            keys, LISTENER.typed = bytes(LISTENER.typed), bytearray()
            said = LISTENER.says
            while True:
                if text := decode(keys):
                    for message in parser.feed(text):
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)
                if LISTENER.says is not said:
                    said = LISTENER.says
                    self._loop.call_soon_threadsafe(self._app.theme_choice.hear, said)
                if self.exit_event.is_set():
                    return
                if select([self.fileno], [], [], READ_SECONDS)[0]:
                    keys = LISTENER.keys_of(os.read(self.fileno, 4096))
                else:
                    keys = LISTENER.keys_held()

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


def _typed_before(modes: list[Any]) -> bytes:
    """Keys that came while the terminal was in these modes, most of which make a line feed of
    Enter."""
    import termios
    from select import select

    keys = os.read(0, 4096) if select([0], [], [], 0)[0] else b""
    return keys.replace(b"\n", b"\r") if modes[0] & termios.ICRNL else keys


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
