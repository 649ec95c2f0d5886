"""The comparison itself: it detects each kind of difference, and never passes without comparing
anything."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from shorthands import find_convention

from qtui_core.conformance.catalogue import find_library
from qtui_core.conformance.compare import ConformanceSample, Side, judge
from qtui_core.conformance.convention import Verdict
from qtui_core.schemes.scheme import Scheme

X = np.array([1.0, -2.0, 4.0], np.float32)
SIDE = Side(np.array([1, 2, 3], np.uint8), X, {"scale": np.array([0.5], np.float32)})


def verdict_of(theirs, x=X, ours=SIDE):
    return judge("a.b", [ConformanceSample("made", x, ours, theirs)])


NEXT = np.float32(0.5) + np.float32(2.0**-24)
#: A side that differs -> the verdict, (different codes, values and scales), part of the example.
SIDES = {
    "the same": (replace(SIDE, codes=SIDE.codes.astype(np.int64)), "BYTE_EQUAL", (0, 0, 0), ""),
    "another code": (replace(SIDE, codes=np.array([1, 9, 3])), "VALUE_EQUAL", (1, 0, 0), ""),
    "a last bit of a scale": (
        replace(SIDE, scales={"scale": np.array([NEXT])}), "VALUE_EQUAL", (0, 0, 1), "scale 0"),
    "the sign of a scale": (
        replace(SIDE, scales={"scale": -SIDE.scales["scale"]}), "VALUE_EQUAL", (0, 0, 1), ""),
    "values": (replace(SIDE, values=np.array([1.0, -1.0, 3.75], np.float32)), "DIFFERS",
               (0, 2, 0), "made: -2 becomes -2 here, -1 there"),
    "a NaN on one side": (
        replace(SIDE, values=np.array([1.0, np.nan, 4.0], np.float32)), "DIFFERS", (0, 1, 0), ""),
}  # fmt: skip


@pytest.mark.parametrize("side", SIDES)
def test_each_kind_of_difference_is_seen(side):
    theirs, verdict, counts, example = SIDES[side]
    found = verdict_of(theirs)
    assert (found.verdict, found.compared) == (Verdict[verdict], 3)
    assert (found.different, found.values_different, found.scales_different) == counts
    assert example in found.example
    # Against the largest element.
    assert side != "values" or found.largest_difference == 1.0 / 4.0


def test_minus_zero_and_another_nan_are_the_same_value_and_other_bytes():
    ours = Side(np.array([0, 1]), np.array([0.0, np.nan], np.float32))
    theirs = Side(np.array([8, 9]), np.array([-0.0, np.nan], np.float32))
    found = verdict_of(theirs, X[:2], ours)
    assert (found.verdict, found.different) == (Verdict.VALUE_EQUAL, 2)


def test_samples_add_up():
    worse = replace(SIDE, values=X + np.float32(0.5))
    found = judge(
        "a.b", [ConformanceSample("one", X, SIDE, SIDE), ConformanceSample("two", X, SIDE, worse)]
    )
    assert (found.verdict, found.compared, found.values_different) == (Verdict.DIFFERS, 6, 3)
    assert found.example.startswith("two")


@pytest.mark.parametrize(
    "theirs",
    [
        replace(SIDE, codes=SIDE.codes[:2]),
        replace(SIDE, values=X[:1]),
        replace(SIDE, scales={}),
        replace(SIDE, scales={"scale": np.ones(2, np.float32)}),
    ],
)
def test_sides_that_do_not_fit_are_no_verdict(theirs):
    with pytest.raises(ValueError, match="made"):
        verdict_of(theirs)
    with pytest.raises(ValueError, match="nothing was compared"):
        judge("a.b", [])


#: Conventions with one detail of our side changed; the check must detect each change.
TAMPERED = [
    ("gguf.q4_0", "int4:group32:absmax"),
    ("gguf.q4_0", "int4:group32:full"),
    ("torch.bf16", "encode bf16 nearest-away nosat"),
    ("torch.fp16", "encode fp16 nearest-even saturate"),
    ("torch.e4m3", "encode e4m3 nearest-away saturate"),
    ("torch.e5m2", "encode e5m2 nearest-even saturate"),
    ("torchao.int4", "int4:group64:full"),
    ("torchao.int4-full", "int4:group64:absmax"),
    ("torchao.int4-asym", "int4:group64:asym:zpfloat"),
    ("torchao.e4m3-tensor", "e5m2:tensor"),
    ("torchao.mxfp4", "mxfp4:even"),
    ("torchao.mxfp4-even", "mxfp4:rceil"),
    ("torchao.mxfp8-e4m3", "mxfp8-e5m2"),
    ("bitsandbytes.int8-outliers", "int8:row:outliers5.0"),
    ("compressed-tensors.fp8-channel", "e5m2:row"),
]


@pytest.mark.parametrize(("id", "ours"), TAMPERED)
def test_a_tampered_side_of_ours_differs(id, ours, monkeypatch):
    convention = find_convention(id)
    run = check_of(convention)
    from qtui_core.conformance.checks import sides
    from qtui_core.formats.array import encode_array

    assert convention.expected is not Verdict.DIFFERS
    quantize, encode = sides.quantize, encode_array

    def quantized(_, x):
        return quantize(x, Scheme.parse(ours))

    def encoded(_, x, *__):
        fmt, rounding, saturate = sides.split_cast(ours)
        return encode(fmt, x, rounding, saturate)

    # The checks that quantize themselves, and what `sides.check` does for the others.
    for names in (run.__globals__, getattr(run, "__wrapped__", run).__globals__):
        name, tampered = ("encode_array", encoded) if " " in ours else ("quantized", quantized)
        if name in names:
            monkeypatch.setitem(names, name, tampered)
    assert judge(id, run(convention)).verdict is Verdict.DIFFERS


def check_of(convention):
    library = find_library(convention.id.partition(".")[0])
    pytest.importorskip(library.module)
    name = library.name.replace("-", "_")
    return getattr(import_module(f"qtui_core.conformance.checks.{name}"), convention.check)


def test_the_tie_rule_of_nf4_is_checked(monkeypatch):
    """With ties rounded to the upper level. No BF16 number is a tie, so other values must be."""
    from qtui_core.quant.coders import make_coder
    from qtui_core.quant.plan import unread_plan

    unread_plan.cache_clear()  # a plan keeps its coder longer than `make_coder` does
    convention = find_convention("bitsandbytes.nf4")
    check = check_of(convention)
    coder = make_coder(Scheme.parse(convention.ours))
    upper = np.nextafter(coder.thresholds, np.float32(-np.inf))
    monkeypatch.setattr(coder, "thresholds", upper)
    assert judge(convention.id, check(convention)).verdict is Verdict.DIFFERS
