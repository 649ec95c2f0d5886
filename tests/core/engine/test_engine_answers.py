"""Every class of an answer is the same after it has been sent from the engine to the screen."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from typing import Any

from every import every
from hypothesis import HealthCheck, given, settings
from made_by_types import instances_of

from qtui.engine.client import Reply
from qtui.engine.estimator.child import build_operations as estimator_operations
from qtui.engine.operations import build_operations
from qtui_core.codec import from_plain, to_line, to_plain
from qtui_core.errors import UsageError

ROOMS = (
    "qtui.engine.answers.activations", "qtui.engine.requests", "qtui.engine.estimator.requests",
    "qtui.engine.answers.codes", "qtui.engine.answers.outliers", "qtui.engine.answers.tensors",
    "qtui.engine.estimator.answers", "qtui_core.answers",
    "qtui_core.roofline.rates", "qtui_core.memory.devices.profile",
    "qtui_core.telemetry.readings", "qtui.engine.answers.evaluation",
    "qtui_core.evaluation.results", "qtui_core.evaluation.settings",
)  # fmt: skip


def kinds_of(room: str) -> list[Any]:
    """The dataclasses and NamedTuples of a module."""
    module = importlib.import_module(room)
    found = [each for each in vars(module).values() if isinstance(each, type)]
    own = [each for each in found if each.__module__ == room]
    return [each for each in own if dataclasses.is_dataclass(each) or hasattr(each, "_fields")]


def comes_back(kind: Any) -> None:
    """Raises AssertionError if an answer changes on the way."""

    @settings(max_examples=6, suppress_health_check=list(HealthCheck))
    @given(answer=instances_of(kind, 5))
    def crosses(answer: Any) -> None:
        found = Reply(json.loads(to_line(answer)), {}).read(kind)
        assert type(found) is kind
        # As text, because NaN is not equal to itself.
        assert to_line(found) == to_line(answer)
        strictly = json.dumps(to_plain(answer, strict=True), allow_nan=False)
        assert to_line(from_plain(kind, json.loads(strictly))) == to_line(answer)

    crosses()


def test_every_answer_comes_back_as_it_was():
    kinds = [kind for room in ROOMS for kind in kinds_of(room)]
    assert len(kinds) > 40
    every(kinds, comes_back)


#: Values that most fields of a request do not accept.
WRONG = (
    None,
    True,
    -1,
    10**30,
    1.5,
    math.nan,
    "",
    "nf5",
    "\x1b[2J",
    [],
    [[]],
    [None],
    {},
    {"x": 1},
)
#: Values that each field accepts.
RIGHT: dict[str, Any] = {
    "model": "demo", "case": "", "tensor": "w", "tensors": ["w"], "source": "input",
    "inject": {"column": 1, "value": 2}, "bins": 8, "scheme": "nf4", "schemes": ["nf4", "int8:row"],
    "row": 0, "column": 0, "resized": True, "rows": 1, "columns": 1, "kind": "error",
    "pooling": None, "window": [0, 1, 0, 1], "shape": [2, 2], "detection": "column", "limit": 2,
    "tries": 1, "threshold": 6.0, "prompt": "p", "file": "f", "active": 0, "full": True,
    "plan": {"batch": 2, "lora_targets": ["q_proj"]}, "device": {"name": "T4"},
    "live": [{"capacity": 1, "label": "here"}], "batches": [1, 2], "sequences": [128],
    "usual": True, "on": "cpu", "settings": {"schemes": ["nf4"]}, "done": [[0, 1]],
    "by": "kl",
}  # fmt: skip


def test_a_wrong_request_is_refused_as_a_sentence():
    """Only UsageError is raised, whatever the field and the value."""
    refusals = []
    for method, operation in {**build_operations(), **estimator_operations()}.items():
        asked = operation.asked
        names = [each.name for each in dataclasses.fields(asked)] if asked else []
        right = {name: RIGHT[name] for name in names}
        operation.read(method, right)
        for params in ({}, *({**right, name: wrong} for name in names for wrong in WRONG)):
            try:
                operation.read(method, params)
            except UsageError as error:
                refusals.append((method, str(error)))
    assert len(refusals) > 500
    for method, said in refusals:
        assert said.startswith(f"The request for {method} is malformed: ")
