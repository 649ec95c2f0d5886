"""Traces for tests, made in processes of their own, because a trace changes torch for the rest of
its process.

The processes are kept until the tests end: importing torch, transformers, peft and bitsandbytes
takes as long as ten traces.
"""

from __future__ import annotations

import atexit
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import Any

from qtui_core.errors import QtuiError
from qtui_core.memory.plan.run_plan import RunPlan, Stored
from qtui_core.memory.replay.record import Recording
from qtui_core.memory.shape.config_reader import Config, stored_dtype
from qtui_core.memory.shape.packings import packing_of
from qtui_core.threads import child_environment

_RUN = Path(__file__).with_name("tracing_run.py")

#: A configuration, a plan, and more arguments of `qtui_core.training.tracing.trace.record`.
Case = tuple[dict[str, Any], RunPlan, dict[str, Any]]


class TracingProcess:
    """A process that answers the questions of tracing_run.py, one after the other. It ends when its
    stdin does, which is when the process of the tests ends."""

    def __init__(self) -> None:
        self._errors = TemporaryFile("w+")  # noqa: SIM115 (until the end)
        self._one_at_a_time = Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(_RUN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Classes go through sets of names (Gemma 3 and 4: kinds of layers), in this order.
            env={**child_environment(), "PYTHONHASHSEED": "0"},
        )
        atexit.register(self._process.communicate)

    def ask(self, question: str, *about: Any) -> Any:
        """The answer of the function of that name. Raises RuntimeError if the process ended."""
        asked, answers = self._process.stdin, self._process.stdout
        with self._one_at_a_time:
            try:
                pickle.dump((question, about), asked)
                asked.flush()
                return pickle.load(answers)
            except (EOFError, BrokenPipeError) as error:
                self._errors.seek(0)
                said = self._errors.read()[-3000:]
                raise RuntimeError(f"{question} of {about} ended the process: {said}") from error


@cache
def tracing_process(device: str, number: int) -> TracingProcess:
    """One of the processes of this session that trace steps of a device. Fake tensors of "cuda" and
    real steps on the "cpu" are never traced in the same process."""
    return TracingProcess()


def traced(*cases: Case) -> list[Recording]:
    """The recording of each case. Raises what a case raised."""
    results = traced_or_refused(*cases)
    for result in results:
        if isinstance(result, QtuiError):
            raise result
    return results


def traced_or_refused(*cases: Case) -> list[Recording | QtuiError]:
    """The recording of each case, or the error it raised."""
    return [tracing_process("cuda", 0).ask("recorded", *case) for case in cases]


def stored_as(config: dict[str, Any]) -> Stored:
    """How a checkpoint of any family is stored, from its config.json alone."""
    packing = packing_of(config)
    return Stored(stored_dtype(Config(config)), None if packing is None else packing.quant)
