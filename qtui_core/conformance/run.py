"""Checks libraries, each in a process of its own. Standard library only.

If a library crashes, hangs or prints while it is imported, that becomes a verdict, and the other
libraries are still checked.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait

from qtui_core.conformance.catalogue import find_library
from qtui_core.conformance.convention import Library, LibraryReport, Outcome, Verdict, described
from qtui_core.extras import installed_version
from qtui_core.job import IDLE, Job

#: Seconds for all checks of a library; importing torch from a slow network disk takes most of it.
TIMEOUT = 180.0
WORKERS = 2
#: After this many processes of a library ended early, its remaining checks are not run.
MOST_DEATHS = 3


def check_libraries(
    libraries: Sequence[Library],
    *,
    timeout: float = TIMEOUT,
    job: Job = IDLE,
) -> tuple[LibraryReport, ...]:
    """What comparing each library gave, in the given order; two run at a time.

    The libraries see no GPU: the comparison is of what they do on the CPU, on every machine.

    Args:
        timeout: seconds for each process.
        job: hears (libraries done, libraries, name of one) whenever one is done.
    """
    checks = [_Check(library, timeout) for library in libraries]
    waiting, running = list(checks), list[_Check]()
    try:
        while waiting or running:
            while waiting and len(running) < WORKERS:
                running.append(waiting.pop(0))
                running[-1].start()
            left = min(check.deadline for check in running) - time.monotonic()
            ready = wait([check.pipe for check in running], max(left, 0.0))
            for check in running[:]:
                if check.pipe in ready:
                    check.hear()
                elif time.monotonic() >= check.deadline:
                    check.end(f"it did not answer within {timeout:g} seconds")
                if check.seconds is not None:
                    running.remove(check)
                    done = len(checks) - len(waiting) - len(running)
                    job.at(done, len(checks), check.library.name)
    finally:
        for check in running:
            check.process.kill()
    return tuple(check.report() for check in checks)


class _Check:
    """A library under check. If its process ends early, the check that it was at has failed, and
    another process runs the rest."""

    def __init__(self, library: Library, timeout: float) -> None:
        self.library = library
        self.seconds: float | None = None
        self._timeout = timeout
        self._deaths = 0
        self._begun = 0.0
        self._version: str | None = None
        self._outcomes: dict[str, Outcome] = {}

    def start(self) -> None:
        """Starts a process for what has no outcome yet."""
        now = time.monotonic()
        self._begun = self._begun if self._deaths else now
        self.deadline = now + self._timeout
        self._at: str | None = None
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe(duplex=False)
        arguments = (theirs, self.library.name, self._left())
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def hear(self) -> None:
        """Takes what the process sends: its version, the id of the check that begins, outcomes, how
        it failed, and "done"."""
        try:
            what, heard = self.pipe.recv()
        except (EOFError, OSError):
            what, heard = "failed", self._ending()
        match what:
            case "version":
                self._version = heard
                if heard is None:
                    absent = [row.id for row in self.library.conventions]
                    self._outcomes = {id: Outcome(id, Verdict.NOT_INSTALLED) for id in absent}
            case "begin":
                self._at = heard
            case "outcome":
                self._outcomes[heard.id] = heard
            case "failed":
                self.end(heard)
            case "done":
                self._finish()

    def end(self, how: str) -> None:
        """The process ended before all was checked."""
        self._deaths += 1
        self.process.kill()
        self._fail([self._at] if self._at is not None else self._left(), how)
        if self._left() and self._deaths < MOST_DEATHS:
            self.pipe.close()
            self.start()
        else:
            self._fail(self._left(), f"not run, since {MOST_DEATHS} processes before ended early")
            self._finish()

    def report(self) -> LibraryReport:
        """What was compared; only once `seconds` is known."""
        seconds = round(self.seconds or 0.0, 3)
        return LibraryReport(self.library, self._version, self._outcomes, seconds)

    def _left(self) -> list[str]:
        return [row.id for row in self.library.conventions if row.id not in self._outcomes]

    def _fail(self, ids: Sequence[str], how: str) -> None:
        self._outcomes |= {id: Outcome(id, Verdict.FAILED, message=how) for id in ids}

    def _finish(self) -> None:
        self.seconds = time.monotonic() - self._begun
        self.process.join(1.0)
        self.process.kill()
        self.pipe.close()

    def _ending(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode or 0
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"its process was ended by {names.get(-code, f'signal {-code}')}"
        return f"its process ended with status {code}"


def serve(pipe: Connection, name: str, ids: Sequence[str]) -> None:
    """The process: imports a library and sends what its checks with these ids give."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    # On few cores, several threads in each of several processes only slow each other down.
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # also for what C code prints
        os.dup2(nowhere, stream)
    # As with `python -P`: no file of the user, in the current directory, is a library.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != os.getcwd()]
    library = find_library(name)
    try:
        module = importlib.import_module(library.module)
        own = str(getattr(module, "__version__", "unknown"))
        pipe.send(("version", installed_version(library.name) or own))
        _run_checks(library, ids, pipe)
    except ModuleNotFoundError as error:
        absent = error.name == library.module
        pipe.send(("version", None) if absent else ("failed", described(error)))
    except BaseException as error:
        return pipe.send(("failed", described(error)))
    return pipe.send(("done", None))


def _run_checks(library: Library, ids: Sequence[str], pipe: Connection) -> None:
    from qtui_core.conformance.compare import outcome_of

    file = f"qtui_core.conformance.checks.{library.name.replace('-', '_')}"
    checks = importlib.import_module(file)
    for row in library.conventions:
        if row.id in ids:
            pipe.send(("begin", row.id))
            pipe.send(("outcome", outcome_of(row, getattr(checks, row.check))))
