"""Owns stderr and exit codes: the one place where an exception becomes a sentence.

0 done, 1 failed, 2 usage or no terminal, 3 model, 4 no GPU, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import NoReturn, Self

import click

from qtui_core.errors import QtuiError

INTERRUPTED = 130
#: Seconds that the way out may take after a signal.
WAY_OUT = 5.0
#: Lines of narration that are kept for a reader that is slow.
LINES_HELD = 200
#: Seconds in which a reader of stderr takes another line, if there is one at all.
READER_SECONDS = 3.0


def say(sentence: str) -> None:
    """A line of narration. Control characters that a file name brought are shown, not obeyed."""
    # Where stderr cannot be written the exit code still tells.
    with suppress(OSError):
        print(_writable(sentence).decode(_encoding()), file=sys.stderr)
        sys.stderr.flush()


def _writable(sentence: str) -> bytes:
    """Lines as stderr can take them."""
    from qtui_core.models.quoting import printable

    shown = printable(sentence)
    # A message may quote a name that the terminal's encoding cannot write.
    return shown.encode(_encoding(), "backslashreplace")


def _encoding() -> str:
    return sys.stderr.encoding or "utf-8"


class Narrator:
    """Says lines on stderr as `say` does, in a `with` statement, from a thread of its own: whoever
    works never waits for a terminal that is not read. Lines beyond `LINES_HELD` are left out, the
    oldest first, and their number is told."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._left_out = 0
        self._writing = False
        self._changed = threading.Condition()

    def say(self, sentence: str) -> None:
        """Has a line said once those before it are."""
        with self._changed:
            self._waiting.append(_writable(sentence))
            if len(self._waiting) > LINES_HELD:
                self._waiting.popleft()
                self._left_out += 1
            self._changed.notify_all()

    def __enter__(self) -> Self:
        threading.Thread(target=self._write, name="narration", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for what is left as long as somebody reads it."""
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
                    told = f"qtui: {self._left_out:,} lines before this were not read in time."
                    lines.insert(0, told.encode())
                    self._left_out = 0
                self._writing = True
            # Not by way of Python's own stream: the program could not end while its lock is held.
            with suppress(OSError, ValueError):
                os.write(sys.stderr.fileno(), b"".join(line + b"\n" for line in lines))


def run_and_exit(command: click.Command) -> NoReturn:
    """Runs a click command and exits with its code, never with a traceback unless `--debug`."""
    _open_missing_streams()
    _end_in_order()
    debug = "--debug" in sys.argv[1:]
    try:
        # Not `command.main`, which ends a program whose reader left early as failed.
        with command.make_context("qtui", sys.argv[1:]) as context:
            command.invoke(context)
        sys.stdout.flush()
        code = 0
    except click.exceptions.Exit as done:
        code = done.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        code = _tell_interrupted(error)
    except click.ClickException as error:
        code = _tell_click(error)
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted.
        code = 0
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
    """Python has no stream at all where the shell closed one (`>&-`)."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open until the program ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


class Ended(KeyboardInterrupt):
    """A signal that asks this process to end. As an exception, so that on the way out children
    are ended and half-written files removed, as they are after Ctrl+C."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


def _end_in_order() -> None:
    def end(signum: int, frame: object) -> NoReturn:
        begin_way_out(signum)
        raise Ended(signum)

    for signum in ending_signals():
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, end)


def ending_signals() -> list[signal.Signals]:
    """The signals that ask this process to end; under nohup a hang-up does not."""
    named = (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP"))
    return [each for each in named if each and signal.getsignal(each) is not signal.SIG_IGN]


def begin_way_out(signum: int) -> None:
    """To be called once a signal is obeyed: the process is gone within `WAY_OUT` seconds."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # A second one does not wait.
    if signum != signal.SIGTERM:
        # A hang-up comes twice, from the terminal and from the shell, and nobody is impatient.
        signal.signal(signum, signal.SIG_IGN)
    # Nor does it wait for ever: an exception may be lost in whatever code runs just now.
    again = threading.Timer(WAY_OUT, os.kill, (os.getpid(), signal.SIGTERM))
    again.daemon = True
    again.start()


def _tell_interrupted(error: BaseException) -> int:
    if isinstance(error, Ended):
        # Who sent the signal is to see that it was obeyed.
        signal.signal(error.signum, signal.SIG_DFL)
        os.kill(os.getpid(), error.signum)
    say("qtui: interrupted.")
    return INTERRUPTED


def _interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The Ctrl+C that an exception was raised from: Python up to 3.11 makes a RuntimeError of
    one that comes while a class is being made."""
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
    if isinstance(error, QtuiError):
        say(f"qtui: {error}")
        return error.exit_code
    if isinstance(error, MemoryError):
        say("qtui: out of memory. Look at fewer tensors at a time with --tensors.")
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
        # What could not be written has been told, or its reader is gone; Python would try
        # again at exit and complain, so give it somewhere to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
