"""The mx formats, nvfp4 and ternary in exact arithmetic."""

from fractions import Fraction
from functools import cache

import numpy as np
from every import in_parts, over
from shorthands import round_value

from qtui_core.formats import get_format
from qtui_core.quant import Scheme, quantize

RULES = ("floor", "ceil", "even", "rceil")
FLOATS = ("mxfp4", "mxfp6-e3m2", "mxfp6-e2m3", "mxfp8-e4m3", "mxfp8-e5m2")


def bfloat16(x):
    """Float32 numbers truncated to bfloat16, so that many are ties between 4-bit levels."""
    words = np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return words.view(np.float32)


def blocks(size, seed=3):
    """Rows of difficult blocks: ties, powers of two and their neighbours as absmax, zero, constant,
    huge and tiny blocks."""
    random = np.random.default_rng(seed)
    normal = random.standard_normal((128, size))
    spread = normal * 2.0 ** random.integers(-12, 12, (128, size))
    scaled = normal * 2.0 ** random.integers(-90, 120, (128, 1))
    rows = [normal, spread, scaled, np.zeros((1, size)), -np.zeros((1, size))]
    grid = np.arange(size) / 4.0 - size / 8  # quarter steps: every tie of every element format
    rows += [grid[None] * 2.0**k for k in (-100, -20, -1, 0, 1, 3, 60)]
    for top in (1, 1.5, 1.75, 1.875, 1.9375, 1.96875, 1.9921875, 6, 7, 7.5, 28, 30, 448, 480):
        row = np.linspace(-top, top, size)
        rows += [row[None] * 2.0**k for k in (-110, -3, 0, 1, 2, 90, 118)]
    rows += [np.full((1, size), v) for v in (0.1, -3.0, 1e-30, 3.3e38, -1e38)]
    return bfloat16(np.clip(np.concatenate(rows), -3.38e38, 3.38e38))


def exponent_of(value):
    """floor(log2) of a positive fraction, exactly."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def scale_by_definition(absmax, largest, mantissa_bits, rule):
    """The exponent of the shared scale, in exact arithmetic."""
    top = exponent_of(Fraction(largest))
    match rule:
        case "floor":
            exponent = exponent_of(absmax) - top
        case "ceil":
            exponent = exponent_of(absmax) - top
            if absmax != Fraction(2) ** exponent_of(absmax):
                exponent += 1
        case "even":
            unit = Fraction(2) ** (exponent_of(absmax) - mantissa_bits)
            exponent = exponent_of((absmax / unit + Fraction(1, 2)).__floor__() * unit) - top
        case _:
            exponent = exponent_of(absmax / largest)
            if absmax / largest != Fraction(2) ** exponent:
                exponent += 1
    return min(127, max(-127, exponent))


@cache
def exactly_rounded(fmt, element):
    """Cached, because tensors at other scales have the same elements."""
    return Fraction(float(round_value(fmt, element, saturate=True)))


@in_parts(3)
@over("rule", RULES)
@over("name", [*FLOATS, "mxint8"])
def test_exact_arithmetic(name, rule, parts):
    """The specification computed in fractions, because torchao has no MXINT8, and loses blocks
    whose scale has the code 0."""
    fmt = get_format(Scheme.parse(name).element)
    largest = Fraction(fmt.max)
    mantissa = 6 if name == "mxint8" else fmt.mantissa_bits
    x = blocks(32, seed=5)[:: 3 * parts]
    x[0] = bfloat16(np.linspace(-1, 1, 32) * 2.0**-127)
    x[1] = bfloat16(np.linspace(-1, 1, 32) * 2.0**-133)
    q = quantize(x, Scheme.parse(f"{name}:{rule}"))
    y = q.dequantize()
    for row, scale_code, values in zip(x.tolist(), q.scale_codes[:, 0], y.tolist(), strict=True):
        absmax = max(Fraction(abs(v)) for v in row)
        if absmax == 0:
            assert scale_code == 0
            assert values == [0] * 32
            continue
        exponent = scale_by_definition(absmax, largest, mantissa, rule)
        assert scale_code == exponent + 127
        scale = Fraction(2) ** exponent
        for v, got in zip(row, values, strict=True):
            element = Fraction(v) / scale
            if name == "mxint8":  # round() of a fraction is half to even
                rounded = Fraction(min(127, max(-127, round(element * 64))), 64)
            else:
                rounded = exactly_rounded(fmt, element)
            expected = rounded * scale
            if abs(expected) < 2**128:
                assert Fraction(got) == expected


def test_short_last_block_has_a_scale_of_its_own():
    x = np.ones((3, 40), np.float32)
    x[:, 32:] = 2.0**-20
    q = quantize(x, Scheme.parse("mxfp4"))
    assert q.scale_codes.tolist() == [[125, 105]] * 3
    np.testing.assert_array_equal(q.dequantize(), x)


def test_nvfp4_by_hand():
    q = quantize(np.array([[6.0, -3, 0.2, 0.8]], np.float32), Scheme.parse("nvfp4"))
    assert q.scale_codes.tolist() == [[0x7E]]  # 448
    np.testing.assert_allclose(q.dequantize(), [[6, -3, 0, 1]], rtol=1e-6)
    small = quantize(np.array([[6.0] * 16 + [1e-6] * 16], np.float32), Scheme.parse("nvfp4"))
    assert small.scale_codes.tolist() == [[0x7E, 0x08]]  # 448 and 2^-6, the smallest normal number
    zeros = quantize(np.zeros((2, 40), np.float32), Scheme.parse("nvfp4"))
    assert (zeros.tensor_scale, zeros.scale_codes.shape) == (2.0**-120, (2, 3))
    assert (zeros.dequantize() == 0).all()


def test_ternary_never_scales_below_the_smallest():
    q = quantize(np.full((2, 3), 1e-7, np.float32), Scheme.parse("ternary:row"))
    assert (q.scales == np.float32(1e-5)).all()
    assert (q.codes == 0).all()
    half = quantize(np.array([[0.5, 1.0, 1.5]], np.float32), Scheme.parse("ternary"))
    assert half.codes.tolist() == [[0, 1, 1]]  # 0.5 of the mean: a tie, to even
