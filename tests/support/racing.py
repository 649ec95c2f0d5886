"""Times contenders in turn, so that whatever else the machine does affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds over which the process is observed, and after which waiting ends.
WATCHED, PATIENCE = 0.004, 1.0


def race(
    contenders: dict[str, Callable[[], object]],
    rounds: int = 15,
    of: Callable[[list[float]], float] = min,
) -> dict[str, float]:
    """Seconds of each, taking turns, after one round that does not count: the best, or what `of`
    makes of all rounds."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            wait_for_idle_threads()
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            if turn:
                found[name].append(seconds)
    return {name: of(seconds) for name, seconds in found.items()}


def wait_for_idle_threads() -> None:
    """Returns when no thread of this process works: those of OpenMP wait for more work in a loop
    for a while, and would take a core from the next contender."""
    end = time.perf_counter() + PATIENCE
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(WATCHED)
        if time.process_time() - before < WATCHED / 4:
            return
