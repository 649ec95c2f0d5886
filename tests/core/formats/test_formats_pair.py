"""What is said of a format beside a pinned one: for examples, and for every value."""

import math
import re
from fractions import Fraction

from every import drawn, over
from hypothesis import strategies as st
from test_formats_summary import numbers
from told_truly import faults_of

from qtui_core.formats import FORMATS, Rounding, describe_value, parse_value
from qtui_core.formats.decimals import format_rounded
from qtui_core.formats.pair import compare_pair, relative_text

SAME = "Both take 8 bits"


def said(text: str, chosen: str, pinned: str, saturate: bool | None = None) -> str:
    value = parse_value(text)
    return compare_pair(
        *(describe_value(value, saturate=saturate, formats=(FORMATS[name],))[0]
          for name in (chosen, pinned))
    )  # fmt: skip


@over(
    ("text", "chosen", "pinned", "sentence"),
    [
        ("0.1", "e4m3", "e5m2", "E4M3 comes 4 times closer to 0.1 than E5M2, off by 1.6% against "
         f"6.2%. {SAME}."),
        ("1", "fp16", "e4m3", "FP16 and E4M3 both keep 1 exactly. FP16 takes 16 bits, E4M3 8, "
         "so E4M3 is enough for this value."),
        ("-0", "e4m3", "int8", "E4M3 keeps -0 better than INT8: E4M3 keeps it exactly, INT8 drops "
         "its sign."),
        ("0", "e8m0", "int8", "INT8 keeps 0 better than E8M0: INT8 keeps it exactly, E8M0 gives "
         f"5.8775e-39. {SAME}."),
        ("inf", "e4m3", "int8", "Neither E4M3 nor INT8 keeps inf: E4M3 cuts it to 448, INT8 cuts "
         "it to 127."),
        ("1e9", "fp16", "e4m3", "E4M3 comes closer to 1000000000 than FP16: E4M3 cuts it to 448, "
         "FP16 gives inf."),
        ("1e-9", "e4m3", "fp16", "E4M3 and FP16 both make 0 of 1e-9, off by 100%. E4M3 takes 8 bits"
         ", FP16 16."),
        ("0.1", "e4m3", "e4m3", "E4M3 makes 0.10156 of 0.1, off by 1.6%; it is inside its range, "
         "so more mantissa bits would bring it closer, not a wider range. Choose another format "
         "to compare it with this pinned one."),
    ],
)  # fmt: skip
def test_the_sentence(text: str, chosen: str, pinned: str, sentence: str) -> None:
    assert said(text, chosen, pinned).startswith(sentence)


def test_integers_that_wrap_are_said_to_wrap() -> None:
    assert said("200", "int8", "e4m3", saturate=False).startswith(
        "E4M3 comes 32 times closer to 200 than INT8, off by 4% against 128%."
    )
    assert "INT8 wraps to -56" in said("200", "int8", "fp16", saturate=False)
    assert "INT8 has no code for it" in said("inf", "int8", "fp16", saturate=False)


def test_equally_far_on_both_sides() -> None:
    (below,) = describe_value(Fraction(5, 2), Rounding.DOWN, None, (FORMATS["int8"],))
    (above,) = describe_value(Fraction(5, 2), Rounding.UP, None, (FORMATS["e2m1"],))
    assert compare_pair(below, above).startswith(
        "INT8 and E2M1 are equally far from 2.5, off by 20%: INT8 gives 2, E2M1 3."
    )


@over(
    ("text", "relative"),
    [
        ("0", {"e4m3": "exact", "e8m0": "infinite", "int8": "exact"}),
        ("-0", {"e4m3": "exact", "int8": "exact"}),
        ("inf", {"fp16": "exact", "e4m3": "none", "int8": "none"}),
        ("nan", {"fp16": "exact", "e2m1": "none"}),
        ("1e9", {"fp16": "infinite", "fp32": "exact", "int8": "-100%"}),
        ("-1", {"e8m0": "none", "int8": "exact"}),
        ("0.1", {"e4m3": "+1.56%", "int8": "-100%", "e5m2": "-6.25%"}),
        ("-0.1", {"e4m3": "-1.56%"}),
    ],
)
def test_the_relative_error_of_what_has_none(text: str, relative: dict[str, str]) -> None:
    for name, expected in relative.items():
        (row,) = describe_value(parse_value(text), formats=(FORMATS[name],))
        assert relative_text(row) == expected, name


def is_number(value) -> bool:
    return isinstance(value, Fraction) or (value is not None and math.isfinite(value))


FORMAT = st.sampled_from(list(FORMATS.values()))


@drawn(1500, 4, numbers(), FORMAT, FORMAT, st.sampled_from(list(Rounding)),
       st.sampled_from([None, True, False]))  # fmt: skip
def test_every_claim_is_true(value, one, other, rounding, saturate) -> None:
    rows = describe_value(value, rounding, saturate, (one, other))
    chosen, pinned = rows
    sentence = compare_pair(chosen, pinned)
    assert not faults_of(sentence.replace("inf", "end").replace("NaN", "end").replace("-0", "0"))
    assert len(sentence) < 400
    errors: dict[str, Fraction | None] = {}
    for row in rows:
        errors[row.format.title] = None
        if value == value and abs(value) != math.inf and is_number(row.value):
            error = Fraction(row.value) - Fraction(value)
            errors[row.format.title] = abs(error)
            if value and error:
                exact = error / abs(Fraction(value)) * 100
                assert relative_text(row) == f"{format_rounded(exact, 3, signed=True)}%"
    if one is other:
        return
    closer = r"(\S+(?: IEEE)?) comes (?:(\S+) times|a little) closer to \S+ than (.*), off"
    if found := re.match(closer, sentence):
        near, far = errors[found[1]], errors[found[3]]
        assert 0 < near < far
        if found[2]:
            times = Fraction(found[2].replace(",", ""))
            assert abs(times - far / near) <= far / near / 18
    if found := re.match(r"(.*) (?:keeps|comes) .*?(?:better|closer).*? than ([^:,]*): ", sentence):
        near, far = errors[found[1]], errors[found[2]]
        assert far is None or near is None or near < far or value == 0
    if " both keep " in sentence:
        assert all(row.value == value or value != value for row in rows)
    if "equally far" in sentence or " both make " in sentence:
        assert len(set(errors.values())) == 1
        assert None not in errors.values()
    bits = one.storage_bits, other.storage_bits
    assert ("Both take" in sentence) == (bits[0] == bits[1])
    if " is enough for" in sentence:
        assert " both keep " in sentence
        least = min((one, other), key=lambda fmt: fmt.storage_bits)
        assert f"so {least.title} is enough" in sentence
