"""The tracing process ends if nobody waits for it any more."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from processes import alive, is_gone

from qtui.engine.estimator import asked_trace
from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import known
from qtui_core.memory.shape.description import ModelDescription
from qtui_core.threads import child_environment

#: A class that walks 100,000 tokens one by one: long enough for these tests.
MAMBA = {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 4, "vocab_size": 50280}
PLAN = RunPlan(method="full", sequence=100_000)


LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 96}
LLAMA |= {"num_hidden_layers": 1, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("config", "plan"),
    [(LLAMA, {"loss": "fused"}), (MAMBA, {"loss": "fused"}), (MAMBA, {"optimizer": "paged-adamw"})],
)
def test_what_no_trace_follows_is_refused_before_a_process_starts(
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    plan: dict[str, Any],
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process started"))
    model = ModelDescription("it", "it", config, "It", "")
    with pytest.raises(UsageError) as refused:
        asked_trace.traced_estimate(model, model.read_shape(), RunPlan(method="full", **plan))
    assert str(refused.value).endswith("leave that out of the plan, or leave out --trace.")


class GivenUp(Exception):
    """Raised by a caller that no longer wants the trace."""


def test_a_trace_that_is_given_up_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    def check(doing: str) -> None:
        if time.monotonic() > begun + 0.5:
            raise GivenUp

    monkeypatch.setattr(subprocess, "Popen", Noted)
    begun = time.monotonic()
    with pytest.raises(GivenUp):
        asked_trace.trace(MAMBA, resolve(PLAN, "bf16"), check)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert time.monotonic() < begun + 120


@pytest.mark.slow
def test_a_trace_says_what_it_does_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, doing = resolve(RunPlan(method="full", sequence=32), "bf16"), []
    found = asked_trace.trace(LLAMA, plan, lambda words: doing.append(words))
    assert list(dict.fromkeys(doing)) == [
        "importing the libraries", "building the class", "running 1 of 1 layers",
    ]  # fmt: skip
    kept = asked_trace._kept(json.dumps({"config": LLAMA, "plan": asdict(plan)}))
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process started"))
        again = asked_trace.trace(LLAMA, plan)
    assert [*again.events] == [*found.events]
    whole = kept.read_bytes()
    for broken in (b"", whole[:100], b"{}", gzip.compress(b"[1]"), gzip.compress(b'{"events": 3}')):
        kept.write_bytes(broken)
        assert known(kept) is None
    assert asked_trace.trace(LLAMA, plan).events[:9] == found.events[:9]
    assert kept.read_bytes() == whole


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="asks /proc for children")
@pytest.mark.parametrize("threads", [1, 2], ids=["before it can look", "while it traces"])
def test_a_trace_ends_with_the_process_that_asked(threads: int) -> None:
    code = (
        "from qtui.engine.estimator.asked_trace import trace\n"
        "from qtui_core.memory.plan.run_plan import RunPlan, resolve\n"
        f"trace({MAMBA!r}, resolve(RunPlan(method='full', sequence=100_000), 'bf16'))"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", code], env=child_environment())
    children: list[int] = []
    try:
        children = _until(lambda: _children(parent.pid))
        # The second thread checks whether the parent still exists.
        _until(lambda: len(list(Path(f"/proc/{children[0]}/task").iterdir())) >= threads)
        assert alive(children[0])
        parent.kill()
        parent.wait()
        assert is_gone(children[0])
    finally:
        parent.kill()
        parent.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(each) for each in text.split()]


def _until(found: Any, seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return value
