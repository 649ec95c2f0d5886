"""Makes a profile of a GPU. One process measures the memory that a process takes besides its
tensors; a few real steps, each in a process of its own, show how much it is in a run. Imports no
torch."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from qtui.engine.run.client import WORKER, run_client
from qtui_core.codec import from_plain
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, error_of
from qtui_core.extras import EXTRAS, installed_version, require
from qtui_core.live.state import RunState, after, measured
from qtui_core.memory.devices.profile import MeasuredStep, Profile
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.telemetry.readings import read_driver
from qtui_core.threads import child_environment
from qtui_core.training.measuring.calibration import GpuMeasurement
from qtui_core.training.run.placement import NoGpu, place
from qtui_core.training.run.request import RunRequest

#: The process that measures a GPU without a run.
MEASURE: Final = (sys.executable, "-P", "-m", "qtui.engine.calibration.worker")
#: Seconds for all measurements together, so that a profile takes less than two minutes.
BUDGET: Final = 110.0
#: Steps of a run. From the second one on, memory is the same.
STEPS: Final = 3
#: The last lines of a failed process's output that are shown.
_LINES: Final = 3
_LIBRARIES: Final = ("torch", "transformers", "peft", "bitsandbytes", "nvidia-ml-py")

#: The model of all runs: 162 million parameters with random values.
CONFIG: Final[Mapping[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
#: The most informative plan comes first, because time may run out.
GRID: Final = (
    ("qlora, 2 x 512", RunPlan(method="qlora", batch=2, sequence=512)),
    ("full, 2 x 512", RunPlan(method="full", batch=2, sequence=512)),
    ("lora, 2 x 512", RunPlan(method="lora", batch=2, sequence=512)),
    ("full, 8 x 512, checkpointing",
     RunPlan(method="full", batch=8, sequence=512, checkpointing=True)),
)  # fmt: skip

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Commands:
    """The commands of the processes that measure, and their seconds in all. Tests replace them."""

    measure: Sequence[str] = MEASURE
    run: Sequence[str] = WORKER
    budget: float = BUDGET


def make_profile(
    device: str, tell: Tell, commands: Commands | None = None, *, steps: bool = True
) -> Profile:
    """The profile of a GPU ("cuda" or "cuda:1"). `tell` is called with a sentence before each part;
    without `steps` no real step is run. A failed step is recorded in its row, and the others
    still run.

    Raises MissingLibrary if torch or another library of a run is not installed, NoGpu if there is
    no GPU, QtuiError if the GPU cannot be measured.
    """
    commands = commands or Commands()
    began = time.monotonic()
    require("A calibration", *EXTRAS["torch"])
    try:
        placement = place(device, os.environ)
    except NoGpu as error:
        # The advice to use the CPU is for runs; here it is cut off.
        why = str(error).partition(" Use --device")[0]
        raise NoGpu(f"{why} Only a GPU has a profile, so there is nothing to calibrate.") from error
    tell(f"measuring {placement.device.name}: context, workspaces, allocator")
    answer = _ask([*commands.measure, device], commands.budget)
    found, facts = answer.found, answer.facts
    if found is None or facts is None:
        raise QtuiError("The process that measures the GPU reported nothing about it.")
    rows: list[MeasuredStep] = []
    if steps:
        with _model() as model:
            for name, plan in GRID:
                left = commands.budget - (time.monotonic() - began)
                tell(f"running {STEPS} steps: {name}")
                rows.append(asyncio.run(_step(name, plan, model, device, commands.run, left)))
    driver = read_driver()
    return Profile(
        device=facts.name,
        made=datetime.now().astimezone().isoformat(timespec="seconds"),
        driver=None if driver is None else driver.version,
        versions={name: version for name in _LIBRARIES if (version := installed_version(name))},
        total_memory=facts.total_memory,
        capability=facts.capability,
        steps=tuple(rows),
        **vars(found),
    )


def _ask(command: Sequence[str], seconds: float) -> GpuMeasurement:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=child_environment(),
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise QtuiError(
            f"The GPU was not measured within {seconds:.0f} s; is another program using it?"
        ) from error
    if done.returncode or not done.stdout.strip():
        last = " ".join(done.stderr.strip().splitlines()[-_LINES:]) or "it printed nothing"
        raise QtuiError(f"The measurement ended with code {done.returncode}: {last}")
    answer = from_plain(GpuMeasurement, json.loads(done.stdout))
    if answer.error:
        raise error_of(answer.error, answer.code, NoGpu)
    return answer


@contextmanager
def _model() -> Iterator[str]:
    """A temporary folder with only a config.json; a run gives such a model random weights."""
    with tempfile.TemporaryDirectory(prefix="qtui-calibrate-") as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(CONFIG), encoding="utf-8")
        yield str(path)


async def _step(
    name: str, plan: RunPlan, model: str, device: str, command: Sequence[str], seconds: float
) -> MeasuredStep:
    """Runs a few steps of a plan within `seconds`."""
    if seconds <= 0:
        return MeasuredStep(name, failure="There was no time left for it.")
    request = RunRequest(model, plan, STEPS, device=device)
    state = RunState()
    try:
        async with asyncio.timeout(seconds):
            async for event in run_client(command).run(request):
                state = after(state, event)
    except TimeoutError:
        return MeasuredStep(name, failure="It was not done in time.")
    return row_of(name, state)


def row_of(name: str, state: RunState) -> MeasuredStep:
    """The row of the profile for a run that has ended."""
    if state.status != "done" or state.header is None:
        fault = state.fault.text if state.fault is not None else "The run reported nothing."
        return MeasuredStep(name, failure=fault)
    predicted, found = state.header.predicted, measured(state)
    return MeasuredStep(
        name,
        None if predicted is None else predicted.peak_allocated_bytes,
        None if found.peak is None else found.peak.peak_allocated_bytes,
        None if predicted is None else predicted.peak_reserved_bytes,
        found.peak_reserved_bytes,
        None if predicted is None else predicted.process_bytes,
        found.process_bytes,
        found.context_bytes,
        found.step_seconds,
    )
