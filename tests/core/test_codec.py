"""Answers to JSON and back, and JSON that is not an answer."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made_by_types import instances_of

from qtui_core.codec import CodecError, from_plain, to_plain
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.schemes.granularity import Granularity, PerGroup, PerRow, PerTile
from qtui_core.schemes.scheme import Scheme


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Row(NamedTuple):
    name: str
    shape: tuple[int, ...]
    share: float | None


@dataclass(frozen=True)
class Leaf:
    number: int
    weight: float = 1.0


@dataclass(frozen=True)
class Other:
    number: int


@dataclass(frozen=True)
class Held:
    granularity: Granularity | None


@dataclass(frozen=True)
class Tree:
    """Every kind of field."""

    scheme: Scheme
    bits: Fraction
    colour: Colour
    word: Literal["first", "full"]
    rows: tuple[Row, ...]
    leaf: Leaf | None
    either: Leaf | Other
    several: tuple[Leaf | Other, ...]
    by_name: Mapping[str, Leaf | Other]
    by_number: Mapping[int, float]
    by_colour: Mapping[Colour, int]
    listed: list[bool]
    pair: tuple[int, str]
    value: int | float | str | None
    anything: Any
    children: tuple[Tree, ...] = field(default_factory=tuple)

    @property
    def total(self) -> int:
        return len(self.rows)


def _a_word_of_a_number(tree: Tree) -> bool:
    return tree.value in ("NaN", "Infinity", "-Infinity") or any(
        map(_a_word_of_a_number, tree.children)
    )


@settings(max_examples=60)
@given(tree=instances_of(Tree, 3))
def test_an_answer_is_the_same_after_json_and_back(tree):
    # Where a number may stand, these words are the numbers that JSON has no other form for.
    assume(not _a_word_of_a_number(tree))
    for strict in (False, True):
        text = json.dumps(to_plain(tree, strict=strict), allow_nan=not strict)
        # repr, because NaN is not equal to itself.
        assert repr(from_plain(Tree, json.loads(text))) == repr(tree)
    assert "total" not in to_plain(tree)


@given(granularity=instances_of(PerTile, rows=3, columns=5) | instances_of(PerGroup, size=7))
def test_several_classes_of_one_type_are_told_apart(granularity):
    for each in (granularity, PerRow(), None):
        assert from_plain(Held, to_plain(Held(each))) == Held(each)
    with pytest.raises(CodecError, match="granularity: 'PerCow' is none of PerModel, PerTensor"):
        from_plain(Held, {"granularity": {"is": "PerCow"}})
    with pytest.raises(CodecError, match="granularity: A group of 0 elements is not possible"):
        from_plain(Held, {"granularity": {"is": "PerGroup", "size": 0}})


def test_the_form_of_each_part():
    leaf = {"number": 3, "weight": 0.5}
    assert to_plain(Leaf(3, 0.5)) == leaf
    assert to_plain({Colour.RED: (Leaf(3, 0.5), Row("a", (2, 3), None))}) == {
        "red": [leaf, ["a", [2, 3], None]]
    }
    assert to_plain(Scheme.parse("NF4:dq")) == "nf4:block64:dq"
    assert to_plain(Fraction(9, 2)) == "9/2"
    assert to_plain([math.inf, -math.inf], strict=True) == ["Infinity", "-Infinity"]
    assert type(to_plain(np.float64(0.5))) is float
    for formless in (object(), {1, 2}, b"bytes", np.zeros(2)):
        with pytest.raises(TypeError, match="has no form in JSON"):
            to_plain(formless)


def test_unknown_names_are_ignored_and_missing_ones_have_their_default():
    assert from_plain(Leaf, {"number": 3, "colour": "red"}) == Leaf(3)
    assert from_plain(Leaf, {"number": 3, "weight": 2}) == Leaf(3, 2.0)


TREE = Tree(
    Scheme.parse("nf4"), Fraction(9, 2), Colour.RED, "full", (Row("a", (1,), 0.5),), Leaf(1),
    Other(2), (Leaf(3), Other(4)), {"b": Other(5)}, {6: 0.25}, {Colour.BLUE: 7}, [True], (8, "c"),
    9, None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("scheme", "nf5", "scheme: Unknown format 'nf5'"),
        ("scheme", 4, "scheme: 4 is no text"),
        ("bits", "9/0", "bits: "),
        ("bits", "1e999999999", "bits: "),
        ("bits", "9" * 5000, "bits: "),
        ("colour", "green", "colour: 'green' is none of red, blue"),
        ("colour", [], "colour: "),
        ("word", "half", "word: 'half' is none of first, full"),
        ("rows", {}, "rows: {} is no list"),
        ("rows", [["a", [1]]], "rows: .* is no list as it should be"),
        ("rows", [["a", [True], None]], "rows: True is not of type int"),
        ("leaf", [], "leaf: Leaf is no object"),
        ("leaf", {}, "leaf: number is missing"),
        ("leaf", {"number": 1.0}, "leaf: number: 1.0 is not of type int"),
        ("leaf", {"number": 1, "weight": "heavy"}, "leaf: weight: 'heavy' is no number"),
        ("leaf", {"number": 1, "weight": 10**400}, "leaf: weight: a number is too large"),
        ("either", None, "either: "),
        ("either", {"number": 3}, "either: None is none of Leaf, Other"),
        ("either", {"is": ["Leaf"], "number": 3}, "is none of Leaf, Other"),
        ("several", [{"is": "Tree"}], "several: 'Tree' is none of Leaf, Other"),
        ("by_name", [], "by_name: \\[\\] is no object"),
        ("by_number", {"six": 1}, "by_number: "),
        ("by_colour", {"green": 1}, "by_colour: 'green' is none of red, blue"),
        ("listed", [1], "listed: 1 is not of type bool"),
        ("pair", [1, "a", "b"], "pair: .* is no list as it should be"),
        ("value", [], "value: "),
        ("children", [{}], "children: scheme is missing"),
    ],
)
def test_invalid_json_is_refused_with_its_place(name, value, says):
    whole = to_plain(TREE)
    assert from_plain(Tree, json.loads(json.dumps(whole))) == TREE
    with pytest.raises(CodecError, match=says) as caught:
        from_plain(Tree, {**whole, name: value})
    assert str(caught.value).startswith("It is no Tree: ")


@settings(max_examples=200)
@given(
    found=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from([*to_plain(TREE), "is", "number"]), inner, max_size=6)
        ),
        max_leaves=20,
    )
)
def test_any_json_raises_only_the_projects_error(found):
    for data in (found, {**to_plain(TREE), **found} if isinstance(found, dict) else found):
        with contextlib.suppress(CodecError):
            from_plain(Tree, data)


def test_an_answer_as_deep_as_the_stack_is_refused():
    whole = to_plain(TREE)
    found: Any = whole
    for _ in range(3000):
        found = {**whole, "children": [found]}
    with pytest.raises(CodecError):
        from_plain(Tree, found)


def test_values_that_a_class_refuses_are_refused():
    with pytest.raises(UsageError):
        PerGroup(0)
    with pytest.raises(CodecError, match="It is no PerGroup: A group of 0 elements"):
        from_plain(PerGroup, {"size": 0})
