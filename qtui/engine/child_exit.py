"""What a child writes on stderr, and the sentence that says how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

LINES_KEPT: Final = 200
LOG_BYTES_KEPT: Final = 1 << 20

#: What most often causes a signal that the system sends.
_CAUSES: Final[dict[int, str]] = {
    signal.SIGKILL: "was killed, which is most often the system running out of memory.",
    signal.SIGBUS: (
        "died of SIGBUS: a file that it read, most likely one of the model's, became shorter, or "
        "its disk failed. Copy or download the model again."
    ),
    **{
        each: (
            f"died of {each.name}, a mistake in a library that it uses, such as torch; another "
            "version of that may help."
        )
        for each in (signal.SIGSEGV, signal.SIGILL, signal.SIGFPE)
    },
}


async def read_stderr(stream: asyncio.StreamReader, tail: deque[str], path: Path | None) -> None:
    """Reads stderr until the child closes it. Keeps the last lines in `tail` and writes everything
    to the log at `path`. Without a log, or if the disk is full, the pipe is still emptied, so that
    the child never waits."""
    log = None
    if path is not None:
        with contextlib.suppress(OSError):
            log = open_log(path)
    try:
        while chunk := await stream.read(1 << 16):
            tail.extend(chunk.decode(errors="replace").splitlines())
            if log is not None:
                with contextlib.suppress(OSError):
                    log.write(chunk)
    finally:
        if log is not None:
            with contextlib.suppress(OSError):
                log.close()


def open_log(path: Path) -> Any:
    """Opens a log to append to; a log over LOG_BYTES_KEPT is overwritten. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    too_long = path.exists() and path.stat().st_size > LOG_BYTES_KEPT
    return path.open("wb" if too_long else "ab", buffering=0)


def exit_sentence(who: str, returncode: int | None, stderr_lines: Sequence[str]) -> str:
    """A sentence that says how a child ended. It begins with `who` and quotes the last line of its
    stderr, but after a signal only if the child sent that to itself, to abort: otherwise that line
    is about something else."""
    number = -(returncode or 0)
    if returncode is None:
        how = f"{who} closed its output"
    elif number == signal.SIGABRT:
        how = f"{who} aborted"
    elif number in _CAUSES:
        return f"{who} {_CAUSES[number]}"
    elif number > 0:
        return f"{who} was ended by {_name(number)}, which qtui did not send."
    else:
        how = f"{who} ended with exit code {returncode}"
    words = next((line.strip() for line in reversed(stderr_lines) if line.strip()), "")
    return f"{how}: {words}" if words else f"{how}."


def _name(number: int) -> str:
    """The name of a signal; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
