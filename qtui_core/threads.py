"""How many threads a process of qtui computes with: what `--threads` says, else the cores that it
may use; and the environment that a child inherits. Standard library only."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, MutableMapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

#: What `--threads` sets, and who starts qtui may set. Child processes inherit it.
VARIABLE = "QTUI_THREADS"
#: Read by torch and by the libraries of numpy, once, when they are loaded.
_LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def limit_threads(count: int) -> None:
    """Limits this process and its children; to be called before numpy and torch are imported."""
    os.environ[VARIABLE] = str(count)
    limit_libraries(os.environ)


def limit_libraries(environment: MutableMapping[str, str]) -> None:
    """Sets what the libraries of a process with this environment read. Without `--threads` that
    is only done where a container has less processor time than cores, which they do not see, and
    what the user has set stays."""
    # A thread that waits for the others gives its core away. As OpenMP waits by default, a step of
    # the demo took up to 8 s instead of 0.3 where another program used one core of two.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    chosen = chosen_threads(environment)
    for name in _LIBRARIES:
        if chosen is not None:
            environment[name] = str(chosen)
        elif usable_cores() < _own_cores():
            environment.setdefault(name, str(usable_cores()))


def child_environment() -> dict[str, str]:
    """The environment of a child that must import the same qtui, also from a source tree.

    Children are started with `python -P`, which leaves the current directory off their path,
    because a user's file there may have the name of a library. So a source tree is named
    explicitly.
    """
    import sysconfig  # which only a command with children pays for

    environment = dict(os.environ)
    limit_libraries(environment)
    root = str(Path(__file__).resolve().parents[1])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([root, *([inherited] if inherited else [])])
    return environment


def chosen_threads(environment: MutableMapping[str, str] = os.environ) -> int | None:
    """The number that `--threads` or its variable gives, if one does."""
    text = environment.get(VARIABLE, "")
    return int(text) if text.isdecimal() and len(text) < 6 and int(text) > 0 else None


def thread_limit() -> int:
    """The most threads that compute in one process."""
    return chosen_threads() or usable_cores()


def usable_cores(root: Path = Path("/")) -> int:
    """How many cores this process may use: those it may run on, and no more than the processor
    time of its control group (version 2, else 1), rounded up. Tests replace `root`."""
    return min([_own_cores(), *(max(1, math.ceil(share)) for share in _shares(root))])


def _own_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _shares(root: Path) -> list[float]:
    """The processor time that each of its control groups allows, in cores; read once, as every
    tensor asks. A container sees its own group as the topmost one."""
    top = root / "sys/fs/cgroup"
    lines = text_of(root / "proc/self/cgroup").splitlines()
    own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    groups = [group for group in (top / own, *(top / own).parents) if group.is_relative_to(top)]
    limits = [text_of(group / "cpu.max").split() for group in groups]
    limits.append([text_of(top / f"cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period")])
    pairs = [pair for pair in limits if len(pair) == 2 and all(map(str.isdecimal, pair))]
    return [int(quota) / int(period) for quota, period in pairs if int(period)]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def in_daemon(work: Callable[[], T]) -> Future[T]:
    """Runs `work` in a thread that may be given up: it then works on until the process ends."""
    from concurrent.futures import Future  # which takes a while, and few commands need it
    from threading import Thread

    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future
