"""A real child that hurts itself: `python faulty_worker.py run` or `... engine`, in place of the
child of a run, or of the engine and the estimator in one.

The file $FAULT has one line: where, and which fault (of FAULTS), with a tab between them. Where is
"STEP PHASE" of a run, or the name of a question. The file is deleted when that place is reached, so
that the fault comes once.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

FAULT = Path(os.environ["FAULT"])


def _no_memory() -> None:
    """No page more than there is now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _shorter() -> None:
    """Whatever is read of a model's files from now on is cut off before it is looked at."""
    from qtui_core.models.files.local import LocalFile

    read = LocalFile.read

    def cut(file: LocalFile, begin: int, end: int) -> memoryview:
        view = read(file, begin, end)
        os.truncate(file.path, 4096)
        return view

    LocalFile.read = cut


def _full_disk() -> None:
    """The parent writes no file longer than a line from now on."""
    resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))


FAULTS = {
    **{name: partial(os.kill, os.getpid(), getattr(signal, name)) for name in (
        "SIGKILL", "SIGSEGV", "SIGABRT", "SIGSTOP",
    )},
    "full disk": _full_disk,
    "no memory": _no_memory,
    "shorter file": _shorter,
}  # fmt: skip


def hurt(place: str) -> None:
    """The fault, if this is its place."""
    if not FAULT.exists():
        return
    where, fault = FAULT.read_text().split("\t")
    if where == place:
        FAULT.unlink()
        FAULTS[fault]()


def serve_run() -> None:
    from qtui.engine.run import worker
    from qtui_core.training.run.live import PhaseReporter

    begin = PhaseReporter.phase

    def phase(reporter: PhaseReporter, name: str, **more: Any) -> None:
        begin(reporter, name, **more)
        hurt(f"{reporter.step} {name}")

    def last(work: Any, *args: Any) -> Iterator[str]:
        hurt("ending")
        return lines(work, *args)

    def leave(code: int) -> None:
        hurt("ended")
        leave_at_once(code)

    lines, leave_at_once = worker._RunWork._last, os._exit
    PhaseReporter.phase = phase
    worker._RunWork._last = last
    os._exit = leave
    worker.main()


def serve_engine() -> None:
    from qtui.engine import worker
    from qtui.engine.estimator import child
    from qtui.engine.operations import build_operations
    from qtui.engine.task import EngineOperation, Task

    def hurting(name: str, operation: EngineOperation) -> EngineOperation:
        def run(task: Task[Any]) -> Any:
            hurt(name)
            return operation.run(task)

        return replace(operation, run=run)

    def build() -> dict[str, EngineOperation]:
        memory = child.build_operations().items()
        both = {**build_operations(), **{f"memory {name}": each for name, each in memory}}
        return {name: hurting(name, each) for name, each in both.items()}

    worker.main(build)


if __name__ == "__main__":
    serve_run() if sys.argv[1] == "run" else serve_engine()
