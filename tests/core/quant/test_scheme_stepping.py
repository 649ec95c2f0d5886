"""Changes of one part of a scheme at a time."""

from typing import Any

import numpy as np
import pytest
from every import over

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
    seen = [text.split(":")[0] for text in walk("int4", "format", len(SCHEME_FORMATS))]
    assert sorted(seen) == sorted(SCHEME_FORMATS)
    assert seen[-1] == "int4"


#: (the scheme, the part that is turned, what it becomes one turn after another); a minus turns the
#: other way.
TURNS = [
    # A new format keeps what it can have.
    ("int8:group128:asym", "format", "e4m3:group128"),
    ("tf32", "format", "nf4:block64"),
    ("nf4:block128:dq128", "format", "fp4:block128:dq128"),
    ("fp4:block128:dq", "format", "mxfp4"),
    ("mxfp4:rceil:stochastic7", "format", "mxfp6-e3m2:rceil:stochastic7"),
    ("nvfp4:stochastic", "format", "ternary:tensor"),
    ("int8:row:outliers6", "format", "e4m3:row e5m2:row e3m2:row"),
    ("int3:row:asym:stochastic", "format", "int4:row:asym:stochastic"),
    ("int4:group64", "granularity",
     "int4:block64 int4:tile128x128 int4:model int4:tensor int4:row int4:column int4:token "
     "int4:group64"),
    ("int4:tile3x5", "granularity", "int4:model"),
    ("ternary:tile128x128", "granularity", "ternary:tensor"),
    ("int8:row:outliers6", "granularity", "int8:token:outliers6.0"),
    ("int4:tensor", "-granularity", "int4:model"),
    # Around the usual sizes.
    ("int4:group64", "size", "int4:group128 int4:group256"),
    ("int4:group100", "-size", "int4:group64"),
    (f"int4:group{SIZES[-1]}", "size", f"int4:group{SIZES[0]}"),
    ("e4m3:tile128x128", "size", "e4m3:tile256x256"),
    ("int4:group64", "symmetry", "int4:group64:asym int4:group64"),
    ("int4:group64:full", "symmetry", "int4:group64:asym"),
    ("int4:row:asym:zpfloat", "symmetry", "int4:row"),
    ("int4:group64", "scale_rule", "int4:group64:full int4:group64:signed int4:group64"),
    ("int4:group64:asym", "scale_rule", "int4:group64:full"),
    ("mxfp4", "scale_rule", "mxfp4:ceil mxfp4:even mxfp4:rceil mxfp4"),
    ("int4:row:stochastic", "scale_rule", "int4:row:full:stochastic int4:row:stochastic"),
    ("nf4", "double_quantization", "nf4:block64:dq nf4:block64"),
    ("int4:row:asym", "zero_point", "int4:row:asym:zpfloat int4:row:asym"),
    ("mxfp4", "rounding", "mxfp4:stochastic mxfp4"),
    ("nf4:dq", "nested", "nf4:block64:dq512 nf4:block64:dq1024 nf4:block64:dq64"),
    ("nf4:dq100", "-nested", "nf4:block64:dq64"),
    ("int8", "outliers", "int8:row:outliers6.0 int8:row:outliers6.5"),
    ("int8:row:outliers0.5", "-outliers", "int8:row"),
    ("int8:row:outliers20", "outliers", "int8:row"),
]  # fmt: skip


@over(("text", "part", "becomes"), TURNS)
def test_one_part_at_a_time(text: str, part: str, becomes: str) -> None:
    steps, direction = len(becomes.split()), -1 if part[0] == "-" else 1
    assert walk(text, part.removeprefix("-"), steps, direction) == becomes.split()


#: Why a part of a scheme cannot be turned -> (the scheme, the part).
IMPOSSIBLE = {
    "blocks of the flattened tensor": [("nf4", "granularity")],
    "without a scale": [("bf16", "granularity")],
    "defined with group32": [("mxfp4", "granularity")],
    "no group, block or square tile": [("bf16", "size"), ("int8:row", "size")],
    "square tile": [("e4m3:tile3x5", "size")],
    "no zero point": [("nf4", "symmetry"), ("mxfp4", "symmetry")],
    "sym has none": [("int4", "zero_point")],
    "no other scale rule": [("e4m3", "scale_rule"), ("nvfp4", "scale_rule")],
    "dq is for nf4 and fp4": [("int4", "double_quantization")],
    "belongs to double quantization": [("nf4", "nested"), ("int4", "nested")],
    "rounds to the nearest level": [("nf4", "rounding")],
    "its own rounding": [("int4:signed", "rounding")],
    "Outlier columns": [("int8:column", "outliers")],
    "no outlier columns": [("e4m3", "outliers")],
    "no part named": [("int4", "colour")],
}


@over(("sentence", "turns"), IMPOSSIBLE.items())
def test_an_impossible_turn_says_why(sentence: str, turns: list[tuple[str, str]]) -> None:
    for text, part in turns:
        with pytest.raises(UsageError, match=sentence):
            step_scheme(Scheme.parse(text), part, 1)


def test_every_turn_from_every_scheme_is_a_scheme_or_is_refused() -> None:
    """Any knob of the default schemes, and long random walks from there."""
    seen = {Scheme(name) for name in SCHEME_FORMATS}
    seen |= {found for scheme in list(seen) for found in turns(scheme)}
    random = np.random.default_rng(0)
    for name in SCHEME_FORMATS:
        scheme = Scheme(name)
        for _ in range(60):
            scheme = random.choice(np.array(turns(scheme), object))
            seen.add(scheme)
    for scheme in seen:
        assert Scheme.parse(str(scheme)) == scheme
    assert {scheme.format for scheme in seen} == set(SCHEME_FORMATS)
    assert {scheme.rounding for scheme in seen} == set(ROUNDINGS)
    assert len(seen) > 700


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
