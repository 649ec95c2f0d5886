"""The child process of a run: what it reads and writes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from subprocess import PIPE
from typing import Any

import pytest
from training_runs import CHILD, WORKER, configured, finished, hear_until, piped, say, started

from qtui_core.live.snapshot import (
    End,
    Fault,
    LogMessage,
    PhaseBegun,
    State,
    StepTaken,
)
from qtui_core.live.state import from_line

pytestmark = pytest.mark.slow

SMALL = {"method": "lora", "batch": 1, "sequence": 32}


def test_a_child_gives_signs_of_life_before_it_tells_anything():
    with subprocess.Popen(WORKER, stdin=PIPE, stdout=PIPE, env=CHILD) as child:
        line = child.stdout.readline()
        child.kill()
    assert from_line(line) is None, line  # no line of a recording
    assert json.loads(line) == {"told": "alive"}


@pytest.mark.parametrize(
    ("asked", "code", "word"),
    [
        ("no json\n", 2, "JSON"),
        ('{"model": "demo", "plan": {"kernels": "fused", "kbit_prep": "none"}}\n', 2, "Unsloth"),
        ('{"model": "/there/is/nothing", "plan": {}}\n', 3, "nothing"),
        ('{"model": "demo", "plan": {}, "device": "cuda:0"}\n', 4, "GPU"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(asked, code, word):
    if code == 4:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    ran = piped(asked)
    assert ran.code == code, ran.log
    assert "Traceback" not in ran.log
    assert word in ran.fault.text
    assert isinstance(ran.events[-1], End)
    assert ran.events[-1].reason == "failed"


def test_it_stops_in_the_middle_of_a_step():
    """Steps take seconds, and the child does not wait for the end of one."""
    plan = {"method": "full", "batch": 16, "sequence": 1024}
    process = started({"model": "demo", "plan": plan, "steps": None})
    told = hear_until(process, PhaseBegun, 4)  # import, load, prepare, forward
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    ran = finished(process, told)
    assert not any(isinstance(each, StepTaken) for each in ran.events)
    assert (ran.code, ran.events[-1].reason) == (130, "failed")  # nobody who watches sends one
    assert (ran.fault.kind, ran.fault.step) == ("killed", 1)
    assert ran.fault.text.startswith("SIGINT ended the run in step 1, forward: ")


def test_controls_hold_it_and_let_it_go_on(tmp_path):
    """Four GPUs of a plan are one to a run, and it says so."""
    plan = SMALL | {"gpus": 4, "zero": 3}
    process = started({"model": configured(tmp_path), "plan": plan, "steps": 200})
    told = hear_until(process, StepTaken)
    header: Any = told[0]
    assert (header.plan["gpus"], header.plan["zero"]) == (1, 0)
    assert any("4 GPUs" in said.text for said in told if isinstance(said, LogMessage))
    say(process, "pause")
    told += hear_until(process, State)
    taken = sum(isinstance(each, StepTaken) for each in told)
    for _ in range(2):
        say(process, "step")
        told += hear_until(process, State, 2)  # running, paused
    assert sum(isinstance(each, StepTaken) for each in told) == taken + 2
    say(process, "resume")
    told += hear_until(process, StepTaken, 3)
    say(process, "stop")
    ran = finished(process, told)
    assert ran.code == 0
    assert ran.events[-1].reason == "stopped"


def test_nobody_listens_and_it_ends(tmp_path):
    process = started({"model": configured(tmp_path), "plan": SMALL, "steps": None})
    hear_until(process, StepTaken)
    process.stdout.close()
    assert process.wait(120) == 1


def test_a_reader_that_does_not_read_is_not_waited_for(tmp_path):
    process = started({"model": configured(tmp_path), "plan": SMALL, "steps": None})
    hear_until(process, StepTaken)
    time.sleep(3)  # samples fill the pipe, and the run waits in the middle of a line
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 130


def test_a_file_that_is_gone_is_a_fault_of_the_model(tmp_path):
    from qtui_core.models.demo import DEMO_FOLDER

    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((DEMO_FOLDER / name).read_bytes())
    process = started({"model": str(tmp_path), "plan": SMALL, "steps": 3})
    told = hear_until(process, PhaseBegun)
    os.remove(tmp_path / "model.safetensors")
    ran = finished(process, told)
    assert ran.code == 3, ran.log
    assert isinstance(ran.fault, Fault)
    assert ran.fault.kind == "model"
