"""A trace in a process of its own: `python -m qtui.engine.estimator.tracing PID`.

Reads {"config", "plan"} as JSON from stdin. Writes lines of JSON to the stdout with which it
started: words that say what it is doing, then {"events", "origin"}, or {"error", "code"} with a
sentence and its exit code; what libraries print goes to
stderr. A trace changes torch for the whole process, so it has a process of its own. PID is the
process that asked; when that ends, this one ends too.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from qtui_core.errors import QtuiError
from qtui_core.extras import EXTRAS, require
from qtui_core.job import Job
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import written

#: Seconds between two checks whether the process that asked still runs.
_LOOK_SECONDS = 1.0


def main() -> None:
    """One trace."""
    # PID is an argument and not os.getppid(): the parent may have ended before this line.
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answer:

        def tell(doing: str) -> None:
            print(json.dumps(doing), file=answer, flush=True)

        print(json.dumps(_trace(json.load(sys.stdin), tell)), file=answer)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _trace(asked: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    fields = asked["plan"]
    plan = RunPlan(**{**fields, "lora_targets": tuple(fields["lora_targets"])})
    try:
        require("A trace", *EXTRAS["torch"])
        from qtui_core.training.tracing.trace import record

        job = Job(lambda done, total, words: tell(words))
        recording = record(asked["config"], plan, job=job)
    except QtuiError as error:
        return {"error": str(error), "code": error.exit_code}
    return written(recording)


if __name__ == "__main__":
    main()
