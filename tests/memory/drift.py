"""Compares the tape with traces of the installed classes, for many cases in a few processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from queue import Queue
from typing import Any

from tracing import tracing_process

#: Phases before the first step.
_STANDING = ("load 1", "prepare 1")


@dataclass(frozen=True)
class Case:
    """A config.json and the options of a plan that differ from the defaults. For the device "cuda"
    the step is traced with fake tensors, for "cpu" it is run."""

    name: str
    config: Mapping[str, Any]
    plan: Mapping[str, Any]
    device: str = "cuda"
    steps: int = 2


@dataclass(frozen=True)
class Agreement:
    """The result of a case.

    Attributes:
        difference: the first operation that differs, in words; None if none does.
        standing: bytes alive when the first step begins, on the tape and in the real classes.
        tape, real: the most bytes alive by phase, such as "forward 2".
        failed: a sentence if a recording failed, else "".
    """

    difference: str | None = None
    standing: tuple[int, int] = (0, 0)
    tape: Mapping[str, int] | None = None
    real: Mapping[str, int] | None = None
    failed: str = ""

    @property
    def error(self) -> float:
        """The percentage by which the peak of the tape's steps is above the real one."""
        return _percent(max(self._steps(self.tape).values()), max(self._steps(self.real).values()))

    @property
    def worst_phase(self) -> float:
        """The same for the phase in which they differ most."""
        ours, real = self._steps(self.tape), self._steps(self.real)
        assert ours.keys() == real.keys()
        return max((_percent(ours[phase], real[phase]) for phase in real), key=abs)

    def _steps(self, peaks: Mapping[str, int] | None) -> dict[str, int]:
        assert peaks is not None, self.failed
        return {phase: level for phase, level in peaks.items() if phase not in _STANDING}


def _percent(ours: int, real: int) -> float:
    return 100 * (ours - real) / real


def compare(
    cases: Iterable[Case], processes: int | None = None
) -> Iterator[tuple[Case, Agreement]]:
    """Yields each case with its result as soon as it is known. By default in two processes, in a
    worker of pytest-xdist in one. Raises RuntimeError if a process ends early."""
    processes = processes or (1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
    idle: Queue[int] = Queue()
    for number in range(processes):
        idle.put(number)

    def compared(case: Case) -> tuple[Case, Agreement]:
        number = idle.get()
        found = tracing_process(case.device, number).ask("compared", asdict(case))
        idle.put(number)
        return case, Agreement(**found)

    pool = ThreadPoolExecutor(processes)
    try:
        for done in as_completed([pool.submit(compared, case) for case in cases]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)
