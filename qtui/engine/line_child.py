"""A child process that writes lines, of which the caller may grow tired."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from qtui_core.errors import QtuiError
from qtui_core.threads import child_environment

#: The last lines of a failed process's output that are shown.
_LINES: Final = 3
#: Seconds between two calls of `check`.
_LOOK: Final = 0.2


def lines_of(
    name: str, module: str, *words: str, check: Callable[[], None], given: str = ""
) -> Iterator[str]:
    """The whole lines that `python -m MODULE WORDS` writes to stdout, as they come; `given` is its
    stdin. `check` is called repeatedly; if it raises, the process is killed.

    Raises QtuiError, which begins with `name`, if the process ends with a code.
    """
    lines: SimpleQueue[str] = SimpleQueue()
    # A file and not a pipe for what libraries print: a full pipe would block the child.
    with tempfile.TemporaryFile("w+", errors="replace") as stderr, subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words],  # -P: no file of the user is a library
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
        env=child_environment(),
    ) as process:  # fmt: skip

        def read() -> None:
            for line in process.stdout or ():
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin:  # it has ended, and its code says why
                process.stdin.write(given)
            while True:
                check()
                try:
                    line = lines.get(timeout=_LOOK)
                except Empty:
                    continue
                if not line.endswith("\n"):  # the end, or a line that was cut by one
                    break
                yield line
            process.wait()
        finally:
            if process.poll() is None:
                process.kill()
        if process.returncode:
            stderr.seek(0)
            last = " ".join(stderr.read().strip().splitlines()[-_LINES:]) or "it printed nothing"
            raise QtuiError(f"{name} ended with code {process.returncode}: {last}")
