"""Rates, bandwidths and times of hardware as text with units."""

from __future__ import annotations

from typing import Final

_STEPS: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def scaled_up(value: float) -> tuple[float, str]:
    """A number as (number below 1000, decimal prefix)."""
    for step, prefix in _STEPS:
        if value >= 0.9995 * step:
            return value / step, prefix
    return value, ""


def rate(value: float | None, dtype: str) -> str:
    """Operations per second in a dtype with three digits and a decimal prefix: `989 TFLOP/s`, of
    integers `1.98 POP/s`."""
    unit = "OP/s" if dtype.startswith("int") else "FLOP/s"
    return "–" if value is None else f"{_number(value)}{unit}"


def speed(value: float | None) -> str:
    """Bytes per second: `3.35 TB/s`."""
    return "–" if value is None else f"{_number(value)}B/s"


def count(value: float) -> str:
    """A count with a decimal prefix: `17.2 T`."""
    return _number(value).strip()


def _number(value: float) -> str:
    number, prefix = scaled_up(value)
    return f"{number:.3g} {prefix}" if number < 999.5 else f"{number:.0f} {prefix}"


def seconds(value: float) -> str:
    """A time in at most 7 characters: `1.2 s`, `12.3 ms`, `41 us` (as ASCII has no mu)."""
    for unit, factor in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 0.9995:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def ratio(value: float) -> str:
    """A ratio: `0.22`, `12`, `1,340`."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
