"""Group sizes for equal bits, compared with trying every size."""

from dataclasses import replace
from fractions import Fraction

import pytest
from every import in_parts, left_out, over

from qtui_core.errors import UsageError
from qtui_core.quant import Scheme
from qtui_core.quant.granularities import TOLERANCE, at_equal_bits
from qtui_core.quant.storage import bit_budget
from qtui_core.schemes.granularity import PerBlock, PerGroup

LARGE = (4096, 4096)
NF4_DQ = Fraction(4) + Fraction(65, 512) + Fraction(32, 4096 * 4096)


def equal(texts, shape, bits):
    return at_equal_bits([Scheme.parse(text) for text in texts], shape, bits)


def every_size(scheme, shape, kind):
    """Bits of every size of that kind, exact."""
    limit = shape[-1] if kind is PerGroup else 600
    for size in range(1, limit + 1):
        candidate = replace(scheme, granularity=kind(size))
        yield abs(bit_budget(candidate, shape).bits_per_parameter)


def test_the_bits_of_nf4_with_double_quantization():
    """4 + 32/G = 4.127 asks for G = 252; rows of 4,096 are cut into 16 groups of 256 instead,
    blocks of the flattened tensor into 252."""
    assert bit_budget(Scheme.parse("nf4:block64:dq"), LARGE).bits_per_parameter == NF4_DQ
    nf4, dq, integer, zero_point = equal(
        ["nf4", "nf4:block64:dq", "int4", "int4:group64:asym"], LARGE, NF4_DQ
    )
    assert str(nf4.scheme) == "nf4:block252"
    assert dq.scheme == dq.original
    assert dq.difference == 0
    assert str(integer.scheme) == "int4:group256"
    assert integer.bits == Fraction(33, 8)
    assert integer.difference == Fraction(33, 8) - NF4_DQ
    assert zero_point.bits == 4 + Fraction(36, 4096) * 14
    assert all(row.equal and not row.note for row in (nf4, dq, integer, zero_point))


def test_a_zero_point_asks_for_larger_groups():
    (found,) = equal(["int4:group64:asym"], (64, 720), Fraction(9, 2))
    assert str(found.scheme) == "int4:group72:asym"
    assert found.bits == Fraction(9, 2)  # 4 + (32 + 4) / 72, exactly


def test_blocks_where_rows_are_too_short():
    """Rows of 256 cut into whole groups take 4.42 or 4.56 bits with a zero point; blocks of 72
    over the flattened tensor 4.5 and a short last one."""
    (found,) = equal(["int4:group64:asym"], (704, 256), Fraction(9, 2))
    assert str(found.scheme) == "int4:block72:asym"
    assert found.equal
    assert 0 < found.difference < Fraction(1, 1000)


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
        nearest = min(abs(bits - wanted) for bits in every_size(scheme, shape, kind))
        assert abs(found.difference) <= nearest


def test_schemes_that_cannot_have_these_bits_say_why():
    rows = equal(["int8:row", "mxfp4", "bf16", "nvfp4", "ternary", "int3"], LARGE, Fraction(9, 2))
    integer, mx, cast, nv, ternary, small = rows
    assert integer.scheme == integer.original
    assert integer.note == "its codes alone take 8 bits"
    assert mx.note == "its group is part of its definition, so it takes 4.25 bits"
    assert cast.note == "its codes alone take 16 bits"
    assert nv.equal  # 4.5 bits and one scale of the tensor
    assert ternary.note == "it has no group to resize and takes 2 bits"
    assert not small.equal
    assert (
        small.note == f"{small.scheme.granularity} comes nearest, at {float(small.bits):.4g} bits"
    )
    assert [row.equal for row in rows] == [False, False, False, True, False, False]


def test_options_are_kept():
    rows = equal(["int4:group64:full", "nf4:block64:dq128", "e2m1:group64:stochastic"], LARGE, 4.2)
    assert [row.scheme.scale_rule for row in rows[:1]] == ["full"]
    assert rows[1].scheme.nested_block == 128
    assert rows[2].scheme.rounding == "stochastic"


def test_a_scheme_that_is_near_enough_keeps_its_size():
    (found,) = equal(["int4:group128"], LARGE, Fraction(17, 4) + Fraction(1, 200))
    assert found.scheme == found.original


def test_an_empty_tensor_is_refused():
    with pytest.raises(UsageError, match="empty tensor"):
        equal(["nf4"], (0, 8), 4.5)
