"""Counts of codes, compared with those of `quantize`."""

import math

import numpy as np
import pytest
from every import in_parts, left_out, over
from shorthands import code_occupancy

from qtui_core.errors import UsageError
from qtui_core.quant import Scheme, quantize
from qtui_core.quant.levels import alphabet_of
from qtui_core.quant.occupancy import entropy

LOCAL = [
    "int2:group16:asym", "int3:row", "int4:group64", "int4:group33:asym", "int4:group64:full",
    "int4:group64:signed", "int8:column", "e2m1:group64", "e3m0:tensor", "e4m3:row",
    "nf4:block64", "fp4:block33", "nf4:block32:dq", "fp4:block64:dq128", "mxfp4", "mxint8",
    "mxfp6-e2m3:ceil", "nvfp4", "ternary", "int4:tile8x16", "int4:group64:asym:zpfloat",
    "int4:group64:stochastic7",
]  # fmt: skip
SHAPES = ((24, 192), (5, 70), (101,))


def normal(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def patterns(x, scheme):
    """The bit pattern of each element, and that of which level."""
    q = quantize(x, scheme)
    return q, q.unpacked_codes.reshape(-1).astype(np.int64) & (2**scheme.bits - 1)


@in_parts(3)
@over("text", LOCAL)
def test_codes_of_quantize(text, parts):
    scheme = Scheme.parse(text)
    for shape in SHAPES:
        if left_out(parts, (text, LOCAL), (shape, SHAPES)):
            continue
        x = normal(shape, 4).view(np.uint32) & np.uint32(0xFFFF0000)  # of bfloat16: many ties
        x = x.view(np.float32)
        found = code_occupancy(x, scheme)
        theirs = np.bincount(patterns(x, scheme)[1], minlength=2**scheme.bits)
        np.testing.assert_array_equal(found.counts, theirs[found.codes])


@over("text", LOCAL)
def test_levels_are_what_the_codes_decode_to(text):
    """Every pattern once, ascending; divided by the scale, in units of the outermost level."""
    scheme = Scheme.parse(text)
    alphabet = alphabet_of(scheme)
    assert sorted(alphabet.codes) == list(range(2**scheme.bits))
    levels = alphabet.levels[alphabet.reachable]
    assert (np.diff(levels) >= 0).all()
    zeros = np.flatnonzero(levels == 0)
    assert len(zeros) < 2 or list(np.signbit(levels[zeros])) == [True, False]
    if "asym" in text:
        return
    q, codes = patterns(normal((64, 64), 5), scheme)
    values = q.dequantize().reshape(-1).astype(np.float64)
    level_of = dict(zip(alphabet.codes.tolist(), alphabet.levels.tolist(), strict=True))
    for at in range(0, values.size, 37):
        expected = level_of[int(codes[at])] * q.scale_at(*divmod(at, 64))[0] * alphabet.top
        assert values[at] == pytest.approx(expected, rel=1e-6, abs=1e-30)


@over(
    ("text", "never"),
    [("int4", [8]), ("int4:group64:full", []), ("int4:group64:signed", []), ("nf4", []),
     ("fp4", [8]), ("e2m1", []), ("ternary", [2]), ("mxint8", [128]), ("e4m3", [127, 255])],
)  # fmt: skip
def test_codes_that_no_element_can_have(text, never):
    found = code_occupancy(normal((64, 64)), Scheme.parse(text))
    assert sorted(found.unreachable) == never
    assert not found.counts[np.isin(found.codes, never)].any()


def test_a_format_of_many_bits_is_refused():
    with pytest.raises(UsageError, match="65,536 codes, too many"):
        code_occupancy(normal((4, 4)), Scheme.parse("bf16"))


def test_entropy_in_bits():
    assert entropy(np.full(16, 1 / 16)) == 4
    assert entropy(np.array([0.5, 0.25, 0.25, 0, 0])) == 1.5
    assert entropy(np.array([0.0, 1.0])) == 0


def test_entropy_and_unused_codes_of_a_tensor():
    """Every code of int4 twice but one: the levels are whole numbers over 7."""
    x = np.tile(np.arange(-7, 8, dtype=np.float32), (2, 1))
    found = code_occupancy(x, Scheme.parse("int4:row"))
    assert (found.entropy_bits, list(found.unused)) == (pytest.approx(math.log2(15)), [])
    x[x == 3] = 2
    assert list(code_occupancy(x, Scheme.parse("int4:row")).unused) == [3]
    constant = code_occupancy(np.full((4, 64), 0.3, np.float32), Scheme.parse("nf4"))
    assert (constant.entropy_bits, len(constant.unused)) == (0, 15)
    nothing = code_occupancy(np.empty((0, 8), np.float32), Scheme.parse("nf4"))
    assert (nothing.total, nothing.entropy_bits, nothing.expected) == (0, None, None)


@over("text", ["nf4", "int4", "int4:group64:asym", "e4m3:row", "mxfp8-e5m2", "nvfp4"])
def test_what_is_not_finite_is_left_out(text):
    x = normal((8, 64), 6)
    holes = x.copy()
    holes[0, :3] = np.nan, np.inf, -np.inf
    found = code_occupancy(holes, Scheme.parse(text))
    assert found.nonfinite == 3
    assert found.total == found.density.sum() == x.size - 3
    zeroed = np.where(np.isfinite(holes), holes, 0).astype(np.float32)
    difference = code_occupancy(zeroed, Scheme.parse(text)).counts - found.counts
    assert (difference.sum(), difference.min()) == (3, 0)


def test_what_is_kept_apart_is_not_counted_and_what_is_beyond_is():
    x = normal((32, 64), 7)
    x[5, 9], x[3, 40] = 20, -30
    found = code_occupancy(x, Scheme.parse("int8:row:outliers6.0"))
    assert found.total == found.density.sum() == 32 * 62
    x = np.full((1, 32), 0.1, np.float32)
    x[0, 0] = 7.0  # floor(log2 7) = 2: the scale is 1 and 7 is beyond 6
    assert code_occupancy(x, Scheme.parse("mxfp4")).beyond == 1
    assert code_occupancy(x, Scheme.parse("mxfp4:rceil")).beyond == 0


@over("text", ["nf4:block64", "int4:group64", "e2m1:group64", "int4:group64:asym"])
def test_density_is_of_values_over_the_absmax_or_of_the_range(text):
    x = normal((64, 256), 10)
    if "asym" in text:
        x = np.abs(x)  # so that the range is from 0 to the absmax
    groups = x.reshape(-1, 64).astype(np.float64)
    scaled = groups / np.abs(groups).max(axis=1, keepdims=True)
    found = code_occupancy(x, Scheme.parse(text), bins=64)
    theirs, _ = np.histogram(2 * scaled - 1 if "asym" in text else scaled, 64, (-1, 1))
    assert found.density.sum() == x.size
    # In float32 a value beside an edge may fall to its other side.
    assert np.abs(found.density - theirs).sum() <= 4
    assert found.beyond == 0


@over("text", ["nf4", "nf4:dq", "fp4", "int4", "int4:asym:zpfloat", "mxfp4"])
@over("size", [1e-38, 1e-41, 1e-45])
@pytest.mark.filterwarnings("error")
def test_blocks_whose_scale_has_no_reciprocal_are_counted(text, size):
    x = (np.random.default_rng(3).standard_normal((8, 128)) * size).astype(np.float32)
    x[0, ::2] = 0
    found = code_occupancy(x, Scheme.parse(text))
    assert found.density.sum() == found.total == x.size
