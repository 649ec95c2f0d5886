"""A child that writes the events of a made-up experiment, in place of qtui.engine.lab.worker.

`python scripted_lab.py MODE`: "all" writes all events; "half" writes the first of two parts and
waits for a control ("resume" continues, "stop" ends there); "fault" cannot begin, and "late" cannot
go on after the first part; "die" ends in the middle without a last event.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

from lab_findings import result

from qtui_core.lab.recording import LAB_LINES
from qtui_core.lab.results import JobDone, LabBegun, LabEvent, LabFault, StepProgress


def events(settings: dict[str, object], model: str = "demo") -> list[LabEvent]:
    """The events of the experiment, in order."""
    done = result(settings=settings, model=model, jobs=2, done=2)
    first = replace(done, done=1, ended="")
    return [
        LabBegun(done.experiment, done.question, model, settings, ("fp32", "bf16"), 30.0),
        StepProgress("fp32", 20, 40, 1.5),
        StepProgress("fp32", 40, 40, 1.25),
        JobDone("fp32", [1.25], 10.0),
        first,
        StepProgress("bf16", 10, 40, 1.5),
        JobDone("bf16", [1.375], 10.0),
        done,
    ]


def main(mode: str) -> None:
    """Writes the events to stdout."""
    line = sys.stdin.readline()
    if "warm" in line:
        line = sys.stdin.readline()
    if not line:
        return
    asked = json.loads(line)
    every = events(asked["settings"], asked["model"])
    skipped = {each["job"] for each in asked["done"]}
    if mode == "fault":
        put(LabFault("The model has no linear layers."))
        return
    count = len(every) if mode == "all" else 6
    for each in every[:count]:
        if getattr(each, "job", None) not in skipped or isinstance(each, JobDone):
            put(each)
    if mode == "late":
        put(LabFault("The disk is full."))
        sys.exit(3)
    if mode == "die":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(3)
    while mode == "half" and (line := sys.stdin.readline()):
        control = json.loads(line)["control"]
        if control == "resume":
            for each in every[count:]:
                put(each)
            return
        if control == "stop":
            put(replace(result(settings=asked["settings"], jobs=2, done=1), ended="stopped"))
            return


def put(event: LabEvent) -> None:
    print(LAB_LINES.to_line(event), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
