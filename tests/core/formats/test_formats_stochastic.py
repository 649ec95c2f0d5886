"""Stochastic rounding: the exact share of random patterns that rounds away from zero."""

from fractions import Fraction

import numpy as np
import pytest
from every import over
from formats_oracle import SMALL_FLOATS, magnitudes, name_of
from shorthands import round_value

import qtui_core.formats as qf
from qtui_core.formats.array import encode_array

STOCHASTIC = qf.Rounding.STOCHASTIC


@over("fmt", SMALL_FLOATS, ids=name_of)
@over("count", [1, 3, 8])
def test_the_share_that_rounds_away_is_the_truncated_fraction(
    fmt: qf.FloatFormat, count: int
) -> None:
    steps = magnitudes(fmt)[:-1]
    patterns = np.arange(1 << count, dtype=np.uint16)
    parts = 12 if count < 8 else 4  # of 8 bits each code takes 256 patterns
    for code in range(0, fmt.max_code - 1, max(1, fmt.max_code // parts)):
        low, high = Fraction(steps[code]), Fraction(steps[code + 1])
        for part in (Fraction(1, 5), Fraction(1, 2), Fraction(77, 256), Fraction(999, 1000)):
            value = low + part * (high - low)
            codes = [qf.encode(fmt, value, STOCHASTIC, None, int(p), count) for p in patterns]
            assert set(codes) <= {code, code + 1}
            assert codes.count(code + 1) == part * (1 << count) // 1
            single = np.float32(float(value))
            part_left = (Fraction(float(single)) - low) / (high - low)
            if not 0 <= part_left < 1:
                continue
            for sign in (1, -1) if fmt.signed else (1,):
                values = np.full(patterns.shape, sign * single)
                array = encode_array(fmt, values, STOCHASTIC, None, (patterns, count))
                away = (array & ~np.uint16(fmt.sign_bit if sign < 0 else 0)) == code + 1
                assert away.sum() == part_left * (1 << count) // 1


def test_overflow_and_more_bits_than_are_dropped() -> None:
    between = 65504 + 16  # halfway to 65536
    drawn = [round_value(qf.FP16, between, STOCHASTIC, None, r, 2) for r in range(4)]
    assert drawn == [65504, 65504, float("inf"), float("inf")]
    assert round_value(qf.FP16, 70000, STOCHASTIC, None, 0, 2) == float("inf")
    assert round_value(qf.E4M3, 1e9, STOCHASTIC, None, 0, 2) == 448
    value = 1 + 0.75 * 2**-10  # TF32 drops 13 bits of a float32
    codes = [qf.encode(qf.TF32, value, STOCHASTIC, None, r << 28, 32) for r in range(1 << 4)]
    assert codes.count(codes[-1]) == 12


def test_integers_are_drawn_by_magnitude() -> None:
    for value, low, high in ((2.375, 2, 3), (-2.375, -2, -3)):
        drawn = [
            qf.decode(qf.INT8, qf.encode(qf.INT8, value, STOCHASTIC, None, r, 3)).value
            for r in range(8)
        ]
        assert sorted(drawn, key=abs) == [low] * 5 + [high] * 3
    for value, end in ((float("inf"), 127), (float("-inf"), -128), (1e30, 127)):
        code = qf.encode(qf.INT8, value, STOCHASTIC, None, 0, 3)
        assert qf.decode(qf.INT8, code).value == end


@over(
    ("draw", "sentence"),
    [
        ((), "1 to 32 random bits, not 0"),
        ((0, 33), "not 33"),
        ((9, 3), "9 is not a number of 3 bi"),
    ],
)
def test_unfit_random_bits_of_a_number_are_refused(draw, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        qf.encode(qf.E4M3, 0.1, STOCHASTIC, None, *draw)
