"""Every class of an answer crosses from the engine to the screen and is the same there."""

from __future__ import annotations

import dataclasses
import importlib
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from made_by_types import instances_of

from qtui.engine.client import Reply
from qtui_core.codec import from_plain, to_line, to_plain

ROOMS = (
    "qtui.engine.answers.codes", "qtui.engine.answers.outliers", "qtui.engine.answers.tensors",
    "qtui.engine.estimator.answers", "qtui_core.answers.codes", "qtui_core.answers.tensors",
    "qtui_core.memory.devices.rates", "qtui_core.memory.devices.profile",
    "qtui_core.telemetry.readings",
)  # fmt: skip


def kinds_of(room: str) -> list[Any]:
    """The dataclasses of a module and the NamedTuples."""
    module = importlib.import_module(room)
    found = [each for each in vars(module).values() if isinstance(each, type)]
    own = [each for each in found if each.__module__ == room]
    return [each for each in own if dataclasses.is_dataclass(each) or hasattr(each, "_fields")]


def comes_back(kind: Any) -> None:
    """Raises AssertionError where an answer does not."""

    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
    @given(answer=instances_of(kind, 5))
    def crosses(answer: Any) -> None:
        found = Reply(json.loads(to_line(answer)), {}).read(kind)
        assert type(found) is kind
        # As text, because NaN is not equal to itself.
        assert to_line(found) == to_line(answer)
        strictly = json.dumps(to_plain(answer, strict=True), allow_nan=False)
        assert to_line(from_plain(kind, json.loads(strictly))) == to_line(answer)

    crosses()


def test_every_answer_comes_back_as_it_was() -> None:
    kinds = [kind for room in ROOMS for kind in kinds_of(room)]
    assert len(kinds) > 40
    failures = []
    for kind in kinds:
        try:
            comes_back(kind)
        except Exception as error:
            failures.append(f"{kind.__name__}: {error!r:.200}")
    assert not failures, "\n".join(failures)
