"""Neighbours, spacing and rounding intervals, compared with the sorted list of values and with
encode."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from every import over
from formats_oracle import INTEGERS, SMALL_FLOATS, name_of, probes

from qtui_core.formats import (
    E2M1,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E8M0,
    FP16,
    FP32,
    FP64,
    INT4,
    INT8,
    Interval,
    IntFormat,
    Kind,
    Rounding,
    Specials,
    decode,
    encode,
    next_code_down,
    next_code_up,
    rounding_interval,
    ulp,
)

TINY = [f for f in (*SMALL_FLOATS, *INTEGERS) if f.bits <= 8]


@over("fmt", TINY, ids=name_of)
def test_the_next_code_is_the_next_value(fmt) -> None:
    values = {decode(fmt, c).value for c in range(fmt.code_count)}
    ordered = sorted(v for v in values if v == v)
    for code in range(fmt.code_count):
        value = decode(fmt, code).value
        if value != value:
            assert next_code_up(fmt, code) is next_code_down(fmt, code) is None
            continue
        at = ordered.index(value)
        above, below = next_code_up(fmt, code), next_code_down(fmt, code)
        assert (None if above is None else decode(fmt, above).value) == (
            ordered[at + 1] if at + 1 < len(ordered) else None
        )
        assert (None if below is None else decode(fmt, below).value) == (
            ordered[at - 1] if at else None
        )


def test_neighbours_across_the_ends_and_zero() -> None:
    assert next_code_up(FP16, 0x7BFF) == 0x7C00  # infinity counts
    assert next_code_up(FP16, 0x7C00) is None
    assert next_code_down(FP16, 0xFC00) is None
    assert next_code_up(FP16, 0xFC00) == 0xFBFF
    assert next_code_up(E4M3, 0x7E) is None
    assert next_code_up(E4M3, 0x80) == next_code_up(E4M3, 0) == 1
    assert next_code_down(E4M3, 0) == 0x81
    assert next_code_up(E4M3, 0x81) == 0x80
    assert next_code_up(E4M3FNUZ, 0x81) == 0  # there is no -0
    assert next_code_down(E8M0, 0) is None
    assert next_code_up(INT8, 0xFF) == 0
    assert next_code_up(INT8, 0x7F) is next_code_down(INT8, 0x80) is None


@pytest.mark.parametrize("value", [1.0, -0.1, 3e-310, 1e300, 5e-324, 0.0, 2.0**-1022])
def test_ulp_is_that_of_the_machine(value: float) -> None:
    assert ulp(FP64, encode(FP64, value)) == Fraction(math.ulp(value))


def test_ulp_in_every_kind() -> None:
    assert ulp(E4M3, 0x7E) == 32
    assert ulp(E4M3, 0x01) == ulp(E4M3, 0) == Fraction(1, 512)
    assert ulp(E4M3, 0x7F) is ulp(E5M2, 0x7C) is None
    assert ulp(E8M0, 127) == 1
    assert ulp(INT4, 3) == 1


def inside(interval: Interval) -> list[Fraction]:
    """Points that the interval contains: at both ends if they are included, next to them,
    between."""
    low, high = interval.lower, interval.upper
    nudge = Fraction(1, 2**200)
    candidates = [low, low + nudge if low > -math.inf else Fraction(-(2**300))]
    candidates += [high, high - nudge if high < math.inf else Fraction(2**300)]
    if math.isfinite(low) and math.isfinite(high):
        candidates.append((low + high) / 2)
    return [c for c in candidates if c in interval]


def outside(interval: Interval) -> list[Fraction]:
    nudge = Fraction(1, 2**200)
    ends = [interval.lower, interval.upper]
    around = [*ends, interval.lower - nudge, interval.upper + nudge]
    return [c for c in around if c not in interval]


def some_codes(fmt) -> list[int]:
    """All codes of small formats. For 8 bits, those at both ends of each sign, at the ends of some
    binades, where intervals change their width, and a few others."""
    if fmt.bits < 8:
        return list(range(fmt.code_count))
    half = fmt.code_count // 2
    ends = {at for end in range(4) for at in (end, half - 1 - end)}
    return [c for c in range(fmt.code_count) if c % half in ends or c % 24 in (0, 1, 7, 8, 23)]


@pytest.mark.parametrize("all_codes", [False, pytest.param(True, marks=pytest.mark.slow)])
@over("saturate", [True, False])
@over("rounding", [m for m in Rounding if m is not Rounding.STOCHASTIC])
@over("fmt", TINY, ids=name_of)
def test_the_interval_holds_exactly_what_rounds_to_the_code(
    fmt, rounding, saturate, all_codes
) -> None:
    for code in range(fmt.code_count) if all_codes else some_codes(fmt):
        interval = rounding_interval(fmt, code, rounding, saturate)
        if interval.is_empty:
            continue
        for value in inside(interval):
            if isinstance(fmt, IntFormat) and not saturate and math.isinf(value):
                continue
            assert encode(fmt, value, rounding, saturate) == code, (code, value, interval)
        for value in outside(interval):
            if isinstance(fmt, IntFormat) and not saturate:
                continue  # what lies outside may wrap onto it
            assert encode(fmt, value, rounding, saturate) != code, (code, value, interval)


@pytest.mark.parametrize("step", [11, pytest.param(3, marks=pytest.mark.slow)])
@over("saturate", [True, False])
@over("rounding", list(Rounding))
@over("fmt", [f for f in SMALL_FLOATS if f.bits <= 8], ids=name_of)
def test_every_real_lies_in_the_interval_of_its_code(fmt, rounding, saturate, step) -> None:
    draw = (5, 3) if rounding is Rounding.STOCHASTIC else ()
    for value in probes(fmt, np.float64)[::step].tolist():
        real = Fraction(value) if math.isfinite(value) else value
        code = encode(fmt, real, rounding, saturate, *draw)
        interval = rounding_interval(fmt, code, rounding, saturate)
        shared_nan = fmt.specials is Specials.FNUZ or not fmt.signed
        if not (shared_nan and decode(fmt, code).kind is Kind.NAN):
            assert real in interval, (value, code, interval)


def test_intervals_a_person_can_check() -> None:
    half = Fraction(1, 2)
    assert rounding_interval(E2M1, 2) == Interval(3 * half / 2, 5 * half / 2, True, True)
    assert rounding_interval(E2M1, 3) == Interval(Fraction(5, 4), Fraction(7, 4), False, False)
    assert rounding_interval(E2M1, 7) == Interval(Fraction(5), math.inf, False, True)
    assert rounding_interval(E2M1, 0) == Interval(Fraction(0), Fraction(1, 4), True, True)
    assert rounding_interval(E2M1, 8) == Interval(-Fraction(1, 4), Fraction(0), True, False)
    assert rounding_interval(E4M3FNUZ, 0) == Interval(
        -Fraction(1, 2048), Fraction(1, 2048), True, True
    )
    assert rounding_interval(E4M3, 0x7E, saturate=False) == Interval(
        Fraction(432), Fraction(464), True, True
    )
    assert rounding_interval(E4M3, 0x7F, saturate=False) == Interval(464, math.inf, False, True)
    assert rounding_interval(FP16, 0x7C00) == Interval(65520, math.inf, True, True)
    assert rounding_interval(FP16, 0x7C00, saturate=True).is_empty
    assert rounding_interval(FP16, 0x7C00, Rounding.TOWARD_ZERO) == Interval(
        math.inf, math.inf, True, True
    )
    assert rounding_interval(E4M3, 0x80, Rounding.DOWN).is_empty
    assert rounding_interval(FP16, 0x7E00).is_empty
    assert rounding_interval(INT8, 0x80) == Interval(-math.inf, Fraction(-255, 2), True, True)


def test_the_stochastic_interval_reaches_to_both_neighbours() -> None:
    interval = rounding_interval(E2M1, 2, Rounding.STOCHASTIC)
    assert interval == Interval(Fraction(1, 2), Fraction(3, 2), False, False)
    for value in (Fraction(51, 100), Fraction(149, 100), Fraction(1)):
        drawn = {encode(E2M1, value, Rounding.STOCHASTIC, None, r, 8) for r in range(256)}
        assert 2 in drawn
    assert rounding_interval(E4M3FNUZ, 0, Rounding.STOCHASTIC) == Interval(
        -Fraction(1, 1024), Fraction(1, 1024), False, False
    )


def test_wide_formats_have_intervals_too() -> None:
    code = encode(FP32, Fraction(1, 10))
    interval = rounding_interval(FP32, code)
    assert Fraction(1, 10) in interval
    assert interval.upper - interval.lower == ulp(FP32, code)
