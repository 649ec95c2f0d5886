"""Owns stderr and exit codes: the one place where an exception becomes a sentence.

0 done, 1 failed, 2 usage or no terminal, 3 model, 4 no GPU, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

import click

from qtui_core.errors import QtuiError

INTERRUPTED = 130


def say(sentence: str) -> None:
    """A line of narration. Control characters that a file name brought are shown, not obeyed."""
    from qtui_core.models.quoting import printable

    shown = "\n".join(printable(line) for line in sentence.splitlines())
    # A message may quote a name that the terminal's encoding cannot write.
    encoding = sys.stderr.encoding or "utf-8"
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)


def run_and_exit(command: click.Command) -> NoReturn:
    """Runs a click command and exits with its code, never with a traceback unless `--debug`."""
    debug = "--debug" in sys.argv[1:]
    try:
        code = command.main(standalone_mode=False, prog_name="qtui")
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        _exit(done.exit_code)
    except click.Abort:
        _interrupted()
    except click.ClickException as error:
        say(f"qtui: {error.format_message()}")
        if isinstance(error, click.UsageError) and error.ctx is not None:
            say(f"Try '{error.ctx.command_path} --help'.")
        _exit(error.exit_code)
    except KeyboardInterrupt:
        _interrupted()
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted. Python would complain when it flushes
        # stdout at exit, so give it somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _exit(0)
    except Exception as error:
        if debug:
            traceback.print_exc()
        _exit(_tell(error))
    _exit(code if isinstance(code, int) else 0)


def _tell(error: Exception) -> int:
    if isinstance(error, QtuiError):
        say(f"qtui: {error}")
        return error.exit_code
    if isinstance(error, MemoryError):
        say("qtui: out of memory. Without --full, inspect reads only a sample of each tensor.")
        return 1
    detail = f"{type(error).__name__}: {error}"
    say(f"qtui: unexpected failure ({detail}). Run again with --debug for the traceback.")
    return 1


def _interrupted() -> NoReturn:
    say("qtui: interrupted.")
    _exit(INTERRUPTED)


def _exit(code: int) -> NoReturn:
    sys.exit(code)
