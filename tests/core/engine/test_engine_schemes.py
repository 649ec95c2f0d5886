"""Turning one knob of a scheme at a time."""

from __future__ import annotations

import pytest

from qtui.engine.schemes import SIZES, describe_scheme, step_scheme
from qtui_core.errors import UsageError
from qtui_core.quant import Scheme
from qtui_core.quant.scheme import SCHEME_FORMATS

PARTS = ("format", "granularity", "size", "symmetry", "scale_rule", "double_quantization")


def walk(text: str, part: str, steps: int, direction: int = 1) -> list[str]:
    scheme = Scheme.parse(text)
    seen = []
    for _ in range(steps):
        scheme = step_scheme(scheme, part, direction)
        seen.append(str(scheme))
    return seen


def test_format_visits_every_format_and_comes_back() -> None:
    count = len(SCHEME_FORMATS)
    seen = [text.split(":")[0] for text in walk("int4", "format", count)]
    assert sorted(seen) == sorted(SCHEME_FORMATS)
    assert seen[-1] == "int4"


def test_a_new_format_keeps_what_it_can_have() -> None:
    assert walk("int4:row:asym", "format", 1) == ["int5:row:asym"]
    assert walk("int8:group128:asym", "format", 1) == ["e4m3:group128"]
    assert walk("tf32", "format", 1) == ["nf4:block64"]
    assert walk("nf4:block128:dq", "format", 1) == ["fp4:block128:dq"]
    assert walk("fp4:block128:dq", "format", 1) == ["int2:block128"]


def test_granularity_visits_every_kind() -> None:
    seen = walk("int4:group64", "granularity", 6)
    assert seen == [
        "int4:block64", "int4:model", "int4:tensor", "int4:row", "int4:column", "int4:group64",
    ]  # fmt: skip
    assert walk("int4:tensor", "granularity", 1, -1) == ["int4:model"]


def test_size_goes_around_the_usual_sizes() -> None:
    assert walk("int4:group64", "size", 2) == ["int4:group128", "int4:group256"]
    assert walk("int4:group100", "size", 1) == ["int4:group128"]
    assert walk("int4:group100", "size", 1, -1) == ["int4:group64"]
    assert walk(f"int4:group{SIZES[-1]}", "size", 1) == [f"int4:group{SIZES[0]}"]


def test_symmetry_and_rule() -> None:
    assert walk("int4:group64", "symmetry", 2) == ["int4:group64:asym", "int4:group64"]
    assert walk("int4:group64:full", "symmetry", 1) == ["int4:group64:asym"]
    assert walk("int4:group64", "scale_rule", 3) == [
        "int4:group64:full", "int4:group64:signed", "int4:group64",
    ]  # fmt: skip
    assert walk("int4:group64:asym", "scale_rule", 1) == ["int4:group64:full"]
    assert walk("nf4", "double_quantization", 2) == ["nf4:block64:dq", "nf4:block64"]


@pytest.mark.parametrize(
    ("text", "part", "sentence"),
    [
        ("nf4", "granularity", "blocks of the flattened tensor"),
        ("bf16", "granularity", "without a scale"),
        ("bf16", "size", "cast without a scale"),
        ("int8:row", "size", "per row has no size"),
        ("nf4", "symmetry", "no zero point"),
        ("e4m3", "scale_rule", "for the integers"),
        ("int4", "double_quantization", "dq is for nf4 and fp4"),
        ("int4", "colour", "no part named"),
    ],
)
def test_an_impossible_turn_says_why(text: str, part: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        step_scheme(Scheme.parse(text), part, 1)


def test_every_turn_from_every_scheme_is_a_scheme_or_is_refused() -> None:
    """All that can be reached from the default schemes by turning knobs."""
    seen: set[str] = set()
    waiting = [str(Scheme(name)) for name in SCHEME_FORMATS]
    while waiting:
        text = waiting.pop()
        if text in seen:
            continue
        seen.add(text)
        for part in PARTS:
            for direction in (1, -1):
                try:
                    stepped = step_scheme(Scheme.parse(text), part, direction)
                except UsageError:
                    continue
                assert Scheme.parse(str(stepped)) == stepped
                waiting.append(str(stepped))
    assert len(seen) > 200


def test_parts_that_a_format_lacks_are_none() -> None:
    assert describe_scheme(Scheme.parse("int4:group32:signed")) == {
        "text": "int4:group32:signed",
        "format": "int4",
        "granularity": "group",
        "size": 32,
        "symmetric": True,
        "scale_rule": "signed",
        "double_quantization": None,
    }
    assert describe_scheme(Scheme.parse("bf16"))["granularity"] is None
    assert describe_scheme(Scheme.parse("int4:asym"))["scale_rule"] is None
    assert describe_scheme(Scheme.parse("nf4:dq"))["double_quantization"] is True
