"""Owns stderr and exit codes: the one place where an exception becomes a sentence.

0 done, 1 failed, 2 usage or no terminal, 3 model, 4 no GPU, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

import click

from qtui_core.errors import QtuiError

INTERRUPTED = 130
#: Seconds that the way out may take after a signal.
WAY_OUT = 5.0


def say(sentence: str) -> None:
    """A line of narration. Control characters that a file name brought are shown, not obeyed."""
    from qtui_core.models.quoting import printable

    shown = "\n".join(printable(line) for line in sentence.splitlines())
    # A message may quote a name that the terminal's encoding cannot write.
    encoding = sys.stderr.encoding or "utf-8"
    # Where stderr cannot be written the exit code still tells.
    with suppress(OSError):
        print(shown.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)
        sys.stderr.flush()


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

                traceback.print_exc()
            code = _tell(error)
    _exit(code)


def _open_missing_streams() -> None:
    """Python has no stream at all where the shell closed one (`>&-`)."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open until the program ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


class _Ended(KeyboardInterrupt):
    """A signal that asks this process to end. As an exception, so that on the way out children
    are ended and half-written files removed, as they are after Ctrl+C."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


def _end_in_order() -> None:
    def end(signum: int, frame: object) -> NoReturn:
        signal.signal(signum, signal.SIG_DFL)  # A second one does not wait.
        # Nor does it wait for ever: an exception may be lost in whatever code runs just now.
        again = threading.Timer(WAY_OUT, os.kill, (os.getpid(), signum))
        again.daemon = True
        again.start()
        raise _Ended(signum)

    for name in ("SIGTERM", "SIGHUP"):
        signum = getattr(signal, name, None)
        # Under nohup a hang-up is ignored, and that is left alone.
        if signum is not None and signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, end)


def _tell_interrupted(error: BaseException) -> int:
    if isinstance(error, _Ended):
        # Who sent the signal is to see that it was obeyed.
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
