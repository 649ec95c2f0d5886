"""Neighbours, spacing and rounding intervals, compared with the sorted list of values and with
encode."""

import math
from fractions import Fraction

import numpy as np
from every import in_parts, over
from formats_oracle import INTEGERS, SMALL_FLOATS, name_of, probes

import qtui_core.formats as qf

TINY = [f for f in (*SMALL_FLOATS, *INTEGERS) if f.bits <= 8]


@over("fmt", TINY, ids=name_of)
def test_the_next_code_is_the_next_value(fmt) -> None:
    values = {qf.decode(fmt, c).value for c in range(fmt.code_count)}
    ordered = sorted(v for v in values if v == v)
    for code in range(fmt.code_count):
        value = qf.decode(fmt, code).value
        if value != value:
            assert qf.next_code_up(fmt, code) is qf.next_code_down(fmt, code) is None
            continue
        at = ordered.index(value)
        above, below = qf.next_code_up(fmt, code), qf.next_code_down(fmt, code)
        found = [None if c is None else qf.decode(fmt, c).value for c in (below, above)]
        assert found == [*[None, *ordered, None][at : at + 3 : 2]]


def test_ulp_is_that_of_the_machine_and_by_hand() -> None:
    for value in (1.0, -0.1, 3e-310, 1e300, 5e-324, 0.0, 2.0**-1022):
        assert qf.ulp(qf.FP64, qf.encode(qf.FP64, value)) == Fraction(math.ulp(value))
    codes = {qf.E4M3: (0x7E, 1, 0, 0x7F), qf.E5M2: (0x7C,), qf.E8M0: (127,), qf.INT4: (3,)}
    found = [qf.ulp(fmt, code) for fmt, of_format in codes.items() for code in of_format]
    assert found == [32, Fraction(1, 512), Fraction(1, 512), None, None, 1, 1]


def around(interval: qf.Interval) -> list[Fraction]:
    """Both ends of an interval, points next to them on either side, and one in the middle."""
    low, high, nudge = interval.lower, interval.upper, Fraction(1, 2**200)
    found = [low, high, low - nudge, high + nudge]
    found.append(low + nudge if low > -math.inf else Fraction(-(2**300)))
    found.append(high - nudge if high < math.inf else Fraction(2**300))
    if math.isfinite(low) and math.isfinite(high):
        found.append((low + high) / 2)
    return found


@in_parts(12)
@over("saturate", [True, False])
@over("rounding", [m for m in qf.Rounding if m is not qf.Rounding.STOCHASTIC])
@over("fmt", TINY, ids=name_of)
def test_the_interval_holds_exactly_what_rounds_to_the_code(fmt, rounding, saturate, parts) -> None:
    """Of 8 bits every code in the slow suite, but not in each mode; and the ends of each sign."""
    every = 1 if fmt.bits < 8 else 2 * parts
    half, first = fmt.code_count // 2, list(qf.Rounding).index(rounding) * (1 + parts) + saturate
    ends = {at + sign for end in range(3) for at in (end, half - 1 - end) for sign in (0, half)}
    for code in {*range(first % every, fmt.code_count, every), *(ends if fmt.bits == 8 else ())}:
        interval = qf.rounding_interval(fmt, code, rounding, saturate)
        if interval.is_empty:
            continue
        wraps = isinstance(fmt, qf.IntFormat) and not saturate
        for value in around(interval):
            inside = value in interval
            if wraps and (not inside or math.isinf(value)):
                continue  # what lies outside may wrap onto it
            found = qf.encode(fmt, value, rounding, saturate)
            assert (found == code) == inside, (code, value, interval)


@in_parts(5)
@over("saturate", [True, False])
@over("rounding", list(qf.Rounding))
@over("fmt", [f for f in SMALL_FLOATS if f.bits <= 8], ids=name_of)
def test_every_real_lies_in_the_interval_of_its_code(fmt, rounding, saturate, parts) -> None:
    draw = (5, 3) if rounding is qf.Rounding.STOCHASTIC else ()
    for value in probes(fmt, np.float64)[:: 4 * parts].tolist():
        real = Fraction(value) if math.isfinite(value) else value
        code = qf.encode(fmt, real, rounding, saturate, *draw)
        interval = qf.rounding_interval(fmt, code, rounding, saturate)
        shared_nan = fmt.specials is qf.Specials.FNUZ or not fmt.signed
        if not (shared_nan and qf.decode(fmt, code).kind is qf.Kind.NAN):
            assert real in interval, (value, code, interval)


INFINITY = math.inf


@over(
    ("fmt", "code", "how", "interval"),
    [
        (qf.E2M1, 2, {}, (0.75, 1.25, True, True)),
        (qf.E2M1, 7, {}, (5, INFINITY, False, True)),
        (qf.E2M1, 0, {}, (0, 0.25, True, True)),
        (qf.E4M3FNUZ, 0, {}, (-1 / 2048, 1 / 2048, True, True)),
        (qf.E4M3, 0x7E, {"saturate": False}, (432, 464, True, True)),
        (qf.FP16, 0x7C00, {}, (65520, INFINITY, True, True)),
        (qf.FP16, 0x7C00, {"rounding": qf.Rounding.TOWARD_ZERO}, (INFINITY, INFINITY, True, True)),
        # It reaches to both neighbours.
        (qf.E2M1, 2, {"rounding": qf.Rounding.STOCHASTIC}, (0.5, 1.5, False, False)),
        (qf.E4M3FNUZ, 0, {"rounding": qf.Rounding.STOCHASTIC}, (-1 / 1024, 1 / 1024, False, False)),
    ],
)
def test_intervals_a_person_can_check(fmt, code, how, interval) -> None:
    assert qf.rounding_interval(fmt, code, **how) == qf.Interval(*interval)


def test_empty_intervals_and_those_of_wide_formats() -> None:
    assert qf.rounding_interval(qf.FP16, 0x7C00, saturate=True).is_empty
    assert qf.rounding_interval(qf.E4M3, 0x80, qf.Rounding.DOWN).is_empty
    assert qf.rounding_interval(qf.FP16, 0x7E00).is_empty
    code = qf.encode(qf.FP32, Fraction(1, 10))
    interval = qf.rounding_interval(qf.FP32, code)
    assert Fraction(1, 10) in interval
    assert interval.upper - interval.lower == qf.ulp(qf.FP32, code)
