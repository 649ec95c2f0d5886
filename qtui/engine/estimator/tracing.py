"""A trace in a process of its own: `python -m qtui.engine.estimator.tracing PID`.

Reads {"config", "plan"} as JSON from stdin. Writes {"events", "origin"}, or {"error", "code"} with
a sentence and its exit code, to the stdout with which it started; what libraries print goes to
stderr. A trace changes torch for the whole process, so it has a process of its own. PID is the
process that asked; when that ends, this one ends too.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from qtui_core.errors import QtuiError
from qtui_core.extras import EXTRAS, require
from qtui_core.memory.formulas.size import factors_of
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import ALLOCATE, Event, Label

#: Seconds between two checks whether the process that asked still runs.
_LOOK_SECONDS = 1.0


def main() -> None:
    """One trace."""
    # PID is an argument and not os.getppid(): the parent may have ended before this line.
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answer:
        json.dump(_trace(json.load(sys.stdin)), answer)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _trace(asked: dict[str, Any]) -> dict[str, Any]:
    fields = asked["plan"]
    plan = RunPlan(**{**fields, "lora_targets": tuple(fields["lora_targets"])})
    try:
        require("A trace", *EXTRAS["torch"])
        from qtui_core.training.tracing.trace import record

        recording = record(asked["config"], plan)
    except QtuiError as error:
        return {"error": str(error), "code": error.exit_code}
    return {"events": [_written(event) for event in recording.events], "origin": recording.origin}


def _written(event: Event) -> list[Any]:
    if event[0] != ALLOCATE:
        return list(event)
    label: Label = event[3]
    component = label.component and label.component.value
    return [*event[:3], label.what, component, factors_of(event[2])]


if __name__ == "__main__":
    main()
