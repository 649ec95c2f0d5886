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


async def read_stderr(stream: asyncio.StreamReader, tail: deque[str], path: Path | None) -> None:
    """Reads stderr until the child closes it. Keeps the last lines in `tail` and writes everything
    to the log at `path`. Without a log the pipe is still emptied, so that the child never waits."""
    with contextlib.ExitStack() as stack:
        log = None
        if path is not None:
            with contextlib.suppress(OSError):
                log = stack.enter_context(open_log(path))
        while chunk := await stream.read(1 << 16):
            text = chunk.decode(errors="replace")
            tail.extend(text.splitlines())
            if log is not None:
                log.write(text)
                log.flush()


def open_log(path: Path) -> Any:
    """Opens a log to append to; a log over LOG_BYTES_KEPT is overwritten. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    too_long = path.exists() and path.stat().st_size > LOG_BYTES_KEPT
    return path.open("w" if too_long else "a", encoding="utf-8")


def exit_sentence(who: str, returncode: int | None, stderr_lines: Sequence[str]) -> str:
    """A sentence that says how a child ended. It begins with `who` and quotes the last line of its
    stderr, but not for a child that a signal ended: that line is about something else."""
    if returncode is None:
        how = f"{who} closed its output"
    elif returncode == -signal.SIGKILL:
        return f"{who} was killed, which is most often the system running out of memory."
    elif -returncode in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        return f"{who} was ended by {signal.Signals(-returncode).name}, which qtui did not send."
    elif returncode < 0:
        how = f"{who} died of {signal.Signals(-returncode).name}"
    else:
        how = f"{who} ended with exit code {returncode}"
    words = next((line.strip() for line in reversed(stderr_lines) if line.strip()), "")
    return f"{how}: {words}" if words else f"{how}."
