"""Runs the parts of an experiment in this process and a second one, and concludes after each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Final

import torch

from qtui_core.codec import CodecError, from_plain, to_line, to_plain
from qtui_core.errors import QtuiError, memory_ran_out
from qtui_core.extras import installed_version
from qtui_core.job import Job
from qtui_core.lab.catalog import Experiment, experiment_named
from qtui_core.lab.results import JobDone, LabBegun, LabEvent, LabPart, LabResult, StepProgress
from qtui_core.lab.training.tasks import check_subject, use_device
from qtui_core.telemetry.machine import more_memory
from qtui_core.threads import child_environment, thread_limit

Tell = Callable[[LabEvent], None]

#: The libraries that affect the figures: their versions are reported.
_LIBRARIES: Final = ("torch", "transformers", "torchao", "bitsandbytes")
#: Less work than this, in seconds, is not worth a second process, which must import torch first.
_ALONE: Final = 8.0
#: How many threads PyTorch uses by default in a single process; OMP_NUM_THREADS limits them.
_THREADS: Final = torch.get_num_threads()
#: The exit code of a failure that is not a QtuiError.
_FAILED: Final = 1
#: Seconds between two reported steps.
_PAUSE: Final = 0.1
#: How the fault of a job begins for which there was not enough memory.
_RAN_OUT: Final = "Memory ran out. "


class LabRunner:
    """Runs the parts of an experiment that are not `done`, and passes reports to `tell`: first
    LabBegun, then StepProgress and JobDone, and after each part the findings so far as a LabResult.

    `check` is called between steps and raises an exception to stop the run; that exception must not
    be derived from Exception. If a part fails, its outcome is a fault, and the others go on.

    Raises UsageError for settings that contradict each other and for a text that cannot be read,
    ModelError for a model that does not exist.
    """

    def __init__(
        self,
        experiment: Experiment,
        settings: Mapping[str, Any],
        model: str,
        tell: Tell,
        check: Callable[[], None],
        done: Iterable[JobDone] = (),
    ) -> None:
        self._given = experiment, settings, model
        self._call, self._check, self._lock = tell, check, threading.RLock()
        check_subject(model, settings.get("text"))
        self._module, self._parts = _prepared(experiment, settings, model)
        self._done = {event.job: event for event in done if self._holds(event)}
        left = [part for key, part in self._parts.items() if key not in self._done]
        self._waiting = sorted(left, key=lambda part: -part.cost)
        self._second: _SecondProcess | None = None
        self._lost = ""
        self._began = time.perf_counter()

    def _holds(self, event: JobDone) -> bool:
        """Whether a recorded part is one of this experiment with an outcome that can be read."""
        with suppress(CodecError, KeyError):
            from_plain(self._parts[event.job].outcome, event.outcome)
            return not event.fault
        return False

    def run(self, processes: int | None = None) -> LabResult:
        """Runs the parts that are left and returns the last result, which is not passed to `tell`.
        `processes` is 1 or 2; None uses two if there are enough cores and work.

        Each process then has one thread, which decides the order of sums: so that a run that goes
        on computes the same bits, the threads are those that the whole experiment takes."""
        experiment, settings, model = self._given
        work, whole = (
            sum(part.cost for part in parts) for parts in (self._waiting, self._parts.values())
        )
        several = processes != 1
        if processes is None:
            on_gpu = settings.get("device") == "cuda"  # which one process fills
            several = thread_limit() > 1 and len(self._parts) > 1 and whole > _ALONE and not on_gpu
            processes = 2 if several and len(self._waiting) > 1 and work > _ALONE else 1
        torch.set_num_threads(1 if several else _THREADS)
        about = experiment.name, experiment.question, model, settings
        self._tell(LabBegun(*about, tuple(self._parts), work / processes, versions()))
        for event in self._done.values():
            self._tell(event)
        try:
            if processes > 1:
                self._second = _SecondProcess(*self._given)
                beside = threading.Thread(target=self._feed, args=(self._second,), daemon=True)
                beside.start()
            self._work()
            while processes > 1 and beside.is_alive():
                self._check()
                beside.join(0.1)
        finally:
            self.abandon()
        self._work()  # If the second process ended early, its part is in the list again.
        return self.result("done")

    def abandon(self) -> None:
        """Ends the second process. Call it if an exception leaves `run`."""
        if self._second is not None:
            self._second.end()

    def pause(self, paused: bool) -> None:
        """Pauses the second process or lets it go on. This process is paused by `check`."""
        if self._second is not None:
            self._second.pause(paused)

    def result(self, ended: str = "") -> LabResult:
        """The findings from the finished jobs. `ended` is "done" or "stopped", or "" for a run that
        goes on; if nothing can be said because jobs failed, the result says "failed". May be called
        from any thread."""
        with self._lock:
            done = dict(self._done)
        experiment, settings, model = self._given
        outcomes: dict[str, Any] = {}
        faults: dict[str, list[str]] = {}
        for key, event in done.items():
            if event.fault:
                faults.setdefault(event.fault, []).append(key)
            else:
                outcomes[key] = from_plain(self._parts[key].outcome, event.outcome)
        made = self._module.conclude(settings, outcomes)
        notes = [*made.notes, *(f"{', '.join(keys)}: {fault}" for fault, keys in faults.items())]
        if self._lost:
            notes.append(f"The second process {self._lost}, so the first one did its parts.")
        failed = ended == "done" and bool(faults) and not (made.verdict and outcomes)
        return LabResult(
            experiment.name,
            experiment.question,
            model,
            settings,
            tuple(settings.get("seeds", ())),
            time.perf_counter() - self._began,
            versions(),
            *(len(self._parts), len(outcomes)),
            replace(made, notes=tuple(notes)),
            "failed" if failed else ended,
            next(iter(faults)) if failed else "",
        )

    def exit_code(self, result: LabResult) -> int:
        """The exit code of a command: that of the first fault if the experiment failed, otherwise
        0."""
        codes = (event.code or _FAILED for event in list(self._done.values()) if event.fault)
        return next(codes) if result.ended == "failed" else 0

    def _tell(self, event: LabEvent) -> None:
        with self._lock:
            self._call(event)

    def _work(self) -> None:
        while (part := self._next()) is not None:
            self._finish(run_part(part, self._tell, self._check))

    def _next(self) -> LabPart | None:
        with self._lock:
            return self._waiting.pop(0) if self._waiting else None

    def _finish(self, event: JobDone) -> None:
        with self._lock:
            self._done[event.job] = event
            self._tell(event)
            if len(self._done) < len(self._parts):
                self._tell(self.result())

    def _feed(self, second: _SecondProcess) -> None:
        """Passes parts to the second process until none are left, or until it has ended or has no
        memory: alone, this process may have enough."""
        while (part := self._next()) is not None:
            lost = ""
            try:
                event = second.run(part, self._tell)
                if event.fault.startswith(_RAN_OUT):
                    lost = "ran out of memory"
            except (OSError, ValueError, CodecError):
                lost = second.how_it_ended()
            if lost:
                with self._lock:
                    self._waiting.append(part)
                    self._lost = "" if second.over else lost
                break
            self._finish(event)
        second.end()


def _prepared(
    experiment: Experiment, settings: Mapping[str, Any], model: str
) -> tuple[Any, dict[str, LabPart]]:
    """The module of an experiment and its parts, on the device of the settings."""
    use_device(str(settings.get("device", "cpu")))
    module = experiment.module()
    return module, {part.key: part for part in module.jobs(settings, model)}


def run_part(
    part: LabPart, tell: Callable[[StepProgress], None], check: Callable[[], None]
) -> JobDone:
    """Runs a part. An exception becomes the fault of its JobDone, except what `check` raises to
    stop the run, which is not derived from Exception. Steps are told with a pause between, and the
    last one."""
    began, last, outcome, fault, code = time.perf_counter(), 0.0, None, "", 0

    def report(step: float, steps: float, value: str) -> None:
        nonlocal last
        check()
        if time.monotonic() - last >= _PAUSE or step == steps:
            last = time.monotonic()
            now = float(value) if value else None
            tell(StepProgress(part.key, int(step), int(steps), now))

    try:
        outcome = to_plain(part.run(Job(report)), strict=True)
    except QtuiError as error:
        fault, code = str(error), error.exit_code
    except Exception as error:  # a library can raise anything on a model
        traceback.print_exc()
        first = (str(error).strip().splitlines() or ["without a word"])[0][:400]
        fault = f"It cannot be run here: {first.rstrip('.')} ({type(error).__name__})."
        fault, code = f"{_RAN_OUT}{more_memory()}" if memory_ran_out(error) else fault, _FAILED
    return JobDone(part.key, outcome, time.perf_counter() - began, fault, code)


class _SecondProcess:
    """`python -m qtui_core.lab.runner`, which receives one line for each job. `over` says that it
    is no longer wanted."""

    def __init__(self, experiment: Experiment, settings: Mapping[str, Any], model: str) -> None:
        self.over = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "qtui_core.lab.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
        )
        self._ask([experiment.name, settings, model])

    def run(self, part: LabPart, tell: Callable[[StepProgress], None]) -> JobDone:
        """Runs a part there. Raises OSError or ValueError if the process has ended."""
        self._ask(part.key)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if "outcome" in event:
                return from_plain(JobDone, event)
            tell(from_plain(StepProgress, event))
        raise OSError("the process is gone")

    def how_it_ended(self) -> str:
        """What happened to it, in words that follow "The second process"."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.returncode
        if code == -signal.SIGKILL:
            return "was killed, which is most often the system running out of memory"
        return "ended" if code is None else f"ended with exit code {code}"

    def pause(self, paused: bool) -> None:
        self._process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def end(self) -> None:
        self.over = True
        self._process.kill()
        self._process.wait()

    def _ask(self, request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(to_line(to_plain(request)).encode() + b"\n")
        self._process.stdin.flush()


@cache
def versions() -> dict[str, str]:
    """The versions of Python and of the installed libraries that affect the figures."""
    installed = {name: installed_version(name) for name in _LIBRARIES}
    known = {name: version for name, version in installed.items() if version is not None}
    return {"python": ".".join(map(str, sys.version_info[:3]))} | known


def _second() -> None:
    """The main program of the second process: reads jobs from stdin and writes outcomes to the
    original stdout. It ends with the process that began it, at the next step."""
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print must not mix with the outcomes
    torch.set_num_threads(1)
    first = os.getppid()

    def put(event: StepProgress | JobDone) -> None:
        sink.write(to_line(to_plain(event, strict=True)).encode() + b"\n")

    def check() -> None:
        if os.getppid() != first:
            os._exit(0)

    name, given, model = json.loads(sys.stdin.readline())
    experiment = experiment_named(name)
    _, parts = _prepared(experiment, experiment.settle(given), model)
    for line in sys.stdin:
        put(run_part(parts[json.loads(line)], put, check))


if __name__ == "__main__":
    _second()
