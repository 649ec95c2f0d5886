"""Contenders that take turns, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable


def race(contenders: dict[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
    """Best seconds of each, taking turns, after one round that does not count."""
    best = dict.fromkeys(contenders, float("inf"))
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            if turn:
                best[name] = min(best[name], seconds)
    return best
