"""The engine client with a real child process that misbehaves in every way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from every import collected
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import alive, is_gone

from qtui.engine.client import EngineClient, EngineLost, EngineState
from qtui.engine.estimator.client import EstimatorClient
from qtui_core.errors import ModelError, QtuiError

DOUBLE = str(Path(__file__).with_name("engine_double.py"))
ROOT = str(Path(__file__).resolve().parents[3])


@asynccontextmanager
async def engine(*arguments: str, **options: object) -> AsyncIterator[EngineClient]:
    client = EngineClient([sys.executable, "-P", DOUBLE, *arguments], **options)
    try:
        yield client
    finally:
        await client.close()


@pytest_asyncio.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with engine() as found:
        yield found


async def gone(pid: int) -> bool:
    return await asyncio.to_thread(is_gone, pid)


async def test_child_starts_with_the_first_request_and_goes_with_close():
    states: list[str] = []
    async with engine() as client:
        unsubscribe = client.subscribe(lambda state, _: states.append(state))
        assert client.state is EngineState.IDLE
        assert client.pid is None
        reply = await client.request("echo", {"x": [1, None, "ü"]})
        assert reply.data["params"] == {"x": [1, None, "ü"]}
        pid = client.pid
        assert pid == reply.data["pid"]
        await client.close()
        assert await gone(pid)
        assert client.pid is None
        unsubscribe()
        await client.start()
    assert states == ["starting", "running", "idle"]


async def test_a_child_that_still_imports_is_not_waited_for(monkeypatch):
    """Its end would be found out about only once its imports are over."""
    monkeypatch.setattr("qtui.engine.client.EXIT_SECONDS", 3600.0)
    client = EngineClient([sys.executable, "-c", "import time; time.sleep(3600)"])
    asked = asyncio.create_task(client.request("echo"))
    while client.pid is None:
        await asyncio.sleep(0.01)
    pid = client.pid
    async with asyncio.timeout(120):
        await client.close()
    assert not alive(pid)
    with pytest.raises(EngineLost):
        await asked


async def test_arrays_arrive_typed_and_shaped(client):
    reply = await client.request("picture", {"shape": [3, 4]})
    cells = reply.arrays["cells"]
    assert (cells.shape, cells.dtype) == ((3, 4), "<f4")
    assert cells.tolist() == [float(i) for i in range(12)]
    assert cells.view()[5] == 5.0
    assert reply.arrays["e"].shape == (0, 2)
    assert reply.arrays["e"].tolist() == []
    assert reply.data["note"] == "ünï\ncode"


async def test_a_line_longer_than_every_buffer_arrives(client):
    reply = await client.request("long_list", {"count": 200_000})
    assert len(reply.data["names"]) == 200_000


async def test_what_libraries_print_does_not_reach_the_protocol(tmp_path):
    log = tmp_path / "logs" / "engine.log"
    async with engine(log=log) as client:
        reply = await client.request("noise")
        assert reply.data["stdin"] == ""
        assert (await client.request("echo")).data["params"] == {}
    text = log.read_text()
    for line in (
        "a library greets on import",
        "print from python",
        "write to descriptor 1",
        "puts from C",
        "echo from a child of the child".removeprefix("echo "),
    ):
        assert line in text
    assert "puts from C" in list(client.stderr_tail)


async def test_a_log_that_cannot_be_written_changes_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    async with engine(log=tmp_path / "file" / "engine.log") as client:
        await client.request("noise")
        assert "puts from C" in list(client.stderr_tail)
        with pytest.raises(EngineLost, match="the last words"):
            await client.request("die", {"how": "exit"})
        assert client.state is EngineState.LOST
        await client.restart()
        assert (await client.request("echo")).data["params"] == {}


async def test_errors_keep_their_sentence_and_exit_code(tmp_path):
    async with engine(log=tmp_path / "log") as client:
        with pytest.raises(ModelError, match=r"^There is no such model\.$"):
            await client.request("fail", {"kind": "model"})
        with pytest.raises(QtuiError, match=r"Internal error in fail: IndexError: list index"):
            await client.request("fail", {"index": 5})
        with pytest.raises(QtuiError, match="no operation named 'fly'"):
            await client.request("fly")
        assert (await client.request("fail", {"index": 1})).data == {"x": 2}
    assert "Traceback" in (tmp_path / "log").read_text()


async def test_progress_is_throttled_unless_it_carries_data(client):
    seen: list[float] = []
    steps: list[int] = []

    def explode(fraction: float, data: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # a fault of the callback is its caller's
        await client.request("wait", {"seconds": 0.2}, on_progress=explode)
    await client.request(
        "wait", {"seconds": 0.5}, on_progress=lambda fraction, data: seen.append(fraction)
    )
    await client.request(
        "wait",
        {"seconds": 0.2, "steps": True},
        on_progress=lambda fraction, data: steps.append(data["step"]),
    )
    assert 1 <= len(seen) <= 8
    assert seen == sorted(seen)
    assert steps == list(range(20))


async def test_what_one_asker_cancels_leaves_the_same_question_of_another(client):
    await client.start()
    tasks = [
        asyncio.create_task(client.request("wait", {"seconds": seconds}))
        for seconds in (0.3, 600, 0.05)
    ]
    await asyncio.sleep(0.1)
    tasks[1].cancel()
    first, given_up, last = await asyncio.wait_for(
        asyncio.gather(*tasks, return_exceptions=True), 120
    )
    assert (first.data, last.data) == ({"waited": 0.3}, {"waited": 0.05})
    assert isinstance(given_up, asyncio.CancelledError)


#: Questions to a child that answers, refuses and dies.
QUESTIONS = {
    "quick": ("devices", {}), "slow": ("wait", {"seconds": 0.02}), "of both": ("open", {}),
    "refused": ("fail", {"kind": "model"}), "unknown": ("fly", {}),
    "deadly": ("die", {"how": "kill"}),
}  # fmt: skip
DEEDS = (*QUESTIONS, *QUESTIONS, "give up", "give up", "kill", "pause", "pause")
CLIENTS = [EngineClient, EstimatorClient]


def of_the_double(kind: type[EngineClient]) -> EngineClient:
    command = (sys.executable, "-P", DOUBLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qtui.engine.estimator.client._COMMAND", command)
        return EngineClient(command) if kind is EngineClient else kind()


async def ending(client: EngineClient, question: str) -> str:
    """What becomes of a question of a panel, which starts a lost engine again."""
    try:
        if client.state is EngineState.LOST:
            await client.restart()
        await client.request(*QUESTIONS[question])
    except EngineLost:
        return "lost"
    except QtuiError:
        return "refused"
    return "answered"


@pytest.mark.parametrize("kind", CLIENTS)
@settings(max_examples=10, deadline=None)
@given(deeds=st.lists(st.tuples(st.booleans(), st.sampled_from(DEEDS)), max_size=12))
def test_every_question_of_two_askers_ends(kind, deeds):
    """Answered, refused or lost; or cancelled, if its own asker did that."""

    async def ask_all() -> None:
        client = of_the_double(kind)
        asked: tuple[list[asyncio.Task[str]], ...] = ([], [])
        given_up, losses = set(), 0
        try:
            for asker, deed in deeds:
                if deed in QUESTIONS:
                    asked[asker].append(asyncio.create_task(ending(client, deed)))
                elif deed == "give up" and asked[asker]:
                    given_up.add(asked[asker][-1])
                    asked[asker][-1].cancel()
                elif deed == "kill":
                    client.kill()
                elif deed == "pause":
                    await asyncio.sleep(0.03)
                losses += deed in ("deadly", "kill")
            questions = {*asked[0], *asked[1]}
            _, open_still = await asyncio.wait(questions, timeout=60) if questions else ((), ())
            assert not open_still
            assert {each for each in questions if each.cancelled()} <= given_up
            lost = [each for each in questions - given_up if each.result() == "lost"]
            assert losses or not lost
            assert not client.busy
        finally:
            await client.close()

    asyncio.run(ask_all())


async def test_lanes_do_not_wait_for_each_other(client):
    await client.start()
    slow = asyncio.create_task(client.request("wait", {"seconds": 600}))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(client.request("echo"), 120)
    assert not slow.done()
    slow.cancel()


async def test_kill_fails_what_is_in_flight_and_restart_heals():
    states: list[tuple[str, str]] = []
    async with engine() as client:
        client.subscribe(lambda *change: states.append(change))
        await client.start()
        pid = client.pid
        task = asyncio.create_task(client.request("stubborn", {"seconds": 60}))
        await asyncio.sleep(0.1)
        client.kill()
        assert client.state is EngineState.LOST
        with pytest.raises(EngineLost, match="stopped"):
            await task
        assert await gone(pid)
        with pytest.raises(EngineLost, match="stopped"):
            await client.request("echo")
        await client.restart()
        reply = await client.request("echo")
        assert reply.data["pid"] not in (None, pid)
        task = asyncio.create_task(client.request("stubborn", {"seconds": 60}))
        await asyncio.sleep(0.05)
        await client.restart()  # of a running one
        with pytest.raises(EngineLost, match="restarted"):
            await task
        assert await gone(reply.data["pid"])
    assert [state for state, _ in states] == [
        "starting", "running", "lost", *["idle", "starting", "running"] * 2, "idle",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("exit", "exit code 7: the last words"),
        ("kill", "running out of memory"),
        ("mid-line", "ended inside a frame"),
        ("mid-array", "ended inside a frame"),
    ],
)
async def test_a_child_that_dies_is_said_to_be_lost(how, sentence, client):
    with pytest.raises(EngineLost, match=sentence):
        await asyncio.wait_for(client.request("die", {"how": how}), 120)
    assert client.state is EngineState.LOST
    assert sentence in client.detail
    await client.restart()
    await client.request("echo")


#: Lines of a child; ID stands for the number of the request.
NONSENSE = [
    "Hello from a library",
    "\xff\xfe\x00",
    "[1, 2]",
    "{}",
    '{"event": "result", "id": ID, "arrays": 7}',
    '{"event": "result", "id": ID, "arrays": [3]}',
    '{"event": "result", "id": ID, "arrays": [{"name": "a"}]}',
    '{"event":"result","id":ID,"arrays":[{"name":"a","dtype":"<f4","shape":[-1],"nbytes":-4}]}',
    '{"event":"result","id":ID,"arrays":[{"name":"a","dtype":"<f4","shape":[2],"nbytes":4}]}',
    '{"event":"result","id":ID,"arrays":'
    '[{"name":"a","dtype":"<f4","shape":[1152921504606846976],"nbytes":4611686018427387904}]}',
    '{"event":"result","id":ID,"arrays":[{"name":"a","dtype":"O","shape":[1],"nbytes":8}]}',
    '{"event": "poem", "id": ID}',
]


async def test_a_child_that_speaks_nonsense_is_stopped(client):
    await client.start()
    with collected() as case:
        for nonsense in NONSENSE:
            with case(nonsense):
                pid = client.pid
                asked = {"how": "nonsense", "bytes": nonsense + "\n"}
                with pytest.raises(EngineLost, match="could not be understood"):
                    await asyncio.wait_for(client.request("die", asked), 120)
                assert await gone(pid)
                await client.restart()
    await client.request("echo")


async def test_a_child_that_cannot_start_is_lost_with_its_last_words():
    async with engine("never-ready") as client:
        with pytest.raises(EngineLost, match="exit code 3: cannot import torch"):
            await client.request("echo")
        assert client.state is EngineState.LOST
    async with engine("greets") as client:
        with pytest.raises(EngineLost, match="could not be understood while it started"):
            await client.request("echo")
    missing = EngineClient(["/nonexistent/python"])
    with pytest.raises(EngineLost, match="could not be started"):
        await missing.request("echo")


async def test_a_child_killed_from_outside_is_noticed_without_a_request(client):
    await client.start()
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    await until(lambda: client.state is EngineState.LOST)


async def test_a_request_that_is_too_long_is_refused_here(client):
    with pytest.raises(QtuiError, match="over 1,048,576"):
        await client.request("echo", {"text": "x" * (1 << 21)})
    await client.request("echo")


def test_malformed_requests_are_answered_and_the_next_is_served():
    child = subprocess.Popen(
        [sys.executable, "-P", DOUBLE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    lines = [
        b"not json\n",
        b"[]\n",
        b'{"id": "one", "method": "echo"}\n',
        b'{"id": 1}\n',
        b'{"id": 1, "method": "echo", "params": 3}\n',
        b"\xff\xff\n",
        b"x" * (3 << 20) + b"\n",
        b"[" * 100_000 + b"\n",
        b'{"id": 9, "method": "echo"}\n',
    ]
    child.stdin.write(b"".join(lines))
    child.stdin.flush()
    events = [json.loads(child.stdout.readline()) for _ in range(10)]
    _, err = child.communicate(timeout=120)
    assert [event["event"] for event in events] == ["ready", *["error"] * 8, "result"]
    assert events[-1]["id"] == 9
    assert child.returncode == 0
    assert b"not JSON" in err


def test_the_child_exits_when_its_parent_is_killed():
    script = (
        "import asyncio, sys\n"
        "from qtui.engine.client import EngineClient\n"
        "async def main():\n"
        "    client = EngineClient([sys.executable, '-P', sys.argv[1]])\n"
        "    task = asyncio.create_task(client.request('stubborn', {'seconds': 60}))\n"
        "    while client.pid is None or client.state != 'running': await asyncio.sleep(0.01)\n"
        "    print(client.pid, flush=True)\n"
        "    await task\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, DOUBLE],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    assert is_gone(pid)


# A child that does not answer

LIMIT = 3.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is reported after a few heartbeats of the child."""
    for module in ("client", "waiting"):
        monkeypatch.setattr(f"qtui.engine.{module}.SILENT_AFTER_SECONDS", LIMIT)


async def until(holds: Callable[[], bool], every: float = 0.02) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(every)


@pytest.mark.slow
async def test_a_suspended_child_is_reported_and_goes_on_by_itself(impatient, client):
    told: list[str] = []
    await client.start()
    client.subscribe(lambda _, detail: told.append(detail))
    await client.request("stubborn", {"seconds": LIMIT + 1})
    assert not any(told)  # busy for a long time, but alive
    assert client.pid is not None
    os.kill(client.pid, signal.SIGSTOP)
    await asyncio.sleep(1.0)
    assert not any(told)  # nobody waits for it
    answer = asyncio.create_task(client.request("echo", {"n": 1}))
    await until(lambda: client.detail.startswith("The engine has not answered for "))
    assert client.state is EngineState.RUNNING
    os.kill(client.pid, signal.SIGCONT)
    assert (await answer).data["params"] == {"n": 1}
    await until(lambda: client.detail == "")


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [True, False])
async def test_a_child_that_ignores_a_cancellation_is_killed(
    impatient, monkeypatch, stopped, client
):
    monkeypatch.setattr("qtui.engine.client.HEED_SECONDS", 600 if stopped else 1.0)
    await client.start()
    pid = client.pid
    assert pid is not None
    asked = asyncio.create_task(client.request("stubborn", {"seconds": 600}))
    await asyncio.sleep(0.2)
    if stopped:
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: client.detail != "")
    asked.cancel()
    await until(lambda: client.pid is None)
    assert await gone(pid)
    assert client.state is EngineState.IDLE
    assert (await client.request("echo")).data["pid"] != pid


@pytest.mark.slow
async def test_a_child_that_is_stopped_while_it_starts(impatient, client):
    asked = asyncio.create_task(client.request("echo"))
    await until(lambda: client.pid is not None)
    pid = client.pid
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: client.detail != "" or client.state is EngineState.RUNNING)
    client.kill()
    with pytest.raises(EngineLost):
        await asked
    assert await gone(pid)
