"""Schemes by granularity, and group sizes for equal bits, compared with trying every size."""

from dataclasses import replace
from fractions import Fraction

import pytest
from every import in_parts, left_out, over

from qtui_core.errors import UsageError
from qtui_core.quant import PerBlock, PerColumn, PerGroup, PerRow, PerTensor, Scheme
from qtui_core.quant.granularities import TOLERANCE, at_equal_bits, schemes_by_granularity
from qtui_core.quant.storage import bit_budget

LARGE = (4096, 4096)
NF4_DQ = Fraction(4) + Fraction(65, 512) + Fraction(32, 4096 * 4096)
GROUPS = [PerRow(), PerGroup(128), PerGroup(64), PerBlock(64), PerGroup(32)]


@pytest.mark.parametrize(
    ("text", "shape", "wanted", "expected"),
    [
        ("int4:group48", (96, 300), None,
         "tensor tile128x128 row group128 column block64 group64 group48 group32"),
        ("nf4:block512", (96, 300), None,
         "block4096 block1024 block512 block256 block128 block64 block32"),
        ("int8:model", (96, 300), None,
         "model tensor tile128x128 row group128 column block64 group64 group32"),
        ("bf16", (96, 300), None, "None"),
        # Tokens are rows of a matrix, but not of a convolution.
        ("int8:row", (6, 4, 8, 8), None,
         "tensor tile128x128 row group128 group64 group32 token column"),
        ("int4", (96, 300), [PerGroup(30), PerTensor(), PerColumn()], "group30 tensor column"),
        ("nf4", (96, 300), [PerRow(), PerBlock(64)], "block64"),
        # Of equal ones the scheme's own is kept, else the first.
        ("int4:row", (10, 64), GROUPS, "row group32"),
        ("int4:group64", (10, 64), GROUPS, "group64 group32"),
        ("int4", (0, 8), None, None), ("int4", (), None, None), ("int4", (200,), None, None),
    ],
)  # fmt: skip
def test_distinct_granularities_from_few_scales_to_many(text, shape, wanted, expected):
    found, left_out = schemes_by_granularity(Scheme.parse(text), shape, wanted)
    assert wanted or Scheme.parse(text) in found
    if expected is not None:
        assert " ".join(str(scheme.granularity) for scheme in found) == expected
    assert not {row.granularity for row in left_out} & {str(s.granularity) for s in found}


def test_what_is_left_out_has_a_reason():
    _, (left,) = schemes_by_granularity(Scheme.parse("nf4"), (9, 64), [PerRow(), PerBlock(64)])
    assert (left.granularity, "cannot be scaled per row" in left.reason) == ("row", True)
    _, equal = schemes_by_granularity(Scheme.parse("int4:row"), (10, 64), GROUPS)
    assert [row.granularity for row in equal] == ["group128", "group64", "block64"]
    assert all("are those of row" in row.reason for row in equal)


@over(
    ("text", "shape", "bits", "found", "takes"),
    [
        # 4 + 32/G = 4.127 asks for G = 252, but rows of 4,096 are cut into 16 groups of 256.
        ("nf4", LARGE, NF4_DQ, "nf4:block252", None),
        ("nf4:block64:dq", LARGE, NF4_DQ, "nf4:block64:dq", NF4_DQ),
        ("int4", LARGE, NF4_DQ, "int4:group256", Fraction(33, 8)),
        ("int4:asym", LARGE, NF4_DQ, None, 4 + Fraction(36, 4096) * 14),
        ("int4:group64:asym", (64, 720), 4.5, "int4:group72:asym", 4 + Fraction(36, 72)),
        # Whole groups of rows of 256 take 4.42 or 4.56 bits.
        ("int4:group64:asym", (704, 256), 4.5, "int4:block72:asym", None),
        ("int4:group64:full", LARGE, 4.2, "int4:group158:full", None),
        ("nf4:dq128", LARGE, 4.2, "nf4:block41:dq128", None),
        ("e2m1:stochastic", LARGE, 4.2, "e2m1:group158:stochastic", None),
        # Near enough.
        ("int4:group128", LARGE, Fraction(17, 4) + Fraction(1, 200), "int4:group128", None),
    ],
)
def test_groups_for_equal_bits(text, shape, bits, found, takes):
    (row,) = at_equal_bits([Scheme.parse(text)], shape, bits)
    assert found is None or str(row.scheme) == found
    assert takes is None or row.bits == takes
    assert row.equal
    assert not row.note


TEXTS = ["int4:group64", "int4:group64:asym", "e2m1:group64", "nf4", "nf4:block64:dq", "int3:row",
         "int4:block64"]  # fmt: skip
WANTED = [Fraction(9, 2), NF4_DQ, Fraction(21, 5), Fraction(6)]
SHAPES = [(64, 720), (704, 256), (100, 37), (16, 1000), (5, 37), (1, 300)]


@in_parts(2)
@over("shape", SHAPES)
@over("wanted", WANTED)
@over("text", TEXTS)
def test_no_size_comes_nearer(text, wanted, shape, parts):
    """No other size of the same kind of groups is closer, unless the chosen one is well within the
    tolerance."""
    if left_out(parts, (shape, SHAPES), (wanted, WANTED), (text, TEXTS)):
        return
    scheme = Scheme.parse(text)
    ((found,)) = at_equal_bits([scheme], shape, wanted)
    assert found.bits == bit_budget(found.scheme, shape).bits_per_parameter
    assert found.difference == found.bits - wanted
    assert found.equal is (abs(found.difference) <= TOLERANCE)
    if abs(found.difference) <= TOLERANCE / 2:
        return
    kinds = {PerBlock} if scheme.format == "nf4" or "block" in text else {PerGroup, PerBlock}
    for kind in kinds:
        for size in range(1, (shape[-1] if kind is PerGroup else 600) + 1):
            other = bit_budget(replace(scheme, granularity=kind(size)), shape).bits_per_parameter
            assert abs(found.difference) <= abs(other - wanted)


@over(
    ("text", "note"),
    [
        ("int8:row", "its codes alone take 8 bits"),
        ("mxfp4", "its group is part of its definition, so it takes 4.25 bits"),
        ("bf16", "its codes alone take 16 bits"),
        ("ternary", "it has no group to resize and takes 2 bits"),
        ("int3", "block21 comes nearest, at 4.524 bits"),
        ("nvfp4", ""),  # 4.5 bits and one scale of the tensor
    ],
)
def test_schemes_that_cannot_have_these_bits_say_why(text, note):
    (row,) = at_equal_bits([Scheme.parse(text)], LARGE, Fraction(9, 2))
    assert (row.note or "", row.equal) == (note, not note)


def test_an_empty_tensor_is_refused():
    with pytest.raises(UsageError, match="empty tensor"):
        at_equal_bits([Scheme("nf4")], (0, 8), 4.5)
