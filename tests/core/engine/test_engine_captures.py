"""What the engine keeps of a running model, and what it frees."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from qtui.engine.captures import MODULES_KEPT, Captures
from qtui_core.errors import UsageError
from qtui_core.job import IDLE, Cancelled, Job
from qtui_core.loading.text import Text
from qtui_core.models import open_model

TEXT = Text("def f(x):\n    return x + 1\n" * 8, "a text")
DOWN = [f"model.layers.{i}.mlp.down_proj.weight" for i in range(6)]


def run(captures: Captures, tensors: list[str], source: Any = None, job: Job = IDLE) -> Any:
    return captures.capture("demo", source or open_model("demo"), tensors, TEXT, job)


@pytest.mark.slow
def test_another_model_gives_the_memory_of_this_one_back():
    captures = Captures()
    [found] = run(captures, DOWN[:1])
    running = captures._running
    gone = [weakref.ref(running.loaded.model), weakref.ref(found)]
    subject = weakref.ref(captures.subject("demo", DOWN[0], "input"))
    del running, found
    captures.forget()
    gc.collect()
    assert [ref() for ref in (*gone, subject)] == [None, None, None]
    with pytest.raises(UsageError, match="was captured"):
        captures.need("demo", DOWN[0], "input")


@pytest.mark.slow
def test_one_run_captures_several_modules_and_few_are_kept():
    captures, source = Captures(), open_model("demo")
    found = run(captures, DOWN[:2], source=source)
    assert [one.calibration.module for one in found] == [name[:-7] for name in DOWN[:2]]
    assert found[0].number != found[1].number
    for name in DOWN:
        run(captures, [name], source=source)
    assert captures.held("demo") == DOWN[-MODULES_KEPT:]
    assert captures.held("other") == []
    assert captures.subject("demo", DOWN[-1], "output").shape == (len(TEXT.content) // 2, 256)
    with pytest.raises(UsageError, match="no source 'sideways'"):
        captures.subject("demo", DOWN[-1], "sideways")


def test_a_model_opened_meanwhile_is_not_given_captures_of_the_one_before():
    captures, source = Captures(), open_model("demo")
    run(captures, DOWN[:1], source=source)

    def report(done: float, total: float, words: str) -> None:
        if words == "running on the held-out text":
            thread = threading.Thread(target=captures.forget)
            thread.start()
            thread.join(10)

    with pytest.raises(Cancelled):
        run(captures, DOWN[1:2], source=source, job=Job(report))
    assert captures.held("demo") == []
