"""Faults by state: what hurts a child in every phase of a run, and while every question is asked.

Each cell is a real child that hurts itself there (tests/support/faulty_worker.py). It has to end in
a sentence that is true and says what to do, in a recording that plays, in no process that is left,
and in an answer to the same question afterwards. docs/faults.md has the whole table.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from every import collected
from processes import family, is_gone

from qtui.cli.exits import Narrator
from qtui.cli.training_run import run_to_end
from qtui.engine.client import EngineClient, EngineLost
from qtui.engine.estimator import child as estimator
from qtui.engine.lab.client import lab_client
from qtui.engine.lab.request import LabRequest
from qtui.engine.operations import build_operations
from qtui.engine.run.client import run_client
from qtui_core.errors import QtuiError
from qtui_core.files import target_of
from qtui_core.lab.results import JobDone, LabEvent, LabResult
from qtui_core.live.snapshot import End, Fault, PhaseBegun, State, StepTaken
from qtui_core.live.state import RunEvent, read_recording, to_line
from qtui_core.models.demo import DEMO_FOLDER
from qtui_core.recorded_lines import Recorder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits are read of /proc"),
]

WORKER = (sys.executable, "-P", str(Path(__file__).parents[1] / "support/faulty_worker.py"))
KILLED = "was killed, which is most often the system running out of memory."
UNLIMITED = resource.RLIM_INFINITY, resource.RLIM_INFINITY
LIMITED = "(`ulimit -v`): raise it, and start qtui again."

#: Where in a run -> (the fault; the kind of the run's fault; what it says, in order; steps taken
#: before). A stopped process says nothing until somebody stops the run.
RUNS: dict[str, tuple[str, str, tuple[str, ...], int]] = {
    "0 load": ("no memory", "out of memory", ("Memory ran out in load", LIMITED), 0),
    "0 prepare": ("SIGSEGV", "killed", ("SIGSEGV, a mistake in a library", "'prepare'."), 0),
    "1 forward": ("no memory", "out of memory", ("Memory ran out in step 1, forward", LIMITED), 0),
    "2 loss": ("SIGABRT", "killed", ("The run aborted", "'loss'."), 1),
    "2 backward": ("SIGSTOP", "", (), 1),
    "paused": ("SIGKILL", "killed", (KILLED,), 1),
    "ending": ("SIGSTOP", "", (), 3),
}
#: Where a run is stopped, and what it told last, of which step.
SILENT = (("2 backward", PhaseBegun, 2), ("ending", StepTaken, 3))
#: After the last step: where, fault -> (the exit code of `qtui train`; what it says last on stderr;
#: how its recording ends).
AFTER: dict[tuple[str, str], tuple[int, str, str]] = {
    ("ending", "SIGKILL"): (1, f"The run {KILLED} It was in the phase 'between steps'.", "failed"),
    ("ending", "full disk"): (1, "ends here (File too large); the run goes on.", ""),
    ("ended", "SIGKILL"): (0, "step 3 of 3, ", "done"),
    ("ended", "SIGSTOP"): (0, "step 3 of 3, ", "done"),
}


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that tells a child what to do to itself."""
    monkeypatch.setenv("FAULT", str(tmp_path / "fault"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "fault"


async def test_a_run_that_is_hurt_in_any_phase_says_so_and_keeps_what_was_measured(fault, tmp_path):
    with collected() as case:
        for where, (what, kind, says, taken) in RUNS.items():
            with case(f"{what} at {where}"):
                fault.write_text(f"{where}\t{what}")
                path = tmp_path / f"{where}.jsonl"
                pid, events = await hurt_run(path, where)
                assert is_gone(pid)
                faults = [each for each in events if isinstance(each, Fault)]
                assert [each.kind for each in faults] == [kind] * bool(kind)
                text = faults[0].text if faults else ""
                places = [text.find(part) for part in says]
                assert -1 not in places, text
                assert places == sorted(places)
                steps = sum(isinstance(each, StepTaken) for each in events)
                # More may be taken until the child hears that it should pause.
                assert steps == taken or (where == "paused" and steps > taken)
                assert isinstance(events[-1], End)
                recording = read_recording(path)
                assert recording.complaint == ""
                assert list(recording)[1:] == events[1:]


async def hurt_run(path: Path, where: str) -> tuple[int, list[RunEvent]]:
    """Runs until the fault, and records it; returns the child's process id and what it told."""
    client = run_client((*WORKER, "run"))
    events: list[RunEvent] = []
    pid = 0
    plan = {"method": "lora", "batch": 4, "sequence": 256}
    with Recorder(target_of(str(path)), to_line) as recorder:
        # A run that is to pause must not end before it hears of it.
        asked = {"model": "demo", "plan": plan, "steps": 999 if where == "paused" else 3}
        async for event in client.run({**asked, "device": "cpu"}):
            events.append(event)
            recorder.write(event)
            pid = client.child.pid or pid
            if where == "paused" and isinstance(event, StepTaken):
                client.child.control("pause")
            elif where == "paused" and isinstance(event, State) and event.state == "paused":
                os.kill(pid, 9)
            elif (where, type(event), getattr(event, "step", 0)) in SILENT:
                asyncio.get_running_loop().call_later(1.0, client.child.stop)
    return pid, events


def test_what_happens_after_the_last_step_costs_no_step(fault, tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(Narrator, "say", lambda _, sentence: said.append(sentence))
    asked = {"model": "demo", "plan": {"method": "lora", "sequence": 64}, "steps": 3}
    with collected() as case:
        for (where, what), (code, says, ended) in AFTER.items():
            with case(f"{what} at {where}"):
                fault.write_text(f"{where}\t{what}")
                path = tmp_path / f"{what}.jsonl"
                path.unlink(missing_ok=True)
                command = (*WORKER, "run")
                try:
                    outcome = run_to_end(
                        {**asked, "device": "cpu"}, target_of(str(path)), command=command
                    )
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
                assert not fault.exists()
                assert outcome.exit_code == code
                assert says in said[-1]
                assert family(os.getpid()) == []
                recording = read_recording(path)
                assert sum(isinstance(each, StepTaken) for each in recording) == 3
                last = list(recording)[-1]
                assert (last.reason if isinstance(last, End) else "") == ended


# The second process of an experiment

#: What happens to it -> how the note begins that says so.
SECOND = {
    "killed": "was killed, which is most often the system running out of memory",
    "no memory": "ended with exit code 1",
}


async def test_an_experiment_is_done_without_its_second_process():
    with collected() as case:
        for what, says in SECOND.items():
            with case(what):
                pids, events = await hurt_experiment(what)
                assert all(map(is_gone, pids))
                assert len(pids) == 2
                result = events[-1]
                assert isinstance(result, LabResult)
                done = [each for each in events if isinstance(each, JobDone)]
                assert [each.fault for each in done] == [""] * result.done
                assert (result.ended, result.done) == ("done", result.jobs)
                said_so = f"The second process {says}, so the first one did its parts."
                assert said_so in result.findings.notes


async def hurt_experiment(what: str) -> tuple[list[int], list[LabEvent]]:
    """Hurts the second process; returns both process ids and what was told of the experiment."""
    client = lab_client()
    settings = {"task": "nano", "steps": 20, "recipes": ("bf16",)}
    events: list[LabEvent] = []
    pids: list[int] = []
    async for event in client.run(LabRequest("lowbit", settings, processes=2)):
        events.append(event)
        if not pids:
            while not (second := family(client.child.pid)):
                await asyncio.sleep(0.02)
            pids = [client.child.pid, *second]
            if what == "no memory":
                resource.prlimit(second[0], resource.RLIMIT_AS, (1, resource.RLIM_INFINITY))
            else:
                os.kill(second[0], signal.SIGKILL)
    return pids, events


# Questions

TENSOR = "model.layers.0.mlp.up_proj.weight"
OF_TENSOR = {"tensor": TENSOR}
ONE, TWO = {**OF_TENSOR, "scheme": "int4"}, {**OF_TENSOR, "schemes": ["int4", "nf4"]}
SHAPED = {"schemes": ["int4", "nf4"], "shape": [64, 64]}
PLAN = {"plan": {"method": "lora", "batch": 1, "sequence": 64}}
#: Questions, with what they ask beside the model. Those in RUNNING take torch, so that they are not
#: asked again; those in READING look at the weights in qtui's own mapping of them. A sample of each
#: is hurt.
RUNNING: dict[str, dict[str, Any]] = {
    "capture": {"tensors": [TENSOR]},
    "prediction_errors": {"by": "kl", "tensors": [TENSOR], "schemes": ["int4"]},
    "evaluate": {"settings": {"schemes": ["int4"], "windows": 2, "window": 32}},
    "memory trace": PLAN,
    "memory measure": {},
}
READING: dict[str, dict[str, Any]] = {
    "statistics": OF_TENSOR, "histogram": {**OF_TENSOR, "bins": 16}, "measure": ONE,
    "explain": TWO, "element": {**ONE, "row": 1, "column": 2}, "rank": {"scheme": "int4"},
    "map": {**TWO, "rows": 8, "columns": 8}, "codebooks": TWO, "outliers": OF_TENSOR,
    "attribution": {**ONE, "tries": 1}, "granularities": ONE,
    "decomposition": {**OF_TENSOR, "scheme": "int8"},
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "open_model": {}, "model_index": {}, "devices": {}, "nf4_construction": {},
    "equal_bits": SHAPED, "bit_budget": SHAPED,
    "memory open": {}, "memory first": PLAN, "memory full": PLAN, "memory around": PLAN,
    "memory operations": PLAN, "memory map": {**PLAN, "batches": [1], "sequences": [64]},
    "memory cases": {}, "memory devices": {}, "memory gpus": {},
}  # fmt: skip
#: What is asked after a capture or an evaluation, which the engine no longer has once it was
#: restarted, and what it then says.
AFTERWARDS: dict[str, tuple[dict[str, Any], str]] = {
    "activation_ranges": (ONE, "was captured: let the model run on a text first."),
    "output_error": (TWO, "was captured: let the model run on a text first."),
    "evaluation_so_far": (RUNNING["evaluate"], "answered"),
}


#: Every second question that does not run a model: all are asked by the same code.
ASKED = [*READING, *OTHERS][::2]


def test_every_question_is_known():
    asked = {*build_operations(), *(f"memory {name}" for name in estimator.build_operations())}
    assert asked == {*RUNNING, *READING, *OTHERS, *AFTERWARDS}


@pytest_asyncio.fixture
async def engine(fault: Path) -> AsyncIterator[EngineClient]:
    client = EngineClient((*WORKER, "engine"))
    yield client
    await client.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(DEMO_FOLDER, tmp_path / "model")


async def asked(engine: EngineClient, model: Path, name: str) -> str:
    """What comes of a question: a sentence, or "answered"."""
    params = {**RUNNING, **READING, **OTHERS, **{n: p for n, (p, _) in AFTERWARDS.items()}}[name]
    try:
        await asyncio.wait_for(engine.request(name, {"model": str(model), **params}), 120)
    except (QtuiError, EngineLost) as error:
        return str(error)
    return "answered"


async def test_an_engine_that_is_killed_at_any_question_answers_it_after_a_restart(
    engine, fault, model
):
    with collected() as case:
        for name in (*ASKED, *AFTERWARDS, "capture", "memory trace"):
            with case(name):
                await engine.start()
                pid = engine.pid
                fault.write_text(f"{name}\tSIGKILL")
                assert await asked(engine, model, name) == f"The engine {KILLED}"
                assert is_gone(pid)
                await engine.restart()
                if name not in RUNNING:
                    _, says = AFTERWARDS.get(name, ({}, "answered"))
                    assert (await asked(engine, model, name)).endswith(says)


async def test_a_model_that_becomes_shorter_while_it_is_read_ends_the_child_alone(
    engine, fault, model
):
    whole = (model / "model.safetensors").read_bytes()
    with collected() as case:
        for name in ("statistics", "explain", "map", "outliers", "decomposition"):
            with case(name):
                fault.write_text(f"{name}\tshorter file")
                said = await asked(engine, model, name)
                # What is looked at may be within the first page, or read in a second piece.
                assert "SIGBUS: a file that it read" in said or "became shorter" in said, said
                (model / "model.safetensors").write_bytes(whole)
                await engine.restart()
                assert await asked(engine, model, name) == "answered"


async def test_a_question_that_finds_no_memory_says_so_and_the_engine_lives(engine, fault, model):
    with collected() as case:
        for name in ("statistics", "explain", "map", "attribution", "capture", "evaluate"):
            with case(name):
                await engine.restart()
                pid = engine.pid
                fault.write_text(f"{name}\tno memory")
                said = await asked(engine, model, name)
                assert said.startswith(f"Memory ran out in {name}. "), said
                assert said.endswith(LIMITED)
                assert await asked(engine, model, "nf4_construction") == "answered"
                assert engine.pid == pid


async def test_a_model_that_is_changed_between_two_questions_is_read_anew(engine, model):
    """By the header that it had, other tensors' bytes would be read. Asked again, as r does, the
    model is opened again."""
    path = model / "model.safetensors"
    whole = path.read_bytes()
    assert await asked(engine, model, "measure") == "answered"
    path.write_bytes(whole)
    os.utime(path, (0, 0))
    said = await asked(engine, model, "statistics")
    assert said == f"'{path}' was changed after it was opened; open the model again."
    assert await asked(engine, model, "statistics") == "answered"
    os.truncate(path, len(whole) // 3)
    assert "became shorter after it was opened" in await asked(engine, model, "histogram")
    assert "it was cut off, so download or copy it again" in await asked(engine, model, "histogram")
    path.write_bytes(whole)
    assert await asked(engine, model, "histogram") == "answered"
    path.unlink()  # the mapped file is whole
    assert await asked(engine, model, "outliers") == "answered"
