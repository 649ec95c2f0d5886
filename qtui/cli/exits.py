"""Owns stderr and exit codes: the one place where an exception becomes a sentence.

0 done, 1 failed, 2 usage or no terminal, 3 model, 4 no GPU, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import NoReturn, Self

import click

from qtui.ending import end_by_signal, end_in_order, say, writable
from qtui.tui.first import screen
from qtui_core.errors import QtuiError, memory_ran_out

INTERRUPTED = 130
#: Lines of narration that are kept for a reader that is slow.
LINES_HELD = 200
#: If stderr takes no line for this many seconds, it has no reader.
READER_SECONDS = 3.0


class Narrator:
    """Writes lines to stderr like `say`, but from a separate thread, so that the work never waits
    for a terminal that does not read. A context manager. When more than `LINES_HELD` lines wait,
    the oldest are dropped, and a line says how many."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._left_out = 0
        self._writing = False
        self._changed = threading.Condition()

    def say(self, sentence: str) -> None:
        """Puts a line behind those that wait."""
        with self._changed:
            self._waiting.append(writable(sentence))
            if len(self._waiting) > LINES_HELD:
                self._waiting.popleft()
                self._left_out += 1
            self._changed.notify_all()

    def __enter__(self) -> Self:
        threading.Thread(target=self._write, name="narration", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until the last line is written, or stderr has not been read for READER_SECONDS."""
        with self._changed:
            while (self._waiting or self._writing) and self._changed.wait(READER_SECONDS):
                pass

    def _write(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                lines = [self._waiting.popleft()]
                if self._left_out:
                    told = (
                        f"qtui: {self._left_out:,} lines before this were left out, as they were "
                        f"not read in time."
                    )
                    lines.insert(0, told.encode())
                    self._left_out = 0
                self._writing = True
            # Not through sys.stderr, whose lock this thread might hold when the program ends.
            with suppress(OSError, ValueError):
                os.write(sys.stderr.fileno(), b"".join(line + b"\n" for line in lines))


def run_and_exit(command: click.Command) -> NoReturn:
    """Runs a click command and exits with its code, never with a traceback unless `--debug`."""
    _open_missing_streams()
    end_in_order()
    debug = "--debug" in sys.argv[1:]
    try:
        # Not `command.main`, which exits with 1 when the reader of stdout (`| head`) has left.
        try:
            with command.make_context("qtui", sys.argv[1:]) as context:
                command.invoke(context)
        finally:
            screen.leave()
        sys.stdout.flush()
        code = 0
    except click.exceptions.Exit as done:
        code = done.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        code = _tell_interrupted(error)
    except click.ClickException as error:
        code = _tell_click(error)
    except BrokenPipeError:
        code = 0  # The reader has what it wanted.
    except Exception as error:
        interrupt = _interrupt_behind(error)
        if interrupt is not None:
            code = _tell_interrupted(interrupt)
        else:
            if debug:
                import traceback

                for line in traceback.format_exc().splitlines():
                    say(line)
            code = _tell(error)
    _exit(code)


def _open_missing_streams() -> None:
    """Where the shell closed a stream (`>&-`), Python has None in its place."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open until the program ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _tell_interrupted(error: BaseException) -> int:
    end_by_signal(error)
    say("qtui: interrupted.")
    return INTERRUPTED


def _interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The Ctrl+C that this exception was raised from, if any: up to 3.11, Python raises a
    RuntimeError from one that arrives while a class is being made."""
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        if isinstance(behind, KeyboardInterrupt):
            return behind
        seen.add(id(behind))
        behind = behind.__cause__ or behind.__context__
    return None


def _tell_click(error: click.ClickException) -> int:
    say(f"qtui: {error.format_message()}")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        say(f"Try '{error.ctx.command_path.strip()} --help'.")
    return error.exit_code


def _tell(error: Exception) -> int:
    if memory_ran_out(error):
        from qtui_core.telemetry.machine import more_memory

        say(f"qtui: Memory ran out. {more_memory()}")
    elif isinstance(error, QtuiError):
        say(f"qtui: {error}")
        return error.exit_code
    elif isinstance(error, OSError) and error.filename is None:
        say(f"qtui: the output could not be written: {error.strerror or error}.")
    else:
        detail = f"{type(error).__name__}: {error}"
        say(f"qtui: unexpected failure ({detail}). Run again with --debug for the traceback.")
    return 1


def _exit(code: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        # The failure has been said, or the reader is gone. Python would flush again at exit and
        # complain: it gets a stream that takes everything.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
