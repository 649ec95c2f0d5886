"""A progress bar on stderr, for work that takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qtui_core.job import IDLE, Job
from qtui_core.models.quoting import printable

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds of work before a bar appears.
PATIENCE_SECONDS = 0.7


@contextmanager
def progress_on_stderr(verb: str, patience: float | None = None) -> Iterator[Job]:
    """A job whose reports move a bar; where the total is 0, as nobody knows it, to and fro beside
    the seconds so far. No bar where stderr is no terminal. It appears after `patience` seconds, or
    PATIENCE_SECONDS, and goes away when the work ends."""
    if not sys.stderr.isatty():
        yield IDLE
        return
    started = time.monotonic()
    bar: Progress | None = None

    def report(done: float, total: float, item: str) -> None:
        nonlocal bar
        if bar is None:
            if time.monotonic() - started < (PATIENCE_SECONDS if patience is None else patience):
                return
            bar = _make_bar(counted=total > 0)
            bar.add_task(verb, total=total or None, item="")
            bar.start()
        if not total or not item:
            item = f"{time.monotonic() - started:.0f} s  {item}".rstrip()
        bar.update(bar.task_ids[0], completed=done, total=total or None, item=printable(item))

    try:
        yield Job(report)
    finally:
        if bar is not None:
            bar.stop()


def _make_bar(*, counted: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    share = (TextColumn("{task.percentage:3.0f}%"), TimeRemainingColumn()) if counted else ()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *share,
        # A tensor name may hold square brackets, which are not markup.
        TextColumn("{task.fields[item]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
