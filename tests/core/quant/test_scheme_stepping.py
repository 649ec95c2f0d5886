"""Changes of one part of a scheme at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qtui_core.errors import UsageError
from qtui_core.schemes.scheme import ROUNDINGS, SCHEME_FORMATS, Scheme, check_side_by_side
from qtui_core.schemes.stepping import SIZES, resize_scheme, step_scheme

PARTS = (
    "format", "granularity", "size", "symmetry", "zero_point", "scale_rule", "rounding",
    "double_quantization", "nested", "outliers",
)  # fmt: skip


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
    assert walk("nf4:block128:dq128", "format", 1) == ["fp4:block128:dq128"]
    assert walk("fp4:block128:dq", "format", 1) == ["mxfp4"]
    assert walk("mxfp4:rceil:stochastic7", "format", 1) == ["mxfp6-e3m2:rceil:stochastic7"]
    assert walk("nvfp4:stochastic", "format", 1) == ["ternary:tensor"]
    assert walk("ternary:tile128x128", "format", 1) == ["int2:tile128x128"]
    assert walk("int8:row:outliers6", "format", 1) == ["e4m3:row"]
    assert walk("int3:row:asym:stochastic", "format", 1) == ["int4:row:asym:stochastic"]
    assert walk("e4m3:row", "format", 2) == ["e5m2:row", "e3m2:row"]


def test_granularity_visits_every_kind() -> None:
    seen = walk("int4:group64", "granularity", 8)
    assert seen == [
        "int4:block64", "int4:tile128x128", "int4:model", "int4:tensor", "int4:row", "int4:column",
        "int4:token", "int4:group64",
    ]  # fmt: skip
    assert walk("int4:tile3x5", "granularity", 1) == ["int4:model"]
    assert walk("ternary:tile128x128", "granularity", 1) == ["ternary:tensor"]
    assert walk("int8:row:outliers6", "granularity", 1) == ["int8:token:outliers6.0"]
    assert walk("int4:tensor", "granularity", 1, -1) == ["int4:model"]


def test_size_goes_around_the_usual_sizes() -> None:
    assert walk("int4:group64", "size", 2) == ["int4:group128", "int4:group256"]
    assert walk("int4:group100", "size", 1) == ["int4:group128"]
    assert walk("int4:group100", "size", 1, -1) == ["int4:group64"]
    assert walk(f"int4:group{SIZES[-1]}", "size", 1) == [f"int4:group{SIZES[0]}"]
    assert walk("e4m3:tile128x128", "size", 1) == ["e4m3:tile256x256"]


def test_symmetry_and_rule() -> None:
    assert walk("int4:group64", "symmetry", 2) == ["int4:group64:asym", "int4:group64"]
    assert walk("int4:group64:full", "symmetry", 1) == ["int4:group64:asym"]
    assert walk("int4:group64", "scale_rule", 3) == [
        "int4:group64:full", "int4:group64:signed", "int4:group64",
    ]  # fmt: skip
    assert walk("int4:group64:asym", "scale_rule", 1) == ["int4:group64:full"]
    assert walk("nf4", "double_quantization", 2) == ["nf4:block64:dq", "nf4:block64"]
    assert walk("nf4:dq128", "double_quantization", 1) == ["nf4:block64"]
    assert walk("mxfp4", "scale_rule", 4) == ["mxfp4:ceil", "mxfp4:even", "mxfp4:rceil", "mxfp4"]
    assert walk("int4:row:stochastic", "scale_rule", 2) == [
        "int4:row:full:stochastic",
        "int4:row:stochastic",
    ]


def test_zero_point_rounding_nesting_and_outliers() -> None:
    assert walk("int4:row:asym", "zero_point", 2) == ["int4:row:asym:zpfloat", "int4:row:asym"]
    assert walk("int4:row:asym:zpfloat", "symmetry", 1) == ["int4:row"]
    assert walk("mxfp4", "rounding", 2) == ["mxfp4:stochastic", "mxfp4"]
    assert walk("bf16:stochastic7", "rounding", 1) == ["bf16"]
    assert walk("nf4:dq", "nested", 3) == [
        "nf4:block64:dq512", "nf4:block64:dq1024", "nf4:block64:dq64",
    ]  # fmt: skip
    assert walk("nf4:dq100", "nested", 1, -1) == ["nf4:block64:dq64"]
    assert walk("int8", "outliers", 2) == ["int8:row:outliers6.0", "int8:row:outliers6.5"]
    assert walk("int8", "outliers", 13, -1)[-2:] == ["int8:row:outliers0.5", "int8:row"]
    assert walk("int8:row:outliers20", "outliers", 1) == ["int8:row"]


@pytest.mark.parametrize(
    ("text", "part", "sentence"),
    [
        ("nf4", "granularity", "blocks of the flattened tensor"),
        ("bf16", "granularity", "without a scale"),
        ("bf16", "size", "no group, block or square tile"),
        ("int8:row", "size", "no group, block or square tile"),
        ("nf4", "symmetry", "no zero point"),
        ("e4m3", "scale_rule", "no other scale rule"),
        ("int4", "double_quantization", "dq is for nf4 and fp4"),
        ("int4", "colour", "no part named"),
        ("mxfp4", "granularity", "defined with group32"),
        ("mxfp4", "symmetry", "no zero point"),
        ("nvfp4", "scale_rule", "no other scale rule"),
        ("int4", "zero_point", "sym has none"),
        ("nf4", "rounding", "rounds to the nearest level"),
        ("int4:signed", "rounding", "its own rounding"),
        ("nf4", "nested", "belongs to double quantization"),
        ("int4", "nested", "belongs to double quantization"),
        ("int8:column", "outliers", "Outlier columns"),
        ("e4m3", "outliers", "no outlier columns"),
        ("e4m3:tile3x5", "size", "square tile"),
    ],
)
def test_an_impossible_turn_says_why(text: str, part: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        step_scheme(Scheme.parse(text), part, 1)


def test_every_turn_from_every_scheme_is_a_scheme_or_is_refused() -> None:
    """Two turns of any knobs from the default schemes, and long random walks from there."""
    seen = {Scheme(name) for name in SCHEME_FORMATS}
    for _ in range(2):
        seen |= {found for scheme in list(seen) for found in turns(scheme)}
    random = np.random.default_rng(0)
    for name in SCHEME_FORMATS:
        scheme = Scheme(name)
        for _ in range(100):
            scheme = random.choice(np.array(turns(scheme), object))
            seen.add(scheme)
    for scheme in seen:
        assert Scheme.parse(str(scheme)) == scheme
    assert {scheme.format for scheme in seen} == set(SCHEME_FORMATS)
    assert {scheme.rounding for scheme in seen} == set(ROUNDINGS)
    assert len(seen) > 1000


def turns(scheme: Scheme) -> list[Scheme]:
    """The schemes that one turn of a knob makes of a scheme, if it is not refused."""
    found = []
    for part in PARTS:
        for direction in (1, -1):
            try:
                found.append(step_scheme(scheme, part, direction))
            except UsageError:
                continue
    assert all(other != scheme for other in found)
    return found


def test_resizing_turns_what_each_scheme_has() -> None:
    texts = ("nf4", "int4:group64:asym", "int8:row", "mxfp4", "fp4:block64:dq")
    schemes = [Scheme.parse(text) for text in texts]

    def resized(**changes: Any) -> list[str]:
        return [str(resize_scheme(scheme, **changes)) for scheme in schemes]

    assert resized(size=128) == [
        "nf4:block128", "int4:group128:asym", "int8:row", "mxfp4", "fp4:block128:dq",
    ]  # fmt: skip
    assert resized(double_quantization=True, nested=64) == [
        "nf4:block64:dq64", "int4:group64:asym", "int8:row", "mxfp4", "fp4:block64:dq64",
    ]  # fmt: skip
    assert resized(double_quantization=False)[-1] == "fp4:block64"
    assert resized(nested=512)[::4] == ["nf4:block64", "fp4:block64:dq512"]
    large = Scheme.parse("fp4:block8192")  # too large for double quantization
    assert resize_scheme(large, double_quantization=True) == large


def test_schemes_side_by_side_have_codes_that_can_be_counted() -> None:
    few = [Scheme.parse(text) for text in ("nf4", "int8", "mxfp6-e3m2")]
    check_side_by_side(few)
    with pytest.raises(UsageError, match="too many to show one by one"):
        check_side_by_side([*few, Scheme.parse("bf16")])
    with pytest.raises(UsageError, match="9 schemes are too many"):
        check_side_by_side([Scheme.parse(f"nf4:block{size}") for size in range(1, 10)])
