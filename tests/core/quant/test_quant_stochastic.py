"""Stochastic rounding: its random bits, and its unbiasedness in every arithmetic."""

from dataclasses import replace

import numpy as np
from every import over

from qtui_core.formats import Rounding, get_format
from qtui_core.formats.array import decode_array, encode_array
from qtui_core.quant import Scheme, quantize
from qtui_core.quant.rounding import random_words


def chi_square(observed):
    expected = observed.sum() / observed.size
    return (np.square(observed - expected) / expected).sum()


@over("seed", [0, 1, 7, 2**32 - 1])
@over("shift", [0, 8, 16, 24])
def test_every_byte_of_the_words_is_uniform(seed, shift):
    found = chi_square(
        np.bincount(random_words(seed, 12345, 1 << 20) >> shift & 255, minlength=256)
    )
    # 255 degrees of freedom: mean 255, standard deviation 22.6.
    assert abs(found - 255) < 5 * np.sqrt(2 * 255)


@over("lag", [1, 2, 64, 1024, 4096])
def test_words_of_neighbours_and_of_seeds_are_independent(lag):
    u = random_words(3, 0, 1 << 20) / 2.0**32 - 0.5
    v = random_words(4, 0, 1 << 20) / 2.0**32 - 0.5
    for a, b in ((u[:-lag], u[lag:]), (u[lag:], v[:-lag]), (u, v)):
        assert abs(12 * np.mean(a * b)) < 5 / np.sqrt(a.size)
    # The upper four bits of pairs fill a table of 256 cells evenly.
    upper = random_words(3, 0, 1 << 20) >> 28
    found = chi_square(np.bincount(upper[:-lag] * 16 + upper[lag:], minlength=256))
    assert abs(found - 255) < 6 * np.sqrt(2 * 255)


def test_words_depend_on_the_place_only_past_32_bits_too():
    whole = random_words(5, 1000, 500)
    np.testing.assert_array_equal(random_words(5, 1100, 50), whole[100:150])
    across = random_words(9, 2**32 - 100, 200)
    np.testing.assert_array_equal(across[100:], random_words(9, 2**32, 100))
    assert len(set(across.tolist()) | set(random_words(9, 0, 100).tolist())) == 300


@over("name", ["bf16", "tf32", "fp16", "e4m3", "e5m2"])
def test_casts_of_formats_are_rounded_as_the_reference_with_the_same_bits(name):
    fmt = get_format(name)
    random = np.random.default_rng(2)
    x = random.standard_normal(20_000).astype(np.float32)
    x *= np.exp2(random.integers(-18, 12, x.size)).astype(np.float32)
    x = np.clip(x, -float(fmt.max), float(fmt.max))
    bits = 16 if name == "bf16" else 13 if name == "tf32" else 24
    drawn = random_words(6, 0, x.size) >> (32 - bits)
    # The reference goes up when fraction + bits carry, here when bits < fraction: the same
    # probability with the bits turned round.
    if bits == 24:
        drawn = (1 << 24) - 1 - drawn
    expected = encode_array(fmt, x, Rounding.STOCHASTIC, draw=(drawn, bits))
    scheme = Scheme.parse(f"{name}:stochastic6")
    if name in ("e4m3", "e5m2"):
        x = np.append(x, np.float32(fmt.max))  # so that the scale is 1
        codes = quantize(x, scheme).codes[:-1]
    else:
        codes = quantize(x, scheme).codes
    apart = np.flatnonzero(codes != expected)
    # If a fraction has more bits than are drawn, the reference drops them and qtui keeps them.
    assert apart.size <= (0 if name in ("bf16", "tf32") else 2)


UNBIASED = ["bf16", "tf32", "fp16", "int8:tensor", "int4:tensor:full", "int4:tensor:asym"]
UNBIASED += ["int4:tensor:asym:zpfloat", "e4m3:tensor", "e5m2", "e2m1:tensor", "e2m3:tensor"]
UNBIASED += ["e3m0:tensor", "mxfp4", "mxfp8-e4m3", "mxint8", "nvfp4"]


@over("text", UNBIASED)
def test_the_mean_error_is_zero_and_no_element_moves_more_than_a_step(text):
    """The mean result of rounding one value many times, in groups with extremes of ±1."""
    for value in (0.3, -0.017, 1.3e-5):
        x = np.full((64, 4096), value, np.float32)
        x[:, ::16] = 1.0  # an extreme for every group there is
        x[:, 1::16] = -1.0
        inside = np.ones(x.shape, bool)
        inside[:, ::16] = inside[:, 1::16] = False
        found = quantize(x, Scheme.parse(f"{text}:stochastic5")).dequantize()[inside]
        below, above = np.unique(found)[[0, -1]]
        assert np.unique(found).size <= 2
        error = found.astype(np.float64) - np.float64(np.float32(value))
        spread = max(above - below, 1e-30) / 2 / np.sqrt(found.size)
        assert abs(error.mean()) < 5 * spread + 3e-7 * abs(value)
        assert below <= np.float32(value) * (1 + np.sign(value) * 1e-6)
        assert above >= np.float32(value) * (1 - np.sign(value) * 1e-6)


EXACT = ["int8:tensor", "int4:tensor:asym", "int4:tensor:asym:zpfloat", "bf16", "fp16", "e4m3"]


@over("text", [*EXACT, "e5m2", "e2m1", "mxfp8-e4m3", "mxfp4"])
def test_numbers_of_the_format_never_move(text):
    scheme = Scheme.parse(text)
    if text.startswith("int"):
        low, high = (-127, 127) if "int8" in text else (3, 18) if "zp" in text else (0, 15)
        x = np.random.default_rng(4).integers(low, high + 1, (64, 1024)).astype(np.float32)
        x[0, :2] = low, high
    else:
        fmt = get_format(scheme.element or text)
        x = decode_array(fmt, np.arange(fmt.code_count))
        x = x[np.isfinite(x)].astype(np.float32)
        length = 31 if text.startswith("mx") else x.size  # the largest number in each block
        x = np.concatenate(
            [np.append(x[i : i + length], fmt.max) for i in range(0, x.size, length)]
        )
        x = np.resize(x, -(-x.size // 32) * 32 if length == 31 else x.size).astype(np.float32)
    for seed in range(3):
        found = quantize(x, replace(scheme, rounding="stochastic", seed=seed)).dequantize()
        np.testing.assert_array_equal(found, x)
