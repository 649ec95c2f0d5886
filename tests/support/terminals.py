"""A real program in a pseudo-terminal, for tests that need one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte

import qtui

#: Seconds after which something that should happen counts as failed: far more than anything takes.
PATIENCE = 120.0


def seen(screen: pyte.Screen) -> list[list[tuple[object, ...]]]:
    """What a screen shows, cell by cell. Of a blank that is its background, unless an attribute is
    seen there, too; of a half block, what is above and what below."""

    def cell(char: pyte.screens.Char) -> tuple[object, ...]:
        if char.data == " " and not (char.underscore or char.strikethrough or char.reverse):
            return " ", char.bg
        if char.data == "▄" and not char.reverse:
            return char._replace(data="▀", fg=char.bg, bg=char.fg)
        return char

    lines = [screen.buffer[y] for y in range(screen.lines)]
    return [[cell(line[x]) for x in range(screen.columns)] for line in lines]


class Terminal:
    """A child in a pseudo-terminal and the contents of its screen."""

    def __init__(
        self,
        argv: list[str],
        environment: dict[str, str],
        size: tuple[int, int],
        told: tuple[int, int] | None = None,
    ) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(environment["HOME"])
            os.execvpe(argv[0], argv, environment)
        self.resize(*(told or size))
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self._drawn = 0
        self.written = b""

    def resize(self, width: int, height: int) -> None:
        """The terminal gets another size, which the child is told; its screen here does not."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    @property
    def screen(self) -> pyte.Screen:
        """The contents of the screen. Output is interpreted only here, because that is slow."""
        self._stream.feed(self.written[self._drawn :])
        self._drawn = len(self.written)
        return self._screen

    def read(self, seconds: float) -> bool:
        """Reads once; False at the end of the child's output."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # Linux raises EIO when the other end is closed
            return False
        self.written += data
        return bool(data)

    def timed(self, seconds: float) -> Iterator[float]:
        """Puts the output of the next `seconds` on the screen piece by piece; yields the time
        (time.perf_counter) at which each came. All is read before the slow emulator starts: while
        it works nothing is read, and the child would be held up by its own output."""
        pieces = []
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                pieces.append((os.read(self.fd, 1 << 16), time.perf_counter()))
        for data, came in pieces:
            self.written += data
            yield came

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def wait_until(self, holds: Callable[[], object], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, self.text
            assert self.read(0.1), self.written[-2000:].decode(errors="replace")

    def wait_for(self, text: str, seconds: float = PATIENCE) -> None:
        self.wait_until(lambda: text in self.text, seconds)

    def wait_for_no(self, text: str) -> None:
        self.wait_until(lambda: text not in self.text)

    def settle(self, quiet: float = 0.5, seconds: float = 10) -> None:
        """Reads until nothing was written for `quiet` seconds; for `seconds` seconds at most, if
        the screen keeps changing."""
        end = time.monotonic() + seconds
        before = -1
        while before != len(self.written) and time.monotonic() < end:
            before = len(self.written)
            pause = time.monotonic() + quiet
            while time.monotonic() < pause:
                self.read(0.05)

    def hang_up(self) -> None:
        """Closes the terminal, as when its window is closed."""
        os.close(self.fd)
        self.fd = -1

    def exit_code(self, seconds: float = PATIENCE) -> int:
        end = time.monotonic() + seconds
        while self.read(0.1):
            assert time.monotonic() < end, "it does not end"
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send(self, keys: str) -> None:
        os.write(self.fd, keys.encode())


@contextlib.contextmanager
def program(
    tmp_path: Path,
    *args: str,
    size: tuple[int, int] = (80, 24),
    told: tuple[int, int] | None = None,
    **environment: str,
) -> Iterator[Terminal]:
    """Runs a Python program with these arguments, in a home folder of its own. `told`: the size
    that the terminal says it has, if it is not its own."""
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(qtui.__file__).parents[1]),
        "HOME": str(tmp_path),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        **environment,
    }
    terminal = Terminal([sys.executable, *args], env, size, told)
    try:
        yield terminal
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(terminal.pid, 9)
            os.waitpid(terminal.pid, 0)
        if terminal.fd >= 0:
            terminal.hang_up()
