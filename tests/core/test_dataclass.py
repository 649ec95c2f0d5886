"""This project's dataclass decorator behaves as the standard one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Any

import pytest

from qtui_core.dataclass import dataclass as quick


def classes(decorator: Callable[..., Any]) -> dict[str, type]:
    """The same classes, defined with the given decorator."""

    @decorator(frozen=True)
    class Point:
        """Has defaults: one is made for each object, one is neither shown nor compared."""

        x: int
        y: float = 2.0
        tags: list[str] = field(default_factory=list, hash=None)
        note: str = field(default="", repr=False, compare=False)

        @cached_property
        def double(self) -> float:
            return self.x * 2

    @decorator(frozen=True)
    class Named(Point):
        name: str = "n"

    @decorator(frozen=True)
    class Checked:
        low: int
        high: int | None = None

        def __post_init__(self) -> None:
            if self.high is None:
                object.__setattr__(self, "high", self.low + 1)
            if self.low > self.high:
                raise ValueError("low above high")

    @decorator(frozen=True, eq=False)
    class Single:
        x: int

    @decorator(frozen=True)
    class Nothing:
        pass

    @decorator
    class Changing:
        x: int
        seen: dict[str, int] = field(default_factory=dict)
        found: str | None = field(default=None, init=False, repr=False)

    @decorator(frozen=True)
    class Shown:
        x: int

        def __repr__(self) -> str:
            return "shown"

    @decorator(frozen=True)
    class Folded:
        """Defines its own equality."""

        name: str
        _name: dict[str, int] = field(default_factory=dict)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and other.name.lower() == self.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

    @decorator(frozen=True)
    class Number:
        value: float

    found = (Point, Named, Checked, Single, Nothing, Changing, Shown, Folded, Number)
    return {made.__name__: made for made in found}


QUICK, STANDARD = classes(quick), classes(dataclasses.dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (1,), {}),
    ("Point", (1, 3.0, ["a"]), {"note": "kept"}),
    ("Named", (1,), {"name": "m"}),
    ("Checked", (1,), {}),
    ("Checked", (1, 5), {}),
    ("Nothing", (), {}),
    ("Changing", (1,), {"seen": {"a": 1}}),
    ("Shown", (4,), {}),
    ("Folded", ("a",), {}),
    ("Folded", ("a", {"b": 1}), {}),
    ("Number", (float("nan"),), {}),
]


@pytest.mark.parametrize(("name", "args", "keywords"), CALLS)
def test_it_reads_as_the_standard_one(
    name: str, args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    ours, standard = QUICK[name](*args, **keywords), STANDARD[name](*args, **keywords)
    assert repr(ours) == repr(standard)
    assert repr(dataclasses.asdict(ours)) == repr(dataclasses.asdict(standard))
    parameters = inspect.signature(QUICK[name]).parameters
    assert list(parameters) == list(inspect.signature(STANDARD[name]).parameters)
    assert [f.name for f in dataclasses.fields(ours)] == [
        f.name for f in dataclasses.fields(standard)
    ]
    assert QUICK[name].__match_args__ == STANDARD[name].__match_args__  # type: ignore[attr-defined]
    assert repr(copy.deepcopy(ours)) == repr(copy.copy(ours)) == repr(ours)


@pytest.mark.parametrize("name", ["Point", "Named", "Checked", "Nothing", "Single"])
def test_frozen_instances_cannot_change(name: str) -> None:
    for made in (QUICK[name], STANDARD[name]):
        one = made() if name == "Nothing" else made(1)
        for change in ("x", "low", "other"):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(one, change, 3)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(one, "x")


def test_instances_that_are_not_frozen_can_change() -> None:
    one = QUICK["Changing"](1)
    assert one.found is None
    with pytest.raises(TypeError):
        QUICK["Changing"](1, found="x")
    one.x = 2
    assert one == QUICK["Changing"](2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    assert QUICK["Changing"](1).seen is not one.seen


def test_equal_and_hash() -> None:
    for found in (QUICK, STANDARD):
        checked, single, point = found["Checked"], found["Single"], found["Point"]
        assert checked(1) == checked(1, 2) != checked(1, 3)
        assert hash(checked(1)) == hash(checked(1, 2))
        assert len({checked(1), checked(1, 2), checked(2)}) == 2
        assert single(1) != single(1)
        assert len({single(1), single(1)}) == 2
        assert point(1, note="a") == point(1, note="b")
        assert found["Named"](1) != point(1)
        assert found["Nothing"]() == found["Nothing"]()
        assert checked(1).__eq__(3) is NotImplemented
        folded, number = found["Folded"], found["Number"]
        assert folded("A") == folded("a")
        assert len({folded("A"), folded("a")}) == 1
        # As in a tuple, identical objects count as equal.
        nan = number(float("nan"))
        assert nan == nan
        assert nan in [nan]
        assert number(float("nan")) != nan


def test_features_of_the_standard_decorator_only_are_refused():
    with pytest.raises(TypeError, match="for the standard dataclass"):

        @quick(frozen=True)
        class Keyword:
            x: int = field(kw_only=True)


def test_the_standard_functions_work() -> None:
    checked = QUICK["Checked"]
    assert dataclasses.replace(checked(1, 4), low=2) == checked(2, 4)
    with pytest.raises(ValueError, match="low above high"):
        dataclasses.replace(checked(1, 4), low=9)
    assert QUICK["Point"](3).double == 6
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        QUICK["Point"]()


def test_pickle() -> None:
    from qtui_core.memory.plan.run_plan import RunPlan

    plan = RunPlan(method="lora", batch=3)
    assert pickle.loads(pickle.dumps(plan)) == plan
