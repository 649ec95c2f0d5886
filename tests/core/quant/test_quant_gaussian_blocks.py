"""Expected errors of schemes whose scales are small floats or means, and of other roundings,
compared with samples that are quantized in float64 by definition."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from every import in_parts, left_out, over

from qtui_core.formats import decode, get_format
from qtui_core.quant import Scheme, gaussian_relative_mse, measure, quantize
from qtui_core.quant.gaussian import outlier_relative_mse
from qtui_core.quant.layout import run_lengths

RULES = ("floor", "ceil", "even", "rceil")
FLOATS = ("mxfp4", "mxfp6-e3m2", "mxfp6-e2m3", "mxfp8-e4m3", "mxfp8-e5m2")
ELEMENTS = (*FLOATS, "mxint8")
LENGTHS = (32, 13, 2, 1)
#: The allowed error of an expectation in decibels: 1 % of the mean squared error.
CLOSE = 0.05


def numbers(name):
    """The numbers of a format, ascending; for MXINT8 without -2."""
    fmt = get_format(name)
    values = np.array([decode(fmt, code).to_float() for code in range(fmt.code_count)])
    return np.unique(values[np.isfinite(values) & (np.abs(values) <= float(fmt.max))])


def nearest(x, grid):
    middles = (grid[1:] + grid[:-1]) / 2
    return grid[np.searchsorted(middles, x)]


def microscaled(x, element, rule):
    """Blocks `[n, length]` rounded by the definition."""
    grid = numbers(element)
    absmax = np.abs(x).max(axis=1)
    top = np.floor(np.log2(grid[-1]))
    match rule:
        case "floor":
            exponent = np.floor(np.log2(absmax)) - top
        case "ceil":
            exponent = np.ceil(np.log2(absmax)) - top
        case "even":
            mantissa = 6 if element == "mxint8" else get_format(element).mantissa_bits
            unit = 2.0 ** (np.floor(np.log2(absmax)) - mantissa)
            exponent = np.floor(np.log2(np.floor(absmax / unit + 0.5) * unit)) - top
        case _:
            exponent = np.ceil(np.log2(absmax / grid[-1]))
    scale = 2.0 ** exponent[:, None]
    return nearest(x / scale, grid) * scale


def assert_close(expected, found, text, close=CLOSE):
    """`found` are relative errors of independent parts of a sample."""
    error = 4 * np.std(found) / np.sqrt(len(found)) / np.mean(found)
    assert error < 0.04, "the sample is too small to say"
    off = abs(10 * np.log10(expected / np.mean(found)))
    assert off < max(close, 10 * np.log10(1 + error)), (text, off)


def relative(x, y, parts=16):
    errors = np.square(x - y).reshape(parts, -1).sum(axis=1)
    return errors / np.square(x).mean() / (x.size / parts)


@cache
def drawn(rows, columns):
    """Normal numbers, the same for every call."""
    return np.random.default_rng(31).standard_normal((rows, columns))


@in_parts(4)
@over("length", LENGTHS)
@over("rule", RULES)
@over("name", ELEMENTS)
def test_microscaling(name, rule, length, parts):
    if left_out(parts, (name, ELEMENTS), (rule, RULES), (length, LENGTHS)):
        return
    scheme = Scheme.parse(f"{name}:{rule}")
    # Formats that saturate, or whose scales jump most, need more samples.
    count = 1_200_000 if name in ("mxfp8-e4m3", "mxint8") and length == 32 else 320_000
    x = drawn(count // length // 64 * 64, length)
    for sigma in (1.0, 1.37):
        expected = gaussian_relative_mse(scheme, x.shape, sigma=sigma)
        found = relative(x * sigma, microscaled(x * sigma, scheme.element, rule))
        assert_close(expected, found, (name, rule, length, sigma))


def test_microscaling_is_periodic_in_the_octave():
    scheme = Scheme.parse("mxfp4")
    values = [gaussian_relative_mse(scheme, (64, 64), sigma=s) for s in (0.3, 0.6, 0.3 * 2**-90)]
    assert len(set(values)) == 1
    others = [gaussian_relative_mse(scheme, (64, 64), sigma=s) for s in (0.35, 0.4, 0.5)]
    assert np.ptp([*values, *others]) > 0.01 * values[0]


def test_short_blocks_count_with_their_own_length():
    scheme = Scheme.parse("mxfp6-e2m3")
    whole, short = (gaussian_relative_mse(scheme, (8, n)) for n in (32, 13))
    both = gaussian_relative_mse(scheme, (8, 45))
    assert both == pytest.approx((32 * whole + 13 * short) / 45)
    assert whole != pytest.approx(short, rel=1e-2)


def two_level(tensors):
    """Tensors `[n, blocks, length]` rounded by the definition of NVFP4."""
    scales = numbers("e4m3")
    scales = scales[scales >= 2.0**-6]
    unit = np.abs(tensors).max(axis=(1, 2), keepdims=True) / (6 * 448)
    block = nearest(np.abs(tensors).max(axis=2, keepdims=True) / 6 / unit, scales) * unit
    return nearest(tensors / block, numbers("e2m1")) * block


@pytest.mark.parametrize(
    ("blocks", "length"), [(4096, 16), (40, 16), (2, 16), (1, 16), (64, 5), (8, 2), (30, 1)]
)
def test_nvfp4(blocks, length):
    random = np.random.default_rng(32)
    x = random.standard_normal((1_600_000 // (blocks * length), blocks, length))
    x = x[: len(x) // 8 * 8]
    found = relative(x, two_level(x), 8)
    expected = gaussian_relative_mse(Scheme.parse("nvfp4"), (blocks, length))
    assert run_lengths(Scheme.parse("nvfp4").granularity, (blocks, length)) == {length: blocks}
    # In a sample of a small tensor the largest block has a smaller share than in the tensor.
    assert_close(expected, found, (blocks, length), CLOSE if blocks * length > 30 else 0.4)


def test_nvfp4_with_short_last_blocks():
    random = np.random.default_rng(33)
    shape = (48, 40)
    found = [
        measure(random.standard_normal(shape, dtype=np.float32), Scheme.parse("nvfp4"))
        for _ in range(400)
    ]
    expected = gaussian_relative_mse(Scheme.parse("nvfp4"), shape)
    assert_close(expected, np.array([report.relative_mse for report in found]), shape)


@over("length", [1, 2, 3, 5, 16, 47, 48, 49, 64, 1000])
def test_ternary(length):
    random = np.random.default_rng(34)
    x = random.standard_normal((1_600_000 // length // 16 * 16, length))
    scale = np.abs(x).mean(axis=1, keepdims=True)
    y = np.clip(np.rint(x / scale), -1, 1) * scale
    expected = gaussian_relative_mse(Scheme.parse("ternary:row"), x.shape)
    if length == 1:
        assert expected < 1e-15
        np.testing.assert_array_equal(x, y)
        return
    assert_close(expected, relative(x, y), length)


def test_ternary_of_a_large_tensor_has_one_scale():
    """With s = sqrt(2/pi): E[(x - L)²] = 1 - 2 s E[|x|; |x| > s/2] + s² P(|x| > s/2)."""
    s = np.sqrt(2 / np.pi)
    nodes = np.linspace(s / 2, 12, 2_000_001)
    density = 2 * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    expected = (
        1 - 2 * s * np.trapezoid(nodes * density, nodes) + s**2 * np.trapezoid(density, nodes)
    )
    found = gaussian_relative_mse(Scheme.parse("ternary"), (4096, 4096))
    assert found == pytest.approx(expected, rel=1e-2)


@over("rounding", ["stochastic"])
@over(
    "text",
    ["int4:group64", "int4:group64:full", "int3:group16", "int8:row", "e4m3:row", "e2m1:group32",
     "e3m0:group32", "mxfp4", "mxfp8-e5m2:ceil", "mxint8:rceil", "nvfp4", "bf16", "fp16"],
)  # fmt: skip
def test_other_roundings(text, rounding):
    random = np.random.default_rng(35)
    scheme = Scheme.parse(f"{text}:{rounding}")
    parts = [random.standard_normal((256, 512), dtype=np.float32) for _ in range(8)]
    found = np.array([measure(x, scheme).relative_mse for x in parts])
    assert_close(gaussian_relative_mse(scheme, parts[0].shape), found, text)


@pytest.mark.parametrize("text", ["e3m2", "e2m3", "e3m0", "int4:tile9x7", "e4m3:tile128x128"])
def test_small_floats_and_tiles(text):
    random = np.random.default_rng(36)
    scheme = Scheme.parse(text)
    parts = [random.standard_normal((270, 280), dtype=np.float32) for _ in range(16)]
    found = np.array([measure(x, scheme).relative_mse for x in parts])
    assert_close(gaussian_relative_mse(scheme, parts[0].shape), found, text)


@pytest.mark.parametrize(
    ("text", "length"), [("mxfp4:ceil", 32), ("mxint8", 32), ("nvfp4", 16), ("ternary:row", 256)]
)
def test_values_beside_something_large(text, length):
    """The error of the rest of a group that one outlier stretches."""
    random = np.random.default_rng(37)
    scheme = Scheme.parse(text)
    x = random.standard_normal((20_000, length)).astype(np.float32) * np.float32(0.3)
    x[:, 0] = 7.5
    rest = np.delete(x.astype(np.float64), 0, axis=1)
    y = np.delete(quantize(x, scheme).dequantize().astype(np.float64), 0, axis=1)
    found = np.square(rest - y).sum() / np.square(rest).sum()
    expected = outlier_relative_mse(scheme, 7.5, 0.3, length)
    assert expected == pytest.approx(found, rel=0.02)
