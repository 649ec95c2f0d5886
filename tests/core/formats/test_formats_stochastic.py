"""Stochastic rounding: the exact share of random patterns that rounds away from zero."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from every import over
from formats_oracle import SMALL_FLOATS, magnitudes, name_of
from shorthands import round_value

from qtui_core.formats import (
    BF16,
    E4M3,
    FP16,
    INT8,
    TF32,
    FloatFormat,
    Rounding,
    decode,
    encode,
)
from qtui_core.formats.array import decode_array, encode_array

STOCHASTIC = Rounding.STOCHASTIC


def drawn(values: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """BF16 numbers, rounded with these 16 random bits."""
    codes = encode_array(BF16, values, STOCHASTIC, None, (bits, 16))
    return decode_array(BF16, codes, np.float32)


@over("fmt", SMALL_FLOATS, ids=name_of)
@over("count", [1, 3, 8])
def test_the_share_that_rounds_away_is_the_truncated_fraction(fmt: FloatFormat, count: int) -> None:
    steps = magnitudes(fmt)[:-1]
    patterns = np.arange(1 << count, dtype=np.uint16)
    parts = 12 if count < 8 else 4  # of 8 bits each code takes 256 patterns
    for code in range(0, fmt.max_code - 1, max(1, fmt.max_code // parts)):
        low, high = Fraction(steps[code]), Fraction(steps[code + 1])
        for part in (Fraction(1, 5), Fraction(1, 2), Fraction(77, 256), Fraction(999, 1000)):
            value = low + part * (high - low)
            codes = [encode(fmt, value, STOCHASTIC, None, int(p), count) for p in patterns]
            assert set(codes) <= {code, code + 1}
            assert codes.count(code + 1) == part * (1 << count) // 1
            single = np.float32(float(value))
            part_left = (Fraction(float(single)) - low) / (high - low)
            if not 0 <= part_left < 1:
                continue
            draw = patterns, count
            array = encode_array(fmt, np.full(patterns.shape, single), STOCHASTIC, None, draw)
            assert (array == code + 1).sum() == part_left * (1 << count) // 1
            if fmt.signed:
                below = np.full(patterns.shape, -single)
                mirrored = encode_array(fmt, below, STOCHASTIC, None, draw)
                away = ((mirrored & ~np.uint16(fmt.sign_bit)) == code + 1).sum()
                assert away == (array == code + 1).sum()


def test_all_bits_of_a_sixteen_bit_draw_make_the_mean_exact() -> None:
    # BF16 drops 16 bits of a float32, so 16 random bits leave no bias at all.
    draws = np.arange(1 << 16, dtype=np.uint16)
    for value in (0.1, -1.2345, 3e-39, 1e30):
        single = np.float32(value)
        rounded = drawn(np.full(draws.shape, single), draws)
        exact = sum((Fraction(float(v)) * n for v, n in zip(*np.unique(rounded, return_counts=True),
                     strict=True)), Fraction(0))  # fmt: skip
        assert exact / (1 << 16) == Fraction(float(single))


def test_a_small_update_is_lost_to_nearest_and_survives_stochastic() -> None:
    update = 1 + Fraction(1, 2**9)
    assert round_value(BF16, update) == 1
    moved = [round_value(BF16, update, STOCHASTIC, None, r, 4) for r in range(16)]
    assert moved.count(1 + Fraction(1, 2**7)) == 4  # a quarter of a step, a quarter of the draws


def test_overflow_is_drawn_too() -> None:
    between = 65504 + 16  # halfway to 65536
    drawn = [round_value(FP16, between, STOCHASTIC, None, r, 2) for r in range(4)]
    assert drawn == [65504, 65504, float("inf"), float("inf")]
    assert round_value(FP16, 70000, STOCHASTIC, None, 0, 2) == float("inf")
    assert round_value(E4M3, 1e9, STOCHASTIC, None, 0, 2) == 448


def test_more_random_bits_than_dropped_ones_change_nothing() -> None:
    value = 1 + 0.75 * 2**-10  # TF32 drops 13 bits of a float32
    codes = [encode(TF32, value, STOCHASTIC, None, r << 28, 32) for r in range(1 << 4)]
    assert codes.count(codes[-1]) == 12


def test_integers_are_drawn_by_magnitude() -> None:
    for value, low, high in ((2.375, 2, 3), (-2.375, -2, -3)):
        drawn = [decode(INT8, encode(INT8, value, STOCHASTIC, None, r, 3)).value for r in range(8)]
        assert sorted(drawn, key=abs) == [low] * 5 + [high] * 3
    for value, end in ((float("inf"), 127), (float("-inf"), -128), (1e30, 127)):
        assert decode(INT8, encode(INT8, value, STOCHASTIC, None, 0, 3)).value == end


def test_missing_or_unfit_random_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 32 random bits, not 0"):
        encode(E4M3, 0.1, STOCHASTIC)
    with pytest.raises(ValueError, match="not 33"):
        encode(E4M3, 0.1, STOCHASTIC, None, 0, 33)
    with pytest.raises(ValueError, match="9 is not a number of 3 bits"):
        encode(E4M3, 0.1, STOCHASTIC, None, 9, 3)
