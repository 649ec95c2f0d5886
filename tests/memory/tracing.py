"""Traces for tests, made in a process of their own, because a trace changes torch for the rest of
its process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

from qtui_core.child_environment import child_environment
from qtui_core.errors import QtuiError
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Recording

_CHILD = """
import os, pickle, sys
answer = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
from qtui_core.errors import QtuiError
from qtui_core.memory.plan.run_plan import resolve_for
from qtui_core.memory.shape.description import stored_as
from qtui_core.training.tracing.trace import record
results = []
for config, plan, settings in pickle.load(sys.stdin.buffer):
    try:
        results.append(record(config, resolve_for(stored_as(config), plan), **settings))
    except QtuiError as error:
        results.append(error)
pickle.dump(results, answer)
"""

#: A configuration, a plan, and more arguments of `qtui_core.training.tracing.trace.record`.
Case = tuple[dict[str, Any], RunPlan, dict[str, Any]]


def traced(*cases: Case) -> list[Recording]:
    """The recording of each case, all from one process. Raises what a case raised."""
    results = traced_or_refused(*cases)
    for result in results:
        if isinstance(result, QtuiError):
            raise result
    return results  # type: ignore[return-value]


def traced_or_refused(*cases: Case) -> list[Recording | QtuiError]:
    """The recording of each case, or the error it raised."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD],
        input=pickle.dumps(cases),
        capture_output=True,
        env=child_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    results: list[Recording | QtuiError] = pickle.loads(done.stdout)
    return results
