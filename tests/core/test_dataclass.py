"""This project's dataclass decorator behaves as the standard one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Any

import pytest

from qtui_core.dataclass import dataclass as quick


def classes(decorator: Callable[..., Any]) -> dict[str, Any]:
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
    class Folded:
        """Has its own equality and text."""

        name: str
        _name: dict[str, int] = field(default_factory=dict)

        def __repr__(self) -> str:
            return "shown"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and other.name.lower() == self.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

    found = (Point, Named, Checked, Single, Nothing, Changing, Folded)
    return {made.__name__: made for made in found}


QUICK, STANDARD = classes(quick), classes(dataclasses.dataclass)
NAN = float("nan")
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (1,), {}), ("Point", (1, 3.0, ["a"]), {"note": "kept"}), ("Point", (NAN,), {}),
    ("Named", (1,), {"name": "m"}), ("Checked", (1,), {}), ("Checked", (1, 5), {}),
    ("Nothing", (), {}), ("Changing", (1,), {"seen": {"a": 1}}), ("Folded", ("a", {"b": 1}), {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "keywords"), CALLS)
def test_it_reads_as_the_standard_one(name, args, keywords):
    ours, standard = QUICK[name](*args, **keywords), STANDARD[name](*args, **keywords)
    assert repr(ours) == repr(standard)
    assert repr(dataclasses.asdict(ours)) == repr(dataclasses.asdict(standard))
    parameters = inspect.signature(QUICK[name]).parameters
    assert list(parameters) == list(inspect.signature(STANDARD[name]).parameters)
    assert [f.name for f in dataclasses.fields(ours)] == [
        f.name for f in dataclasses.fields(standard)
    ]
    assert QUICK[name].__match_args__ == STANDARD[name].__match_args__
    assert repr(copy.deepcopy(ours)) == repr(copy.copy(ours)) == repr(ours)


def same(one: Any, other: Any) -> tuple[bool, bool]:
    return one == other, hash(one) == hash(other)


def kept(each: Any) -> bool:
    """Whether it is equal to itself, as in a tuple, although it holds NaN."""
    return each == each and each in [each]


#: What is done with the classes of a decorator.
DEEDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "set": lambda c: setattr(c["Point"](1), "x", 3),
    "set another": lambda c: setattr(c["Nothing"](), "other", 3),
    "set of a child": lambda c: setattr(c["Named"](1), "name", "m"),
    "delete": lambda c: delattr(c["Checked"](1), "low"),
    "change": lambda c: (one := c["Changing"](1), setattr(one, "x", 2), one == c["Changing"](2)),
    "not in __init__": lambda c: c["Changing"](1, found="x"),
    "hash of what changes": lambda c: hash(c["Changing"](1)),
    "a default for each": lambda c: c["Changing"](1).seen is c["Changing"](1).seen,
    "missing": lambda c: c["Point"](),
    "equal": lambda c: same(c["Checked"](1), c["Checked"](1, 2)),
    "unequal": lambda c: c["Checked"](1) == c["Checked"](1, 3),
    "identity": lambda c: c["Single"](1) == c["Single"](1),
    "not compared": lambda c: c["Point"](1, note="a") == c["Point"](1, note="b"),
    "of another class": lambda c: c["Named"](1) == c["Point"](1),
    "of another type": lambda c: c["Checked"](1).__eq__(3),
    "without fields": lambda c: same(c["Nothing"](), c["Nothing"]()),
    "own equality": lambda c: same(c["Folded"]("A"), c["Folded"]("a")),
    "NaN": lambda c: kept(c["Point"](NAN)),
    "replaced": lambda c: dataclasses.replace(c["Checked"](1, 4), low=2),
    "replaced wrongly": lambda c: dataclasses.replace(c["Checked"](1, 4), low=9),
    "cached": lambda c: c["Point"](3).double,
}


@pytest.mark.parametrize("deed", DEEDS)
def test_it_does_what_the_standard_one_does(deed):
    def outcome(of: dict[str, Any]) -> str:
        try:
            return repr(DEEDS[deed](of))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    assert outcome(QUICK) == outcome(STANDARD)


def test_features_of_the_standard_decorator_only_are_refused():
    with pytest.raises(TypeError, match="for the standard dataclass"):

        @quick(frozen=True)
        class Keyword:
            x: int = field(kw_only=True)
