"""A child that writes the events of a made-up run, in place of qtui.engine.run.worker. The name of
the requested model chooses its behaviour, or $SCRIPT if that is a real model."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from live_runs import ON_CPU, run

from qtui_core.live.snapshot import End, Fault, LogMessage, PhaseBegun, State, StepTaken
from qtui_core.live.state import to_line


def tell(event) -> None:
    print(to_line(event), flush=True)


def end(*events, code: int = 0) -> NoReturn:
    for event in events:
        tell(event)
    sys.exit(code)


def controls(seconds: float) -> list[str]:
    """What was received within `seconds`; "stop" if stdin has ended."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return []
    line = sys.stdin.readline()
    return [json.loads(line)["control"]] if line else ["stop"]


def begin(asked) -> None:
    tell(replace(ON_CPU, model=asked["model"], steps=asked["steps"], plan=asked["plan"]))
    tell(PhaseBegun(0.0, 1, "forward"))


def whole(asked) -> None:
    for event in run(asked["steps"] or 2, gpu=False):
        tell(replace(event, plan=asked["plan"]) if event == ON_CPU else event)


def until_stopped(asked) -> None:
    begin(asked)
    step, paused = 0, False
    while True:
        for control in controls(0.02):
            if control == "stop":
                end(End(1.0, "stopped"))
            if control in ("pause", "resume"):
                paused = control == "pause"
                tell(State(1.0, "paused" if paused else "running"))
        if not paused:
            step += 1
            tell(StepTaken(0.1 * step, step, 5.0, 0.1, 8))


def steady(asked) -> None:
    """Steps as fast as those of a small model, with more output than a pipe holds. Ends by itself
    even if nobody reads."""
    begin(asked)
    for step in range(1, asked["steps"] + 1):
        for part in range(15):
            time.sleep(0.01)
            tell(LogMessage(0.15 * step, f"step {step}.{part} " + "as it was " * 200))
        tell(StepTaken(0.15 * step, step, 5.0 - 0.01 * step, 0.15, 8))
    tell(End(0.15 * asked["steps"], "done"))


def deaf(asked) -> None:
    """Ignores all controls, and has a child of its own that keeps its output open."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begin(asked)
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    tell(LogMessage(0.5, str(helper.pid)))
    time.sleep(600)


def killed(asked) -> None:
    begin(asked)
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def nonsense(asked) -> None:
    begin(asked)
    print("Loading: 100%", flush=True)
    print('{"told": "weather"}', flush=True)
    tell(End(1.0, "done"))


def first_step() -> list:
    """The events of a run up to its first step."""
    return [event for event in run(1, gpu=False) if not isinstance(event, End)]


def ended_by_somebody(asked) -> None:
    """Ends as the training process does after a signal."""
    header, *others = first_step()
    told = (replace(header, steps=400), *others, PhaseBegun(9.0, 2, "forward"))
    text = "SIGTERM ended the run in step 2, forward."
    end(*told, Fault(9.1, 2, "forward", "killed", text), End(9.2, "failed"), code=130)


def stopped_by_itself(asked) -> None:
    begin(asked)
    tell(End(9.2, "stopped"))


def no_model(asked) -> None:
    print("qtui: There is no such model.", file=sys.stderr)
    fault = Fault(0.0, 0, "", "model", "There is no such model.")
    end(fault, End(0.0, "failed"), code=3)


def out_of_memory(asked) -> None:
    fault = Fault(
        9.1, 2, "loss", "out of memory",
        "Memory ran out in the loss phase of step 2.",
        asked_bytes=1 << 30,
        largest=(("weights", 40 << 20), ("activations", 30 << 20)),
        advice=(("--batch 1", 10 << 20),),
    )  # fmt: skip
    end(*first_step(), PhaseBegun(9.0, 2, "loss"), fault, End(9.2, "failed"), code=1)


def does_not_fit(asked) -> None:
    first, *others = run(1, gpu=False)
    warning = "This run will not fit. The largest batch that fits is 3: --batch 3."
    predicted = replace(first.predicted, warning=warning)
    end(replace(first, predicted=predicted), LogMessage(0.0, warning), *others)


def takes_from_others(asked) -> None:
    """Begins only if it may take memory that other processes need."""
    if asked["taking"]:
        whole(asked)
    else:
        end(Fault(0.0, 0, "", "not begun", "This run may not fit."), End(0.0, "failed"), code=1)


def not_a_number(asked) -> None:
    for event in run(2, gpu=False):
        if isinstance(event, StepTaken) and event.step == 2:
            event = replace(event, loss=float("nan"))
            tell(Fault(event.seconds, 2, "loss", "not a number", "The loss is NaN.", fatal=False))
        tell(event)


def gone_without_a_word(asked) -> None:
    sys.exit(5)


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    path = Path(os.environ["ASKED"]) if "ASKED" in os.environ else None
    if path is not None:
        path.write_text(json.dumps(asked))
    globals()[os.environ.get("SCRIPT", asked["model"])](asked)


if __name__ == "__main__":
    main()
