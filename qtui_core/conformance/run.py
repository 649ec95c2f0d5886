"""Checks libraries, each in a process of its own. Standard library only.

If a library crashes, hangs or prints while it is imported, that becomes a verdict, and the other
libraries are still checked.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import field
from typing import Any, TypeAlias

from qtui_core.child_environment import child_environment
from qtui_core.codec import from_plain
from qtui_core.conformance.convention import (
    Library,
    LibraryReport,
    Outcome,
    Probed,
    Verdict,
)
from qtui_core.dataclass import dataclass

#: Seconds for all checks of a library; importing torch from a slow network disk takes most of it.
TIMEOUT = 180.0
WORKERS = 2
#: After this many processes of a library ended early, its remaining checks are not run.
MOST_DEATHS = 3

Progress = Callable[[int, int, str], None]
_Child: TypeAlias = "subprocess.Popen[bytes]"


def check_libraries(
    libraries: Sequence[Library],
    *,
    timeout: float = TIMEOUT,
    environment: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> tuple[LibraryReport, ...]:
    """What was found about each library, in the given order; two run at a time.

    The libraries see no GPU: the comparison is of what they do on the CPU, on every machine.

    Args:
        timeout: seconds for each process.
        environment: of the child processes, instead of this one's; for tests.
        progress: called with (libraries done, libraries, name of one) whenever one is done.
    """
    base = dict(child_environment() if environment is None else environment)
    # On few cores, several threads in each of several processes only slow each other down.
    base |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    children = _Children()
    found: dict[str, LibraryReport] = {}
    pool = ThreadPoolExecutor(WORKERS)
    try:
        asked = {pool.submit(_ask, library, timeout, base, children): library.name
                 for library in libraries}  # fmt: skip
        for done, answer in enumerate(as_completed(asked), start=1):
            found[asked[answer]] = answer.result()
            if progress is not None:
                progress(done, len(libraries), asked[answer])
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        children.stop()
        raise
    pool.shutdown()
    return tuple(found[library.name] for library in libraries)


class _Children:
    """The running child processes, so that all can be killed and no new ones started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[_Child] = set()
        self.stopped = False

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> _Child | None:
        """Starts a child process; returns None after `stop`."""
        with self._lock:
            if self.stopped:
                return None
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
            )
            self._running.add(child)
            return child

    def forget(self, child: _Child) -> None:
        with self._lock:
            self._running.discard(child)

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            for child in self._running:
                child.kill()


@dataclass
class _Heard:
    """What the processes of one library have reported. `running` is the id of the check that has
    begun and has no outcome yet; if the process died, it died of this check."""

    version: str | None = None
    imported: bool = False
    done: bool = False
    running: str | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    faults: dict[str, Probed] = field(default_factory=dict)


def _ask(
    library: Library,
    timeout: float,
    environment: Mapping[str, str],
    children: _Children,
) -> LibraryReport:
    """The report on one library. If its process ends early, the running check has failed, and
    another process runs the rest."""
    started = time.monotonic()
    heard = _Heard()
    wanted = [convention.id for convention in library.conventions]
    wanted += [fault.id for fault in library.faults]
    for _ in range(MOST_DEATHS):
        left = [id for id in wanted if id not in heard.outcomes and id not in heard.faults]
        how = _run(library, left, timeout, environment, children, heard)
        if heard.done:
            break
        if heard.running is None:
            _fail(library, left, how, heard)
            break
        _fail(library, [heard.running], how, heard)
    left = [id for id in wanted if id not in heard.outcomes and id not in heard.faults]
    if heard.done and not heard.imported:
        verdict = Verdict.NOT_INSTALLED
        heard.outcomes = {c.id: Outcome(c.id, verdict) for c in library.conventions}
    elif left:
        _fail(library, left, f"not run, since {MOST_DEATHS} processes before ended early", heard)
    return LibraryReport(
        library.name,
        heard.version,
        tuple(heard.outcomes[convention.id] for convention in library.conventions),
        tuple(heard.faults[f.id] for f in library.faults if f.id in heard.faults),
        round(time.monotonic() - started, 3),
    )


def _run(
    library: Library,
    ids: Sequence[str],
    timeout: float,
    environment: Mapping[str, str],
    children: _Children,
    heard: _Heard,
) -> str:
    """Runs the checks with these ids in one process, and says how the process ended."""
    command = [sys.executable, "-P", "-m", "qtui_core.conformance", library.name]
    heard.running, heard.done = None, False
    child = children.start([*command, "--only", ",".join(ids)], environment)
    if child is None:
        return "interrupted"
    try:
        out, err = child.communicate(timeout=timeout)
        how = _ending(child.returncode, err)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        how = f"it did not answer within {timeout:g} seconds"
    finally:
        children.forget(child)
    for line in _lines(out):
        _hear(line, heard)
    return how


def _hear(line: Mapping[str, Any], heard: _Heard) -> None:
    if "version" in line:
        heard.version = line["version"]
        heard.imported = heard.version is not None
    if "begin" in line:
        heard.running = line["begin"]
    if "outcome" in line:
        outcome = from_plain(Outcome, line["outcome"])
        heard.outcomes[outcome.id], heard.running = outcome, None
    if "fault" in line:
        fault = from_plain(Probed, line["fault"])
        heard.faults[fault.id], heard.running = fault, None
    heard.done = heard.done or bool(line.get("done"))


def _lines(out: bytes) -> Iterator[dict[str, Any]]:
    """The complete lines of JSON; a line that was cut off when the process ended is skipped."""
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            parsed = json.loads(line)
        except ValueError:
            continue
        if isinstance(parsed, dict):
            yield parsed


def _fail(library: Library, ids: Sequence[str], how: str, heard: _Heard) -> None:
    faults = {fault.id for fault in library.faults}
    for id in ids:
        if id in faults:
            heard.faults[id] = Probed(id, None, how)
        else:
            heard.outcomes[id] = Outcome(id, Verdict.FAILED, message=how)


def _ending(code: int, err: bytes) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"its process was ended by {name}"
    said = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    return said[-1].strip()[:300] if said and code else f"its process ended with status {code}"
