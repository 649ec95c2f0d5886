"""Contenders that take turns, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable


def race(
        self, contenders: dict[str, Callable[[], object]], against: str, rounds: int = 5
    ) -> dict[str, float]:
        """How many times faster than `against` each contender is."""
        best = race(contenders, rounds)
        ratios = {name: best[against] / seconds for name, seconds in best.items()}
        for name, seconds in best.items():
            self.rows.append((name, seconds, f"{ratios[name]:.2f}x {against}"))
        return ratios

    def print(self) -> None:
        print(f"\n\n{self.title:50} {'ms':>8} {'GB/s':>7} {'of copy':>8}  ratio")
        for name, seconds, ratio in self.rows:
            rate = self.nbytes / seconds / 1e9
            share = self.copy_seconds / seconds
            print(f"{name:50} {1e3 * seconds:8.1f} {rate:7.2f} {share:8.1%}  {ratio}")


def race(contenders: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
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
