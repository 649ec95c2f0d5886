"""Runs for tests: in this process, or as the child that `qtui train` starts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtui_core.live.snapshot import Fault, PhaseBegun, PhaseEnded, Snapshot, StepTaken
from qtui_core.live.state import RunEvent, from_line
from qtui_core.memory.advice.fit import Advice
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.models import open_model
from qtui_core.threads import child_environment
from qtui_core.training.run.placement import Order, place
from qtui_core.training.run.request import Controls

LLAMA = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}

#: One thread: on a machine where others work too, several wait for each other most of the time.
CHILD = child_environment() | {"OMP_NUM_THREADS": "1"}
WORKER = [sys.executable, "-P", "-m", "qtui.engine.run.worker"]


@dataclass(frozen=True)
class Ran:
    """The reports of a run, and its exit code."""

    events: tuple[RunEvent, ...]
    code: int
    log: str = ""

    def of(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.events if isinstance(each, kind)]

    @property
    def losses(self) -> list[float | None]:
        return [step.loss for step in self.of(StepTaken)]

    @property
    def fault(self) -> Fault:
        (fault,) = self.of(Fault)
        return fault

    @property
    def phases(self) -> list[tuple[int, str]]:
        return [(each.step, each.phase) for each in self.of(PhaseBegun)]

    def ended(self, phase: str, step: int) -> PhaseEnded:
        return next(e for e in self.of(PhaseEnded) if (e.phase, e.step) == (phase, step))


def conducted(
    model: str,
    plan: dict[str, Any],
    steps: int,
    *,
    controls: Controls | None = None,
    data: str | None = None,
    text: str | None = None,
    advice: tuple[Advice, ...] = (),
    heard: Callable[[Snapshot], None] = lambda _: None,
) -> Ran:
    """A run on the CPU in this process."""
    import torch

    from qtui_core.training.run.live import run_to_end

    torch.manual_seed(0)
    events: list[Snapshot] = []

    def tell(snapshot: Snapshot) -> None:
        events.append(snapshot)
        heard(snapshot)

    with open_model(model) as source:
        resolved = resolve(RunPlan(**plan), source.config.get("dtype") or "bf16")
        order = Order(resolved, place("cpu", {}), steps, data, text)
        controls = controls or Controls()
        code = run_to_end(source, order, tell, controls, time.perf_counter(), advice)
    return Ran(tuple(events), code)


def configured(folder: Path, **more: Any) -> str:
    """A bare config.json of a small Llama, which gets random weights."""
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA | more))
    return str(path)


def started(request: dict[str, Any], command: list[str] | None = None) -> subprocess.Popen[bytes]:
    """The child, which received its request and still listens."""
    process = subprocess.Popen(
        command or WORKER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=CHILD,
    )
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return process


def say(process: subprocess.Popen[bytes], control: str) -> None:
    process.stdin.write(json.dumps({"control": control}).encode() + b"\n")
    process.stdin.flush()


def hear_until(process: subprocess.Popen[bytes], kind: type[Any], count: int = 1) -> list[RunEvent]:
    """The reports of the child, up to the `count`-th of a kind."""
    events: list[RunEvent] = []
    while sum(isinstance(each, kind) for each in events) < count:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read().decode()[-3000:]
        each = from_line(line)
        if each is not None:  # a sign of life
            events.append(each)
    return events


def finished(process: subprocess.Popen[bytes], events: list[RunEvent] | None = None) -> Ran:
    """The remaining reports of a child, and how it ended."""
    # Not `communicate`, which closes stdin: that means stop.
    assert process.stdout is not None
    rest = [from_line(line) for line in process.stdout]
    code = process.wait(120)
    log = process.stderr.read().decode()
    return Ran((*(events or []), *(each for each in rest if each is not None)), code, log)


def piped(line: str) -> Ran:
    """A child whose stdin has one line and then ends."""
    done = subprocess.run(
        WORKER, input=line.encode(), capture_output=True, env=CHILD, check=False, timeout=300
    )
    events = [from_line(each) for each in done.stdout.splitlines()]
    return Ran(tuple(t for t in events if t is not None), done.returncode, done.stderr.decode())
