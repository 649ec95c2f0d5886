"""Figures of hardware as people read them."""

from __future__ import annotations

from typing import Final

_STEPS: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def scaled_up(value: float) -> tuple[float, str]:
    """(number under a thousand, its prefix)."""
    for step, prefix in _STEPS:
        if value >= 0.9995 * step:
            return value / step, prefix
    return value, ""


def rate(value: float | None) -> str:
    """Operations a second: `989 TOP/s`; three digits, decimal."""
    return "–" if value is None else f"{_number(value)}OP/s"


def speed(value: float | None) -> str:
    """Bytes a second: `3.35 TB/s`."""
    return "–" if value is None else f"{_number(value)}B/s"


def count(value: float) -> str:
    """`17.2 T`."""
    return _number(value).strip()


def _number(value: float) -> str:
    number, prefix = scaled_up(value)
    return f"{number:.3g} {prefix}" if number < 999.5 else f"{number:.0f} {prefix}"


def seconds(value: float) -> str:
    """`1.2 s`, `12.3 ms`, `0.41 ms`: no unit that ASCII cannot write."""
    return f"{value:.3g} s" if value >= 0.9995 else f"{value * 1e3:.3g} ms"


def ratio(value: float) -> str:
    """`0.22`, `12`, `1,340`."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
