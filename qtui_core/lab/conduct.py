"""Runs the jobs of an experiment in this process and a second one, and concludes after each job."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from qtui_core.child_environment import child_environment
from qtui_core.codec import CodecError, from_plain, to_line, to_plain
from qtui_core.errors import QtuiError
from qtui_core.lab.catalog import Experiment, experiment_named
from qtui_core.lab.job import Job
from qtui_core.lab.results import Findings, JobDone, LabBegun, LabResult, StepSeen

Told = LabBegun | StepSeen | JobDone | LabResult
Tell = Callable[[Told], None]

#: The libraries that affect the figures: their versions are reported.
_LIBRARIES: Final = ("torch", "transformers", "torchao", "bitsandbytes", "peft")
#: Less work than this, in seconds, is not worth a second process, which must import torch first.
_ALONE: Final = 8.0
#: Seconds between two reported steps.
_PAUSE: Final = 0.1


def conduct(
    experiment: Experiment,
    settings: Mapping[str, Any],
    model: str,
    tell: Tell,
    check: Callable[[], None],
    done: Mapping[str, JobDone] | None = None,
    processes: int | None = None,
) -> LabResult:
    """Runs the jobs that are not `done` and reports to `tell`: first LabBegun, then StepSeen and
    JobDone, and after each job the findings so far as a LabResult. Returns the last one.

    `check` is called between steps and raises to stop the run; what it raises leaves this function
    once the other process has ended. A job that fails has a fault in place of an outcome, and the
    others go on. `processes` is 1 or 2; None takes two if there are enough cores and work. Raises
    UsageError for settings that contradict each other, ModelError for a model that cannot be run.
    """
    return _Conductor(experiment, settings, model, tell, check, done or {}).run(processes)


class _Conductor:
    def __init__(
        self,
        experiment: Experiment,
        settings: Mapping[str, Any],
        model: str,
        tell: Tell,
        check: Callable[[], None],
        done: Mapping[str, JobDone],
    ) -> None:
        self._experiment, self._settings, self._model = experiment, settings, model
        self._tell, self._check = tell, check
        self._module = experiment.module()
        jobs: list[Job] = self._module.jobs(settings, model)
        self._jobs = {job.key: job for job in jobs}
        self._waiting = sorted(
            (job for job in jobs if job.key not in done), key=lambda job: -job.cost
        )
        self._done = {key: told for key, told in done.items() if key in self._jobs}
        self._lock = threading.RLock()
        self._stopped = False
        self._began = time.perf_counter()

    def run(self, processes: int | None) -> LabResult:
        work = sum(job.cost for job in self._waiting)
        if processes is None:
            cores = len(os.sched_getaffinity(0))
            processes = 2 if cores > 1 and len(self._waiting) > 1 and work > _ALONE else 1
        torch.set_num_threads(1 if processes > 1 else max(1, len(os.sched_getaffinity(0))))
        self._tell(
            LabBegun(
                self._experiment.name,
                self._experiment.question,
                self._model,
                self._settings,
                tuple(self._jobs),
                work / processes,
                versions(),
            )
        )
        for told in self._done.values():
            self._tell(told)
        with contextlib.ExitStack() as stack:
            if processes > 1:
                helper = _Helper(self._experiment, self._settings, self._model)
                stack.callback(helper.end)
                beside = threading.Thread(target=self._feed, args=(helper,), daemon=True)
                beside.start()
            while (job := self._next()) is not None:
                self._finish(run_job(job, self._see(job)))
            if processes > 1:
                while beside.is_alive():
                    self._check()
                    beside.join(0.1)
        # If the second process ended early, its job is in the list again.
        while (job := self._next()) is not None:
            self._finish(run_job(job, self._see(job)))
        result = self.result("done")
        self._tell(result)
        return result

    def result(self, ended: str = "") -> LabResult:
        """The findings from the finished jobs."""
        outcomes = {
            key: from_plain(self._jobs[key].outcome, told.outcome)
            for key, told in self._done.items()
            if not told.fault
        }
        found: Findings = self._module.conclude(self._settings, outcomes)
        faults = tuple(f"{k}: {t.fault}" for k, t in self._done.items() if t.fault)
        if faults:
            found = Findings(**{**vars(found), "notes": (*found.notes, *faults)})
        return LabResult(
            self._experiment.name,
            self._experiment.question,
            self._model,
            self._settings,
            tuple(self._settings.get("seeds", ())),
            time.perf_counter() - self._began,
            versions(),
            len(self._jobs),
            len(self._done),
            found,
            ended,
        )

    def _next(self) -> Job | None:
        with self._lock:
            return self._waiting.pop(0) if self._waiting else None

    def _finish(self, told: JobDone) -> None:
        with self._lock:
            self._done[told.job] = told
            self._tell(told)
            if len(self._done) < len(self._jobs):
                self._tell(self.result())

    def _see(self, job: Job) -> Callable[[int, int, float | None], None]:
        last = 0.0

        def see(step: int, steps: int, value: float | None = None) -> None:
            nonlocal last
            self._check()
            now = time.monotonic()
            if now - last >= _PAUSE or step == steps:
                last = now
                with self._lock:
                    self._tell(StepSeen(job.key, step, steps, value))

        return see

    def _feed(self, helper: _Helper) -> None:
        """Passes jobs to the second process until none are left or that process has ended."""
        while (job := self._next()) is not None:
            try:
                told = helper.run(job, self._hear)
            except (OSError, ValueError, CodecError):
                with self._lock:
                    self._waiting.append(job)
                return
            self._finish(told)

    def _hear(self, told: StepSeen) -> None:
        with self._lock:
            self._tell(told)


def run_job(job: Job, see: Callable[..., None]) -> JobDone:
    """Runs a job. Exceptions become the fault of its JobDone, except what `see` raises to stop the
    run, which is no Exception."""
    began = time.perf_counter()
    try:
        outcome = to_plain(job.run(see, **job.arguments), strict=True)
    except QtuiError as error:
        return JobDone(job.key, None, time.perf_counter() - began, str(error))
    except Exception as error:  # a library can raise anything on a model
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        said = f"{type(error).__name__}: {first}"[:400]
        return JobDone(job.key, None, time.perf_counter() - began, said)
    return JobDone(job.key, outcome, time.perf_counter() - began)


class _Helper:
    """The second process, `python -m qtui_core.lab.conduct`, which gets one line per job."""

    def __init__(self, experiment: Experiment, settings: Mapping[str, Any], model: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "qtui_core.lab.conduct"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
        )
        self._ask({"experiment": experiment.name, "settings": settings, "model": model})

    def run(self, job: Job, hear: Callable[[StepSeen], None]) -> JobDone:
        """Runs a job there. Raises OSError or ValueError if the process has ended."""
        self._ask({"job": job.key})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            if "outcome" in found:
                return from_plain(JobDone, found)
            hear(from_plain(StepSeen, found))
        raise OSError("the process is gone")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _ask(self, asked: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(to_line(to_plain(asked)).encode() + b"\n")
        self._process.stdin.flush()


def versions() -> dict[str, str]:
    """The versions of Python and of the installed libraries that affect the figures."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _help() -> None:
    """The main program of the second process: reads jobs from stdin and writes outcomes to the
    original stdout."""
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print must not mix with the outcomes
    torch.set_num_threads(1)
    asked = json.loads(sys.stdin.readline())
    experiment = experiment_named(asked["experiment"])
    settings = experiment.settle(
        {name: tuple(v) if isinstance(v, list) else v for name, v in asked["settings"].items()}
    )
    jobs = {job.key: job for job in experiment.module().jobs(settings, asked["model"])}
    last = 0.0

    def put(told: StepSeen | JobDone) -> None:
        sink.write(to_line(to_plain(told, strict=True)).encode() + b"\n")

    for line in sys.stdin:
        job = jobs[json.loads(line)["job"]]

        def see(step: int, steps: int, value: float | None = None, job: Job = job) -> None:
            nonlocal last
            if time.monotonic() - last >= _PAUSE or step == steps:
                last = time.monotonic()
                put(StepSeen(job.key, step, steps, value))

        put(run_job(job, see))


if __name__ == "__main__":
    _help()
