"""The client of a run with children that end well, badly, late and never."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from disks import room_for
from live_runs import run
from processes import alive, is_gone

from qtui.engine.client import exit_sentence
from qtui.engine.run.client import run_client
from qtui_core.live.snapshot import (
    End,
    Fault,
    LogMessage,
    PhaseBegun,
    RecordingHeader,
    State,
    StepTaken,
)
from qtui_core.live.state import to_line

SUPPORT = Path(__file__).parents[2] / "support"
SCRIPT = (sys.executable, str(SUPPORT / "scripted_run.py"))


@pytest.fixture
def client(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    return run_client(SCRIPT, log=tmp_path / "logs" / "run.log")


def asked(model, **more):
    return {"model": model, "plan": {"batch": 2}, "steps": 2, "data": None, "device": "cpu", **more}


async def hear(client, model, **more):
    return [told async for told in client.run(asked(model, **more))]


async def gone(pid: int) -> bool:
    return await asyncio.to_thread(is_gone, pid)


async def test_everything_that_is_told_is_heard(client):
    told = await hear(client, "whole")
    assert isinstance(told[0], RecordingHeader)
    assert told[0].plan == {"batch": 2}
    assert told[1:] == list(run(2, gpu=False))[1:]
    assert client.child.exit_code == 0
    assert client.child.pid is None
    again = await hear(client, "whole", steps=1)
    assert again[-1].reason == "done"


async def test_controls_reach_the_run(client):
    heard, paused_at = [], None
    async for told in client.run(asked("until_stopped", steps=None)):
        heard.append(told)
        if isinstance(told, StepTaken) and told.step == 3:
            client.child.control("pause")
        if told == State(1.0, "paused"):
            paused_at = len(heard)
            client.child.control("resume")
        if isinstance(told, StepTaken) and paused_at and len(heard) > paused_at + 3:
            client.child.stop()
    assert State(1.0, "running") in heard[paused_at:]
    assert heard[-1] == End(1.0, "stopped")
    assert client.child.exit_code == 0


async def test_what_does_not_stop_is_ended_with_all_that_it_started(client):
    pids, heard = [], []
    async for told in client.run(asked("deaf")):
        heard.append(told)
        if isinstance(told, LogMessage):
            pids = [client.child.pid, int(told.text)]
            assert all(map(alive, pids))
            client.child.stop(0.3)
    end = heard[-1]
    assert end.reason == "stopped"
    assert end.seconds >= 0.5  # what it told last, and until it was ended
    assert not any(isinstance(told, Fault) for told in heard)
    for pid in pids:
        assert await gone(pid)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_run_that_is_ended_while_it_starts(client, how):
    async def listen():
        return [told async for told in client.run(asked("deaf"))]

    task = asyncio.create_task(listen())
    while client.child.pid is None and not task.done():
        getattr(client.child, how)()  # also before there is a process
        await asyncio.sleep(0)
    told = await asyncio.wait_for(task, 120)
    assert told[-1].reason == "stopped"
    assert not any(isinstance(each, Fault) for each in told)


@pytest.mark.parametrize("how", ["leaves", "is cancelled"])
async def test_whoever_stops_listening_ends_the_run(client, how):
    pids = []

    async def listen():
        async for told in client.run(asked("deaf")):
            if isinstance(told, LogMessage):
                pids.extend([client.child.pid, int(told.text)])
                if how == "leaves":
                    return

    task = asyncio.create_task(listen())
    while not pids:
        await asyncio.sleep(0.02)
    if how == "is cancelled":
        task.cancel()
    await asyncio.wait([task])
    for pid in pids:
        assert await gone(pid)


async def test_a_killed_run_is_told_with_where_it_was(client, tmp_path):
    """What it wrote before, usually a library's warning, is in the log and is not taken for the
    cause."""
    *_, fault, end = await hear(client, "killed")
    assert (fault.kind, fault.step, fault.phase) == ("killed", 1, "forward")
    assert fault.text == (
        "The run was killed, which is most often the system running out of memory. "
        "It was in the phase 'forward'."
    )
    assert end.reason == "failed"
    assert client.child.exit_code == -9
    assert (tmp_path / "logs" / "run.log").read_text() == "last words\n"


async def test_an_end_that_was_not_told_is_at_its_own_time():
    """A run may have worked for long since its last report."""
    line = to_line(PhaseBegun(0.01, 0, "import"))
    silent = f"import time; input(); print({line!r}, flush=True); time.sleep(0.7); 1 / 0"
    begun, fault, end = await hear(run_client((sys.executable, "-c", silent)), "whole")
    assert begun.seconds == 0.01
    assert fault.seconds == end.seconds >= 0.7


async def test_a_run_that_says_nothing_or_is_not_there_is_a_fault(client, tmp_path):
    fault, end = await hear(client, "gone_without_a_word")
    assert (fault.kind, fault.text) == ("failure", "The run ended with exit code 5.")
    assert end.reason == "failed"
    fault, end = await hear(run_client((str(tmp_path / "nothing"),)), "whole")
    assert "could not be started" in fault.text
    assert end.reason == "failed"


async def test_lines_that_say_nothing_go_to_the_log(client):
    told = await hear(client, "nonsense")
    assert [type(each) for each in told[2:]] == [LogMessage, End]
    assert "no line of JSON" in told[2].text


def test_the_last_words_of_what_was_ended_from_outside_are_not_its_reason():
    said = exit_sentence("The run", -signal.SIGTERM, ["a warning of a library"])
    assert said == "The run was ended by SIGTERM, which qtui did not send."
    for each in (signal.SIGSEGV, signal.SIGBUS, signal.SIGXCPU, signal.SIGRTMAX - 1):
        said = exit_sentence("The run", -each, ["a warning"])
        assert getattr(each, "name", f"signal {each}") in said
        assert "a warning" not in said
        assert said.endswith(".")
    assert exit_sentence("The run", -signal.SIGABRT, ["a reason"]) == "The run aborted: a reason"


async def test_a_log_that_the_disk_does_not_take_holds_nobody_up(tmp_path):
    """More than a pipe holds is read all the same."""
    chatty = "import sys; input(); sys.stderr.write('x' * 300_000 + chr(10) + 'last words')"
    client = run_client((sys.executable, "-c", chatty), log=tmp_path / "run.log")
    with room_for(10):
        fault, _ = await hear(client, "whole")
    assert fault.text == "The run ended with exit code 0: last words."
    assert client.child.stderr_tail[-1] == "last words"


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_loop_that_ends_in_the_middle_of_a_run_leaves_nothing_of_it(client, monkeypatch, rounds):
    """It cancels the listener, which may be ending the run already because it was cancelled."""
    gc.collect()  # what is left of other tests
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda left: lost.append(left.exc_value))

    async def main() -> int:
        async def listen() -> None:
            async with aclosing(client.run(asked("until_stopped"))) as lines:
                async for _ in lines:
                    begun.set()

        begun = asyncio.Event()
        task = asyncio.create_task(listen())
        await begun.wait()
        pid = client.child.pid
        if rounds:
            task.cancel()
        for _ in range(rounds):
            await asyncio.sleep(0)
        return pid

    pid = asyncio.run(main())
    gc.collect()
    assert is_gone(pid)
    assert client.child.pid is None
    assert lost == []
